package sys

import "testing"

func TestMapAligned(t *testing.T) {
	for _, align := range []int{4096, 65536, HugePage} {
		b, m, err := MapAligned(3<<20, align)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) != 3<<20 || cap(b) != len(b) || Addr(b)%uintptr(align) != 0 {
			t.Errorf("align %d: len %d cap %d address %#x", align, len(b), cap(b), Addr(b))
		}
		AdviseHuge(b)
		Touch(b)
		b[len(b)-1] = 1
		if err := Unmap(m); err != nil {
			t.Errorf("align %d: unmap: %v", align, err)
		}
	}
}

func TestAddrOfEmptySlice(t *testing.T) {
	b := make([]byte, 8)
	if Addr(b[:0]) != Addr(b) {
		t.Errorf("address of an empty slice %#x, of its array %#x", Addr(b[:0]), Addr(b))
	}
}
