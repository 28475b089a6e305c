// Package scenario is what the host and the agent in a guest say to each
// other: one line of JSON a message, over a port of the machine's own. For
// each scenario it has the name, the arguments and the result.
package scenario

import "encoding/json"

// Port is the name of the serial port between host and agent.
const Port = "platter.agent"

// Request asks the agent for a scenario. Several may run at once.
type Request struct {
	ID   int             `json:"id"`
	Name string          `json:"name"`
	Args json.RawMessage `json:"args,omitempty"`
}

// Reply is an event of a scenario that goes on, or its end. The reply number
// 0, which nobody asks for, says that the agent is ready.
type Reply struct {
	ID     int             `json:"id"`
	Event  json.RawMessage `json:"event,omitempty"`
	Done   bool            `json:"done,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"`
}

// The scenarios.
const (
	PowerOff    = "poweroff"     // nothing; nothing
	Kernel      = "kernel"       // nothing; Trouble
	Run         = "run"          // Command; Output
	Identity    = "identity"     // Device; Identify
	SetCache    = "set-cache"    // Cache; Cache, as the kernel has it then
	AwaitSize   = "await-size"   // Size; Size
	Read        = "read"         // Transfer; Sum
	Write       = "write"        // Transfer; Sum
	Discard     = "discard"      // Device; nothing
	Files       = "files"        // FileWork; FileResult
	FioVerify   = "fio-verify"   // FioWork; FioResult
	WriterStart = "writer-start" // Writer; Written, when it has been stopped; events: []Ack
	WriterCheck = "writer-check" // WriterName; Written
	WriterStop  = "writer-stop"  // WriterName; nothing
	Verify      = "verify"       // VerifyWork; Written
	NFSVectors  = "nfs-vectors"  // NFSWork; NFSResult
)

// Command is a line for the guest's shell.
type Command struct {
	Line string `json:"line"`
}

// Output is what a command printed.
type Output struct {
	Text string `json:"text"`
}

// Device names a disk: "vda".
type Device struct {
	Device string `json:"device"`
}

// Identify is what the guest's driver says of a disk.
type Identify struct {
	Size               int64  `json:"size"` // bytes
	Logical            int    `json:"logical"`
	Physical           int    `json:"physical"`
	MinimumIO          int    `json:"minimum_io"`
	OptimalIO          int    `json:"optimal_io"`
	Serial             string `json:"serial"` // by GET_ID
	Queues             int    `json:"queues"`
	WriteCache         string `json:"write_cache"` // "write back" or "write through"
	ReadOnly           bool   `json:"read_only"`
	DiscardMax         int64  `json:"discard_max"` // bytes; 0: no discard
	DiscardGranularity int64  `json:"discard_granularity"`
	ZeroesMax          int64  `json:"zeroes_max"` // bytes; 0: no write zeroes
	SegmentsMax        int    `json:"segments_max"`
	Features           string `json:"features"` // virtio feature bits as 0 and 1, bit 0 first
}

// Feature reports whether a virtio feature bit was negotiated.
func (i Identify) Feature(bit int) bool { return bit < len(i.Features) && i.Features[bit] == '1' }

// Cache is whether the guest believes that its writes need flushing: "write
// back" or "write through".
type Cache struct {
	Device string `json:"device"`
	Mode   string `json:"mode"`
}

// Size is a disk's size, awaited or found.
type Size struct {
	Device string `json:"device"`
	Bytes  int64  `json:"bytes"`
}

// Transfer is direct I/O of a range, in requests of at most Step bytes. A
// write's content is Fill of the seed and the offset.
type Transfer struct {
	Device string `json:"device"`
	Off    int64  `json:"off"`
	N      int64  `json:"n"`
	Step   int    `json:"step"`
	Seed   uint64 `json:"seed"`
	Sync   bool   `json:"sync"` // flush at the end
}

// Sum is the SHA-256 of what was transferred.
type Sum struct {
	SHA256 string `json:"sha256"`
}

// Trouble is what the guest's kernel complained about since the last time it
// was asked: I/O errors, hung tasks, file system errors.
type Trouble struct {
	Lines []string `json:"lines"`
}

// FileWork makes an ext4 file system, works on files in it and takes it apart.
type FileWork struct {
	Device string `json:"device"`
	Seed   uint64 `json:"seed"`
	Files  int    `json:"files"`
	Bytes  int64  `json:"bytes"` // of each file
}

// FileResult is what came of it, after everything was verified.
type FileResult struct {
	Trimmed  int64    `json:"trimmed"` // bytes that fstrim gave back
	Readers  int      `json:"readers"` // concurrent direct readers that agreed
	ReadSums []string `json:"read_sums"`
	Fsck     string   `json:"fsck"`
}

// FioWork is a random write of a disk with verification.
type FioWork struct {
	Device string `json:"device"`
	Bytes  int64  `json:"bytes"`
	Depth  int    `json:"depth"`
	Engine string `json:"engine"` // io_uring, libaio
}

// FioResult is what fio counted.
type FioResult struct {
	Written int64 `json:"written"` // bytes
	Read    int64 `json:"read"`    // bytes, for verification
	Errors  int   `json:"errors"`
}
