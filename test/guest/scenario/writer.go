package scenario

// Writer is a load on a disk whose every block is checked. Depth workers each
// write, read back and flush blocks that belong to them alone, one request at
// a time, so that each knows what must be there. Block b lies at Offset +
// b*Block; worker w has the blocks from w*PerWorker on.
type Writer struct {
	Name       string `json:"name"`
	Device     string `json:"device"`
	Seed       uint64 `json:"seed"`
	Depth      int    `json:"depth"`
	Block      int    `json:"block"` // bytes
	PerWorker  int    `json:"per_worker"`
	Offset     int64  `json:"offset"`
	MaxRun     int    `json:"max_run"`     // blocks in one request, at most
	FlushEvery int    `json:"flush_every"` // operations of a worker between its flushes
	Base       uint64 `json:"base"`        // versions count up from here
	Report     bool   `json:"report"`      // tell the host each acknowledged write
}

// Blocks is how many the load uses.
func (w Writer) Blocks() int { return w.Depth * w.PerWorker }

// Worker is whose a block is.
func (w Writer) Worker(block int) int { return block / w.PerWorker }

// WriterName names a load that was started.
type WriterName struct {
	Name string `json:"name"`
}

// Ack is news of one worker: writes that the disk has acknowledged, each its
// first block, its number of blocks and the version of the first (the others'
// follow), and then a flush that began after all of the worker's before it.
type Ack struct {
	Worker  int         `json:"w"`
	Writes  [][3]uint64 `json:"a,omitempty"`
	Flushed bool        `json:"f,omitempty"`
}

// Written is what a load has done and found.
type Written struct {
	Writes   int      `json:"writes"`
	Reads    int      `json:"reads"`
	Flushes  int      `json:"flushes"`
	Checked  int      `json:"checked"`  // blocks verified by the latest check
	Versions []uint64 `json:"versions"` // of each block, 0: never written
}

// VerifyWork checks the blocks of a Writer after its guest has died. Blocks
// hold one whole version each, not older than Least; 0 means that the block
// may also never have been written.
type VerifyWork struct {
	Writer Writer   `json:"writer"`
	Least  []uint64 `json:"least"`
}

// Vector is one vectored direct write and read of an NFS file.
type Vector struct {
	Name     string `json:"name"`
	Elements []int  `json:"elements"` // bytes of each
	Stride   int    `json:"stride"`   // from one element's address to the next one's; 0: each at the page after the one before
	Start    int    `json:"start"`    // the first element's address within a page
	Off      int64  `json:"off"`      // in the file
}

// NFSWork mounts the guest's own NFS server and counts requests.
type NFSWork struct {
	Version string   `json:"version"` // "3", "4.2"
	Vectors []Vector `json:"vectors"`
	// Linearise: Platter makes the requests, with this option linearise. Empty:
	// the system calls do.
	Linearise string `json:"linearise"`
}

// NFSCount is how many requests one vector took, from the client's own
// counters in /proc/self/mountstats.
type NFSCount struct {
	Write  int `json:"write"`
	Commit int `json:"commit"`
	Read   int `json:"read"`
	// PredictedWrite and PredictedRead are Platter's predictions for the
	// vector as it is.
	PredictedWrite int `json:"predicted_write"`
	PredictedRead  int `json:"predicted_read"`
}

// NFSResult has the mount's options as the kernel shows them, and a count for
// each vector.
type NFSResult struct {
	Options string `json:"options"`
	// Mount is what Platter says of the mount.
	Mount  string     `json:"mount"`
	Counts []NFSCount `json:"counts"`
}
