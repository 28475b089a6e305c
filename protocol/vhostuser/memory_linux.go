package vhostuser

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/virtio"
)

// Where the shared memory begins, as the server sees it. Our own addresses are
// none of its business.
const (
	guestBase = 1 << 30
	userBase  = 1 << 40
)

// Parts of the shared memory.
const (
	chunkSize = 64 << 10
	placeSize = 64 // bytes of a request's header, range and status

	rangeAt  = 16 // in a place
	statusAt = 48
)

// memory is what is shared with the server over one connection. The file cannot
// become smaller, so that touching it is never a fault.
type memory struct {
	fd  int
	mem []byte
}

func newMemory(n int) (m memory, err error) {
	m.fd, err = unix.MemfdCreate("platter-vhost-user", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return m, fmt.Errorf("memory to share: %w", err)
	}
	if err = unix.Ftruncate(m.fd, int64(n)); err == nil {
		_, err = unix.FcntlInt(uintptr(m.fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err == nil {
		m.mem, err = unix.Mmap(m.fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		unix.Close(m.fd)
		return m, fmt.Errorf("%d bytes of memory to share: %w (limits: ulimit -v, the size of the control group)", n, err)
	}
	return m, nil
}

// free gives our mapping and descriptor back; the server has its own.
func (m *memory) free() {
	if m.mem == nil {
		return
	}
	// What mmap gave can be taken back, and nothing can be done otherwise.
	_ = unix.Munmap(m.mem)
	_ = unix.Close(m.fd)
	m.mem = nil
}

// area is a part of the memory and where it begins in it.
type area struct {
	at int
	b  []byte
}

func (a area) guest() uint64 { return guestBase + uint64(a.at) }
func (a area) user() uint64  { return userBase + uint64(a.at) }

// plan is how the memory of one queue is laid out: lengths in bytes.
type plan struct {
	size     int // descriptors
	features uint64
	tableLen int // descriptors of an indirect table; 0: none
	places   int
	chunks   int
}

// layout is the memory of one queue.
type layout struct {
	desc, driver, device, tables, places, chunks area
}

const pageMask = 4095

// lengths are those of the areas, in the order of layout.
func (p *plan) lengths() [6]int {
	desc, driver, device := virtio.AreaSizes(uint16(p.size), p.features)
	return [6]int{desc, driver, device, p.size * p.tableLen * 16, p.places * placeSize, p.chunks * chunkSize}
}

// bytes is what all of it takes, in whole pages.
func (p *plan) bytes() (n int) {
	for _, l := range p.lengths() {
		n += (l + pageMask) &^ pageMask
	}
	return n
}

// lay finds the areas of a queue whose memory begins at at.
func (p *plan) lay(mem []byte, at int) layout {
	var l layout
	lengths := p.lengths()
	for i, a := range []*area{&l.desc, &l.driver, &l.device, &l.tables, &l.places, &l.chunks} {
		a.at, a.b = at, mem[at:at+lengths[i]:at+lengths[i]]
		at += (lengths[i] + pageMask) &^ pageMask
	}
	return l
}
