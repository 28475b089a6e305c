// Package all registers every filter driver.
package all

import (
	_ "github.com/platter-storage/platter/filter/fault"    // errors, delays and torn writes on order
	_ "github.com/platter-storage/platter/filter/throttle" // limits to requests and bytes a second
)
