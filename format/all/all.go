// Package all registers every format driver.
package all

import (
	_ "github.com/platter-storage/platter/format/luks"  // encrypted disks
	_ "github.com/platter-storage/platter/format/qcow2" // images that grow
	_ "github.com/platter-storage/platter/format/raw"   // the bytes as they are
)
