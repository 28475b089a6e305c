package virtio

import (
	"fmt"
	"sync/atomic"
)

// LogPage is the unit of a dirty log in bytes, whatever the guest's pages are
// (VHOST_LOG_PAGE of the vhost-user specification).
const LogPage = 4096

// A Log is a bitmap of the guest pages that were written to, one bit for each
// LogPage from guest address 0. It is shared with the front end, which clears
// bits while we set them. Any number of goroutines may mark.
type Log struct {
	mem []byte
}

// NewLog makes a Log of the bitmap in mem, whose address and length must be
// multiples of 4.
func NewLog(mem []byte) (*Log, error) {
	if len(mem) == 0 || len(mem)%4 != 0 || !aligned(mem, 4) {
		return nil, fmt.Errorf("dirty log: %d bytes: its address and length must be multiples of 4", len(mem))
	}
	return &Log{mem}, nil
}

// Covers tells whether the log has a bit for each byte from 0 to end, not
// included: see Map.End.
func (l *Log) Covers(end uint64) bool {
	return end > 0 && (end-1)/LogPage < uint64(len(l.mem))*8 || end == 0
}

// Mark sets the bits of the n bytes at guest address gpa. It answers false if
// some of them have no bit: those that have are marked.
func (l *Log) Mark(gpa, n uint64) bool {
	if n == 0 {
		return true
	}
	last := gpa + (n - 1)
	wrapped := last < gpa
	bits := uint64(len(l.mem)) * 8
	first, end := gpa/LogPage, last/LogPage
	if inside := !wrapped && end < bits; !inside {
		l.set(first, bits-1)
		return false
	}
	l.set(first, end)
	return true
}

func (l *Log) set(first, last uint64) {
	for p := first; p <= last && p < uint64(len(l.mem))*8; p++ {
		w := word(l.mem[p/32*4:])
		// Most pages are marked already: a load is cheaper than a locked or.
		if bit := uint32(1) << (p % 32); atomic.LoadUint32(w)&bit == 0 {
			atomic.OrUint32(w, bit)
		}
	}
}

// MarkVector marks what v holds, as found by m. It answers false if some of it
// could not be marked.
func (l *Log) MarkVector(m *Map, v [][]byte) bool {
	all := true
	for _, b := range v {
		if len(b) == 0 {
			continue
		}
		gpa, ok := m.Address(b)
		all = ok && l.Mark(gpa, uint64(len(b))) && all
	}
	return all
}
