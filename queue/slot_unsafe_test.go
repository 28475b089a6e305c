package queue

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"unsafe"
)

func newTable(t testing.TB, depth int) *table {
	t.Helper()
	tab := new(table)
	if err := tab.init(depth); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tab.close)
	return tab
}

// Each field of a slot has a class; one without does not get past here, nor
// does one whose class is unknown.
func TestB3EachFieldHasAClass(t *testing.T) {
	classes := map[string]bool{"init": true, "parse": true, "complete": true}
	typ := reflect.TypeFor[slot]()
	for i := range typ.NumField() {
		f := typ.Field(i)
		if !classes[f.Tag.Get("class")] {
			t.Errorf("field %s of a slot has class %q: say who sets it before it is read", f.Name, f.Tag.Get("class"))
		}
		switch f.Type.Kind() {
		case reflect.Pointer, reflect.UnsafePointer, reflect.Slice, reflect.String, reflect.Interface, reflect.Map, reflect.Chan, reflect.Func:
			t.Errorf("field %s of a slot is a %v: the collector does not see this memory", f.Name, f.Type)
		}
	}
}

// The part of a slot that software touches for a request of few elements fits
// six cache lines, and no line belongs to two slots.
func TestB4SlotFitsItsCacheLines(t *testing.T) {
	if n := unsafe.Sizeof(slot{}); n > headerLen {
		t.Errorf("a slot's header is %d bytes, want at most %d", n, headerLen)
	}
	if slotStride%128 != 0 || slotStride > 6*64 {
		t.Errorf("slots are %d bytes apart: want a multiple of 128 and at most 384", slotStride)
	}
	tab := newTable(t, 4)
	for i := range 4 {
		if a := uintptr(unsafe.Pointer(tab.at(i))); a%128 != 0 {
			t.Errorf("slot %d is at %#x: not at a multiple of 128", i, a)
		}
		if end := uintptr(unsafe.Pointer(&tab.near(i)[nearElems-1])) + elemLen; end > uintptr(unsafe.Pointer(tab.at(i)))+slotStride {
			t.Errorf("the elements of slot %d reach into the next", i)
		}
	}
}

// A table hands out as many slots as it has and no more; whatever the order in
// which they come back, each is there once.
func TestB8TableUnderRandomOrder(t *testing.T) {
	const depth = 37
	tab := newTable(t, depth)
	rng := rand.New(rand.NewPCG(1, 2))
	var held []int
	for range 20_000 {
		if len(held) < depth && rng.IntN(2) == 0 {
			i, s := tab.take()
			if s == nil {
				t.Fatalf("no slot although %d of %d are in use", len(held), depth)
			}
			s.slab = noSlab
			for _, h := range held {
				if h == i {
					t.Fatalf("slot %d was given to two", i)
				}
			}
			held = append(held, i)
			continue
		}
		if len(held) == depth {
			if _, s := tab.take(); s != nil {
				t.Fatal("a slot beyond the last")
			}
		}
		if len(held) > 0 {
			k := rng.IntN(len(held))
			tab.put(held[k])
			held[k] = held[len(held)-1]
			held = held[:len(held)-1]
		}
		if tab.used != len(held) {
			t.Fatalf("%d slots in use, want %d", tab.used, len(held))
		}
	}
}

// What is freed twice is a fault of ours, and is told from all others.
func TestB8DoubleFreeIsCaught(t *testing.T) {
	tab := newTable(t, 2)
	i, s := tab.take()
	s.slab = noSlab
	tab.put(i)
	defer func() {
		if recover() == nil {
			t.Error("a slot was freed twice and nobody noticed")
		}
	}()
	tab.put(i)
}

// Slabs are as many as there are: one more waits.
func TestB8SlabsAreBounded(t *testing.T) {
	tab := newTable(t, maxSlabs+1)
	long := make([][]byte, nearElems+1)
	page := make([]byte, 8)
	for i := range long {
		long[i] = page
	}
	var last int
	for range maxSlabs {
		i, _ := tab.take()
		if !tab.store(i, long) {
			t.Fatal("a slab is missing")
		}
		last = i
	}
	i, s := tab.take()
	if tab.store(i, long) {
		t.Fatal("a slab beyond the last")
	}
	if s.slab != noSlab {
		t.Fatal("a slot without a slab says it has one")
	}
	tab.put(last)
	if !tab.store(i, long) {
		t.Fatal("the slab that was freed is not there")
	}
	if v := tab.vec(i); len(v) != len(long) || &v[nearElems][0] != &page[0] {
		t.Error("elements in a slab are not those that were stored")
	}
}
