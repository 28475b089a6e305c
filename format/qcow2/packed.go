package qcow2

import (
	"sync"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// packedCache has the clusters that were decompressed last: a guest that reads a
// compressed cluster in small parts has it decompressed once.
type packedCache struct {
	mu   sync.Mutex
	have [packedKept]unpacked
	next int
	// filled says that there is anything.
	filled bool
}

// packedKept is how many clusters an image keeps decompressed.
const packedKept = 4

type unpacked struct {
	entry uint64
	b     []byte
}

// forget drops all: a host cluster is free, and what is next compressed into it
// may have the same descriptor as what was there.
func (c *packedCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.filled {
		c.have, c.filled = [packedKept]unpacked{}, false
	}
}

// copyOut copies from a cluster that is there.
func (c *packedCache) copyOut(entry uint64, from int64, v block.Vec) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.have {
		if u := &c.have[i]; u.b != nil && u.entry == entry {
			copyTo(v, u.b[from:])
			return true
		}
	}
	return false
}

// add takes a cluster that the caller has looked up and pinned: it is not free
// before he is done.
func (c *packedCache) add(entry uint64, b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.have[c.next], c.filled = unpacked{entry, b}, true
	c.next = (c.next + 1) % packedKept
}

func copyTo(v block.Vec, b []byte) {
	for _, e := range v {
		b = b[copy(e, b):]
	}
}

// packedPlace is where a compressed cluster lies: its descriptor has the offset
// and the number of 512-byte sectors beyond the first (section "Compressed
// Clusters Descriptor").
func (l *layout) packedPlace(e uint64) (off, n int64) {
	x := 62 - (l.clusterBits - 8)
	off = int64(e & (1<<x - 1))
	sectors := int64(e>>x&(1<<(l.clusterBits-8)-1)) + 1
	return off, sectors*512 - off&511
}

// readPacked reads from a compressed cluster.
func (n *node) readPacked(rq *block.Req, e uint64, from int64, v block.Vec) error {
	if n.packed.copyOut(e, from, v) {
		return nil
	}
	b, err := n.unpack(rq, e)
	if err != nil {
		return err
	}
	copyTo(v, b[from:])
	n.packed.add(e, b)
	return nil
}

// unpack reads and decompresses a cluster.
func (n *node) unpack(rq *block.Req, e uint64) ([]byte, error) {
	off, length := n.packedPlace(e)
	if off >= n.file.Size() {
		return nil, errEntry("the compressed cluster at %d lies beyond the end of the file, which has %d bytes: repair the image (check -r all)", off, n.file.Size())
	}
	length = min(length, n.file.Size()-off)
	src, err := n.copies.take(rq)
	if err != nil {
		return nil, err
	}
	defer n.copies.put(src)
	if err := n.file.Preadv(rq, off, block.Vec{src[:length]}, 0); err != nil {
		return nil, err
	}
	b := make([]byte, n.clusterSize())
	if err := n.decode(b, src[:length]); err != nil {
		return nil, errEntry("the compressed cluster at %d does not decompress (%v): its data is lost; restore it from a backup", off, err)
	}
	return b, nil
}

// writeCompressed writes a cluster compressed: beside the last one in its host
// cluster where there is room. It is Abilities.WriteCompressed.
func (n *node) writeCompressed(rq *block.Req, off int64, v block.Vec) error {
	if err := n.writable(); err != nil {
		return err
	}
	if n.external() {
		return block.ErrNotSupported
	}
	buf, err := n.copies.take(rq)
	if err != nil {
		return err
	}
	defer n.copies.put(buf)
	plain, small := buf[:n.clusterSize()], buf[n.clusterSize():][:n.clusterSize()-1]
	clear(plain[v.Len():])
	v.CopyOut(plain[:v.Len()], 0)
	length, ok := n.encode(small, plain)
	if !ok {
		return block.ErrNotSupported
	}
	defer n.changed(off, v.Len())
	if err := n.placePacked(rq, off, small[:length]); err != nil {
		return err
	}
	return n.relieve(rq)
}

// placePacked finds room for a compressed cluster, writes it, and makes the table
// point at it.
func (n *node) placePacked(rq *block.Req, off int64, b []byte) error {
	pin := n.pins.pin(off >> n.clusterBits)
	defer n.pins.unpin(pin)
	c, host, err := n.claimPacked(rq, off, int64(len(b)))
	if err != nil {
		return err
	}
	err = n.file.Pwritev(rq, host, block.Vec{b}, 0)
	n.mu.Lock()
	defer n.mu.Unlock()
	defer n.unclaim(c)
	place := extent{off: host, n: int64(len(b))}
	if err != nil {
		n.unmapped(place)
		return err
	}
	s, err := n.ownTable(rq, off)
	if err != nil {
		n.unmapped(place)
		return err
	}
	i := off >> n.clusterBits & (n.cache.perSlice - 1)
	old := n.load(s, i)
	n.store(s, i, entry{e: n.packedEntry(host, int64(len(b)))})
	n.dropOld(old, n.opts.passSnapshot)
	return nil
}

// packedEntry describes a compressed cluster.
func (l *layout) packedEntry(host, length int64) uint64 {
	x := 62 - (l.clusterBits - 8)
	sectors := (host+length-1)>>9 - host>>9
	return entryCompressed | uint64(sectors)<<x | uint64(host)
}

// claimPacked claims the guest cluster and room for length bytes.
func (n *node) claimPacked(rq *block.Req, off, length int64) (*claim, int64, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var c *claim
	for c == nil {
		var err error
		if c, err = n.claim(rq, off, n.clusterSize()); err != nil {
			return nil, 0, err
		}
	}
	host, err := n.packedRoom(rq, length)
	if err == nil && host >= 1<<(62-(n.clusterBits-8)) {
		n.unmapped(extent{off: host, n: length})
		err = block.Errorf(syscall.EFBIG, "the image is too long for compressed clusters at %d", host)
	}
	if err != nil {
		n.unclaim(c)
	}
	return c, host, err
}

// packedRoom gives room for length bytes, less than a cluster: from what is left
// of the host cluster that compressed clusters went to last, if its refcount can
// have one more, on into the next where that is not enough, or a new one. mu is
// held.
func (n *node) packedRoom(rq *block.Req, length int64) (int64, error) {
	at := n.packedAt
	more, have := false, uint64(0)
	if at != 0 {
		var err error
		if have, err = n.count(rq, at>>n.clusterBits); err != nil {
			return 0, err
		}
		more = have > 0 && have < n.maxRefcount()
	}
	if more && n.inCluster(at)+length <= n.clusterSize() {
		n.packedUsed(at + length)
		return at, n.setCount(rq, at>>n.clusterBits, have+1)
	}
	p, err := n.allocate(rq, 1)
	if err != nil {
		return 0, err
	}
	n.guard.data.set(p.off >> n.clusterBits)
	if !more || p.off>>n.clusterBits != at>>n.clusterBits+1 {
		n.packedUsed(p.off + length)
		return p.off, nil
	}
	if err := n.setCount(rq, at>>n.clusterBits, have+1); err != nil {
		return 0, err
	}
	n.packedUsed(at + length)
	return at, nil
}

// packedUsed remembers where the next compressed cluster goes.
func (n *node) packedUsed(end int64) {
	n.packedAt = end
	if n.inCluster(end) == 0 {
		n.packedAt = 0
	}
}
