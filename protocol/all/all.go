// Package all registers every protocol driver.
package all

import (
	_ "github.com/platter-storage/platter/protocol/file"      // files and block devices
	_ "github.com/platter-storage/platter/protocol/mem"       // memory
	_ "github.com/platter-storage/platter/protocol/nbd"       // disks that NBD servers offer
	_ "github.com/platter-storage/platter/protocol/null"      // nothing
	_ "github.com/platter-storage/platter/protocol/vhostuser" // disks that other processes serve
)
