package sim

import (
	"sync"

	"github.com/platter-storage/platter/block"
)

// Sector is the most that a disk stores as one: a power cut leaves a sector as
// it was or as it was to be.
const Sector = 512

// event is one request that changed a disk, or flushed it. Times are numbers of
// the log's clock; done is 0 while the request is in flight.
type event struct {
	op          block.Op
	disk        int
	off, n      int64 // for a truncation, n is the new size
	data        []byte
	fua         bool
	issue, done uint64
}

// Log is what happened to some disks, on one clock.
type Log struct {
	mu     sync.Mutex
	now    uint64
	events []*event
	disks  []*Disk
}

// Tick is the time, a number that each call makes larger.
func (l *Log) Tick() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now++
	return l.now
}

// Events is the number of requests on record.
func (l *Log) Events() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.events)
}

// Disk is storage in memory. With a log it records what it is asked to do.
type Disk struct {
	info  block.Info
	log   *Log // nil: nothing is recorded
	index int
	base  []byte // the content when the record began

	mu   sync.Mutex
	data []byte
}

// NewDisk makes a disk that begins with content, and whose requests l records.
func (l *Log) NewDisk(content []byte) *Disk {
	d := newDisk(content)
	d.log, d.index, d.base = l, len(l.disks), append([]byte(nil), content...)
	l.disks = append(l.disks, d)
	return d
}

// newDisk makes a disk of content, which it takes over.
func newDisk(content []byte) *Disk {
	d := &Disk{data: content}
	d.info = block.Info{Driver: "simulated", Filename: "simulated disk", MultiConn: true, Inline: true,
		WriteFlags: block.FUA, ZeroFlags: block.FUA | block.MayUnmap}
	d.info.SetSize(int64(len(content)))
	d.info.SetLimits(block.ByteLimits())
	return d
}

// Content is a copy of what the disk holds.
func (d *Disk) Content() []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]byte(nil), d.data...)
}

// Info is the node's.
func (d *Disk) Info() *block.Info { return &d.info }

// record runs do between issue and completion of e.
func (d *Disk) record(e *event, do func()) {
	if d.log == nil {
		do()
		return
	}
	e.disk = d.index
	d.log.mu.Lock()
	d.log.now++
	e.issue = d.log.now
	d.log.events = append(d.log.events, e)
	d.log.mu.Unlock()
	do()
	done := d.log.Tick()
	d.log.mu.Lock()
	e.done = done
	d.log.mu.Unlock()
}

// Preadv reads.
func (d *Disk) Preadv(_ *block.Req, off int64, v block.Vec, _ block.Flags) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	v.CopyIn(d.data[off:off+v.Len()], 0)
	return nil
}

// Pwritev writes.
func (d *Disk) Pwritev(_ *block.Req, off int64, v block.Vec, fl block.Flags) error {
	b := make([]byte, v.Len())
	v.CopyOut(b, 0)
	d.record(&event{op: block.OpWrite, off: off, n: v.Len(), data: b, fua: fl&block.FUA != 0}, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		copy(d.data[off:], b)
	})
	return nil
}

func (d *Disk) clear(off, n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.data[off : off+n])
}

// WriteZeroes writes zeroes.
func (d *Disk) WriteZeroes(_ *block.Req, off, n int64, fl block.Flags) error {
	d.record(&event{op: block.OpZero, off: off, n: n, fua: fl&block.FUA != 0}, func() { d.clear(off, n) })
	return nil
}

// Discard leaves zeroes.
func (d *Disk) Discard(_ *block.Req, off, n int64) error {
	d.record(&event{op: block.OpDiscard, off: off, n: n}, func() { d.clear(off, n) })
	return nil
}

// Flush makes durable what completed before.
func (d *Disk) Flush(*block.Req) error {
	d.record(&event{op: block.OpFlush}, func() {})
	return nil
}

// BlockStatus says that zeroes are zeroes.
func (d *Disk) BlockStatus(_ *block.Req, off, n int64) (block.Extent, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if isZero(d.data[off : off+n]) {
		return block.Extent{Len: n, Zero: true, Allocated: true, Host: -1}, nil
	}
	return block.Extent{Len: n, Data: true, Allocated: true, Host: -1}, nil
}

// Truncate sets the size.
func (d *Disk) Truncate(_ *block.Req, size int64, _ block.Prealloc) error {
	d.record(&event{op: block.OpTruncate, n: size}, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.data = resize(d.data, size)
		d.info.SetSize(size)
	})
	return nil
}

// Close does nothing.
func (d *Disk) Close() error { return nil }

// resize makes b n bytes long, zeroes where it grows.
func resize(b []byte, n int64) []byte {
	if n <= int64(len(b)) {
		clear(b[n:]) // what is cut off is zeroes when it comes back
		return b[:n]
	}
	if n <= int64(cap(b)) {
		was := len(b)
		b = b[:n]
		clear(b[was:])
		return b
	}
	r := make([]byte, n, n+n/4)
	copy(r, b)
	return r
}

func isZero(b []byte) bool {
	for len(b) >= 8 {
		if b[0]|b[1]|b[2]|b[3]|b[4]|b[5]|b[6]|b[7] != 0 {
			return false
		}
		b = b[8:]
	}
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}
