package queue

import "github.com/platter-storage/platter/internal/procs"

// ReserveProcs says that n more loops (fewer, if negative) will run in this
// process, and raises GOMAXPROCS to their number and two more. It never lowers
// it. Start does this for its own queue; a caller that will start many does it
// once for all.
func ReserveProcs(n int) { procs.Reserve(n) }
