package virtio

import (
	"errors"
	"fmt"
	"slices"
	"sort"
)

// A Region is one piece of guest memory: where the guest sees it, where the
// front end's process has it mapped, and where we have it.
type Region struct {
	Guest uint64 // guest physical address of the first byte
	User  uint64 // address of the first byte in the front end's process; ring addresses are given in these
	Mem   []byte // our mapping of it
}

// A Map finds guest memory by its addresses. It never changes; another memory
// table is another Map. Any number of goroutines may use one.
//
// The memory belongs to the guest, which writes to it whenever it likes: read
// each byte once. It may also be gone (a file cut short under its mapping), and
// then touching it is a fault; who cares to survive that runs with
// debug.SetPanicOnFault and recovers around the whole batch of work, after
// which the rings that were being worked on are not to be used any more.
type Map struct {
	regions []Region // sorted by Guest, no two overlap
}

// ErrMemory is in every error about a memory table.
var ErrMemory = errors.New("memory table")

// NewMap makes a Map of regions in any order. Overlapping guest addresses, an
// end beyond the address space, an empty region and more than MaxRegions of
// them are errors. No region at all is a Map in which nothing is found.
func NewMap(regions []Region) (*Map, error) {
	if len(regions) > MaxRegions {
		return nil, fmt.Errorf("%w: %d regions, at most %d are supported", ErrMemory, len(regions), MaxRegions)
	}
	m := &Map{regions: slices.Clone(regions)}
	slices.SortFunc(m.regions, func(a, b Region) int {
		switch {
		case a.Guest < b.Guest:
			return -1
		case a.Guest > b.Guest:
			return 1
		}
		return 0
	})
	for i := range m.regions {
		r := &m.regions[i]
		n := uint64(len(r.Mem))
		switch {
		case n == 0:
			return nil, fmt.Errorf("%w: the region at guest address %#x is empty", ErrMemory, r.Guest)
		case r.Guest+(n-1) < r.Guest || r.User+(n-1) < r.User:
			return nil, fmt.Errorf("%w: the region of %#x bytes at guest address %#x, user address %#x passes the end of the address space", ErrMemory, n, r.Guest, r.User)
		case i > 0 && m.regions[i-1].has(r.Guest):
			return nil, fmt.Errorf("%w: the regions at guest addresses %#x and %#x overlap", ErrMemory, m.regions[i-1].Guest, r.Guest)
		}
	}
	return m, nil
}

func (r *Region) has(gpa uint64) bool { return gpa-r.Guest < uint64(len(r.Mem)) }

// End is the guest address after the last byte, 0 without regions: what a dirty
// log must cover.
func (m *Map) End() uint64 {
	if len(m.regions) == 0 {
		return 0
	}
	last := &m.regions[len(m.regions)-1]
	return last.Guest + uint64(len(last.Mem))
}

// A Cache remembers where an address was found last, for the next that lies
// near. The zero value is empty. It belongs to one user, and may be used with
// one Map after the other.
type Cache struct {
	m     *Map
	guest uint64
	mem   []byte
}

// hit is find where the last address was found; nil if it is elsewhere.
func (c *Cache) hit(m *Map, gpa uint64) []byte {
	if off := gpa - c.guest; c.m == m && off < uint64(len(c.mem)) {
		return c.mem[off:]
	}
	return nil
}

// find is the memory from gpa to the end of its region, nil if gpa is in none.
func (m *Map) find(gpa uint64, c *Cache) []byte {
	if mem := c.hit(m, gpa); mem != nil {
		return mem
	}
	return m.search(gpa, c)
}

func (m *Map) search(gpa uint64, c *Cache) []byte {
	i := sort.Search(len(m.regions), func(i int) bool { return m.regions[i].Guest > gpa }) - 1
	if i < 0 || !m.regions[i].has(gpa) {
		return nil
	}
	r := &m.regions[i]
	c.m, c.guest, c.mem = m, r.Guest, r.Mem
	return r.Mem[gpa-r.Guest:]
}

// Append adds to v the n bytes at guest address gpa, in as many pieces as there
// are regions that they lie in, one right after the other. It answers false,
// and v as it was, if any of the bytes is in no region. No byte is no piece,
// at any address.
func (m *Map) Append(v [][]byte, gpa uint64, n uint32, c *Cache) ([][]byte, bool) {
	if mem := c.hit(m, gpa); uint64(n) <= uint64(len(mem)) && n > 0 {
		return append(v, mem[:n:n]), true
	}
	return m.appendPieces(v, gpa, n, c)
}

func (m *Map) appendPieces(v [][]byte, gpa uint64, n uint32, c *Cache) ([][]byte, bool) {
	before := len(v)
	for left := uint64(n); left > 0; {
		mem := m.find(gpa, c)
		if len(mem) == 0 {
			return v[:before], false
		}
		k := min(left, uint64(len(mem)))
		v = append(v, mem[:k:k])
		left -= k
		if gpa += k; gpa == 0 && left > 0 {
			return v[:before], false // never around the end of the address space
		}
	}
	return v, true
}

// includes tells whether m has each region of old, in the same memory and at the
// same addresses.
func (m *Map) includes(old *Map) bool {
	rest := m.regions
	for i := range old.regions {
		r := &old.regions[i]
		for len(rest) > 0 && rest[0].Guest < r.Guest {
			rest = rest[1:]
		}
		if len(rest) == 0 || rest[0].Guest != r.Guest || rest[0].User != r.User || !sameMemory(rest[0].Mem, r.Mem) {
			return false
		}
	}
	return true
}

// sameMemory tells whether two slices are the same bytes. It touches none.
func sameMemory(a, b []byte) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// Guest is the n bytes at guest address gpa if one region has them all, else
// nil.
func (m *Map) Guest(gpa, n uint64) []byte {
	var c Cache
	return m.guest(gpa, n, &c)
}

func (m *Map) guest(gpa, n uint64, c *Cache) []byte {
	mem := m.find(gpa, c)
	if n == 0 || n > uint64(len(mem)) {
		return nil
	}
	return mem[:n:n]
}

// User is the n bytes at address uva of the front end's process if one region
// has them all, else nil.
func (m *Map) User(uva, n uint64) []byte {
	for i := range m.regions {
		r := &m.regions[i]
		size := uint64(len(r.Mem))
		if off := uva - r.User; off < size && n <= size-off && n > 0 {
			return r.Mem[off : off+n : off+n]
		}
	}
	return nil
}

// UserToGuest is the guest physical address of what the front end's process has
// at uva.
func (m *Map) UserToGuest(uva uint64) (gpa uint64, ok bool) {
	for i := range m.regions {
		r := &m.regions[i]
		if off := uva - r.User; off < uint64(len(r.Mem)) {
			return r.Guest + off, true
		}
	}
	return 0, false
}

// Address is the guest physical address of b, which must be a part of what
// Append, Guest or User of this Map gave. It is for the dirty log: a request's
// vector is all that must be kept to know which pages were written.
func (m *Map) Address(b []byte) (gpa uint64, ok bool) {
	if len(b) == 0 {
		return 0, false
	}
	for i := range m.regions {
		r := &m.regions[i]
		if off, in := offsetIn(r.Mem, b); in {
			return r.Guest + off, true
		}
	}
	return 0, false
}

// read copies the bytes at gpa to dst, from as many regions as it takes.
func (m *Map) read(dst []byte, gpa uint64, c *Cache) bool {
	for len(dst) > 0 {
		mem := m.find(gpa, c)
		if len(mem) == 0 {
			return false
		}
		n := copy(dst, mem)
		dst = dst[n:]
		if gpa += uint64(n); gpa == 0 && len(dst) > 0 {
			return false
		}
	}
	return true
}
