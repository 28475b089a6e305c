package queue

import (
	"unsafe"

	"github.com/platter-storage/platter/block"
)

// Sizes that the table's arithmetic relies on; a mistake does not compile.
var (
	_ [elemLen]byte                           = [unsafe.Sizeof(elem{})]byte{}
	_ [elemLen]byte                           = [unsafe.Sizeof([]byte(nil))]byte{}
	_ [headerLen - unsafe.Sizeof(slot{})]byte // a slot fits its header
	_ [0]byte                                 = [slotStride % 128]byte{}
)

// at is slot i.
func (t *table) at(i int) *slot { return (*slot)(unsafe.Pointer(&t.slots[i*slotStride])) }

// near are the elements that slot i has room for itself.
func (t *table) near(i int) []elem {
	return unsafe.Slice((*elem)(unsafe.Pointer(&t.slots[i*slotStride+headerLen])), nearElems)
}

// slabAt is slab k.
func (t *table) slabAt(k int32) []elem {
	return unsafe.Slice((*elem)(unsafe.Pointer(&t.slabs[int(k)*slabLen])), MaxElems)
}

// elemOf keeps a slice of guest memory as numbers. Who maps that memory keeps
// it until the queue has let go of it.
func elemOf(b []byte) elem {
	return elem{uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), uintptr(cap(b))}
}

// asVec reads elements as the slices that they are.
func asVec(e []elem) block.Vec {
	return unsafe.Slice((*[]byte)(unsafe.Pointer(unsafe.SliceData(e))), len(e))
}

// bytes reads one.
func (e *elem) bytes() []byte { return *(*[]byte)(unsafe.Pointer(e)) }
