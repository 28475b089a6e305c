package queue

import (
	"errors"
	"unsafe"
)

// poison fills what a slot keeps from its last request with what no request
// would leave there: all fields but those of class init, and the elements.
func (t *table) poison() {
	for i := range t.refs {
		s := t.at(i)
		gen, next := s.gen, s.next
		b := unsafe.Slice((*byte)(unsafe.Pointer(s)), slotStride)
		for k := range b {
			b[k] = 0xa5
		}
		s.gen, s.next = gen, next
		io := &t.refs[i].io
		io.Off, io.N, io.Sync, io.Err, io.Vec = -0x5a5a, -0x5a5a, true, errPoison, nil
	}
	for i := range t.slabs {
		t.slabs[i] = 0xa5
	}
}

var errPoison = errors.New("left from another request")
