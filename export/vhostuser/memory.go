package vhostuser

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/virtio"
	wire "github.com/platter-storage/platter/wire/vhostuser"
)

// region is a piece of guest memory that is mapped here.
type region struct {
	wire.Region
	mapping []byte // what munmap takes
	mem     []byte // the region's bytes in it
}

// mapFile maps n bytes at off of a file that a front end passed. The file must
// reach so far: what is beyond its end would be a fault to touch. It can still
// be cut short later; who touches the memory lives with that.
func mapFile(fd int, off, n uint64) (mapping, mem []byte, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, nil, fmt.Errorf("its descriptor: %w", err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, nil, errors.New("its descriptor is no file in memory: the guest's memory has to be shared (memory-backend-memfd or memory-backend-file with share=on)")
	case n == 0:
		return nil, nil, errors.New("it has no bytes")
	case off > math.MaxInt64 || n > math.MaxInt64 || off+n > uint64(max(st.Size, 0)):
		return nil, nil, fmt.Errorf("its file has %d bytes, less than the %d at offset %d", st.Size, n, off)
	}
	unit, err := mapUnit(fd)
	if err != nil {
		return nil, nil, err
	}
	skip := off % unit
	length := (skip + n + unit - 1) / unit * unit
	mapping, err = unix.Mmap(fd, int64(off-skip), int(length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, nil, fmt.Errorf("mapping %d bytes of its file at offset %d: %w", length, off-skip, err)
	}
	// A guest's memory has no place in a core file of ours. It is advice.
	_ = unix.Madvise(mapping, unix.MADV_DONTDUMP)
	return mapping, mapping[skip : skip+n : skip+n], nil
}

// mapUnit is what offset and length of a mapping must be multiples of, in
// bytes: the size of the file's pages.
func mapUnit(fd int) (uint64, error) {
	unit := uint64(unix.Getpagesize())
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return 0, fmt.Errorf("its file system: %w", err)
	}
	if fs.Type == unix.HUGETLBFS_MAGIC && fs.Bsize > 0 {
		unit = max(unit, uint64(fs.Bsize))
	}
	return unit, nil
}

func mapRegion(r wire.Region, fd int) (*region, error) {
	mapping, mem, err := mapFile(fd, r.MmapOffset, r.Size)
	if err != nil {
		return nil, fmt.Errorf("the region of %d bytes at guest address %#x: %w", r.Size, r.GuestAddr, err)
	}
	return &region{r, mapping, mem}, nil
}

func (r *region) unmap() {
	if err := unix.Munmap(r.mapping); err != nil {
		panic("vhost-user: a mapping of ours cannot be unmapped: " + err.Error())
	}
}

// same reports whether o names this region: the offset does not count.
// ("VHOST_USER_REM_MEM_REG")
func (r *region) same(o wire.Region) bool {
	return r.GuestAddr == o.GuestAddr && r.UserAddr == o.UserAddr && r.Size == o.Size
}

// setMemTable replaces all of guest memory.
func (s *session) setMemTable(m *wire.Message) error {
	var room [wire.MaxTableRegions]wire.Region
	table, err := m.MemTable(room[:0])
	if err != nil {
		return err
	}
	next := make([]*region, 0, len(table))
	for i, w := range table {
		r, err := mapRegion(w, m.Fds.Fd(i))
		if err != nil {
			s.unmapNew(next)
			return err
		}
		next = append(next, r)
	}
	return s.changeMemory(next)
}

func (s *session) getMaxMemSlots(m *wire.Message) error { return s.conn.Ack(m, wire.MaxMemSlots) }

func (s *session) addMemReg(m *wire.Message) error {
	w, err := m.Region()
	if err != nil {
		return err
	}
	if len(s.regions) == wire.MaxMemSlots {
		return fmt.Errorf("there are %d regions already, the most that there can be", wire.MaxMemSlots)
	}
	r, err := mapRegion(w, m.Fds.Fd(0))
	if err != nil {
		return err
	}
	return s.changeMemory(append(slices.Clone(s.regions), r))
}

// remMemReg takes a region away. When it is answered nothing of ours touches
// it any more. A descriptor that came with it is closed.
func (s *session) remMemReg(m *wire.Message) error {
	w, err := m.Region()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(s.regions, func(r *region) bool { return r.same(w) })
	if i < 0 {
		return fmt.Errorf("there is no region of %d bytes at guest address %#x, user address %#x", w.Size, w.GuestAddr, w.UserAddr)
	}
	return s.changeMemory(slices.Delete(slices.Clone(s.regions), i, i+1))
}

// changeMemory puts next in the place of the session's regions. Where that takes
// some away it waits until no request touches the old ones, in either lane of any
// queue, and then unmaps those that are not in next. Where it cannot be done
// nothing changes, and what is new in next is unmapped.
func (s *session) changeMemory(next []*region) error {
	m, err := virtioMap(next)
	if err != nil {
		s.unmapNew(next)
		return err
	}
	areas := make([]ringAreas, len(s.vrings))
	for i := range s.vrings {
		v := &s.vrings[i]
		if !v.attached {
			continue
		}
		if areas[i], err = v.areas(m, s.features); err != nil {
			s.unmapNew(next)
			return fmt.Errorf("queue %d, which runs, would lose its ring: %w", i, err)
		}
	}
	for i := range s.vrings {
		v, a := &s.vrings[i], &areas[i]
		if !v.attached {
			continue
		}
		if err := v.q.SetMap(context.Background(), m, a.desc, a.driver, a.device); err != nil {
			s.log.Warn("a queue cannot go on with new guest memory: it stops", "queue", i, "error", err)
			s.detach(v)
		}
	}
	old := s.regions
	s.regions, s.mem = next, m
	for _, r := range old {
		if !slices.Contains(next, r) {
			r.unmap()
		}
	}
	return s.startReady()
}

// unmapNew gives up regions that were mapped for a change that failed.
func (s *session) unmapNew(next []*region) {
	for _, r := range next {
		if !slices.Contains(s.regions, r) {
			r.unmap()
		}
	}
}

func virtioMap(regions []*region) (*virtio.Map, error) {
	list := make([]virtio.Region, len(regions))
	for i, r := range regions {
		list[i] = virtio.Region{Guest: r.GuestAddr, User: r.UserAddr, Mem: r.mem}
	}
	return virtio.NewMap(list)
}
