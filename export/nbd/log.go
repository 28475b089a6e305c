package nbd

// Bounds of what clients and failing storage can make us log: lines at once,
// and then one each logpace.Period.
const (
	logBurst    = 20  // of warnings
	comingBurst = 200 // of clients that come and go
)
