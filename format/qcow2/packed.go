package qcow2

import (
	"sync"

	"github.com/platter-storage/platter/block"
)

// packedCache has the clusters that were decompressed last: a guest that reads a
// compressed cluster in small parts has it decompressed once.
type packedCache struct {
	mu   sync.Mutex
	have [packedKept]unpacked
	next int
	era  uint64 // clusters decompressed in an earlier era are not kept
}

// packedKept is how many clusters an image keeps decompressed.
const packedKept = 4

type unpacked struct {
	entry uint64
	b     []byte
}

// forget drops all: compressed clusters have been unmapped, and their places may
// be another's soon.
func (c *packedCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.have = [packedKept]unpacked{}
	c.era++
}

// copyOut copies from a cluster that is there.
func (c *packedCache) copyOut(entry uint64, from int64, v block.Vec) (ok bool, era uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.have {
		if u := &c.have[i]; u.b != nil && u.entry == entry {
			copyTo(v, u.b[from:])
			return true, c.era
		}
	}
	return false, c.era
}

// add takes a cluster and gives back the one that it replaces, if any.
func (c *packedCache) add(entry uint64, b []byte, era uint64) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if era != c.era {
		return b
	}
	old := c.have[c.next].b
	c.have[c.next] = unpacked{entry, b}
	c.next = (c.next + 1) % packedKept
	return old
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
	ok, era := n.packed.copyOut(e, from, v)
	if ok {
		return nil
	}
	b, err := n.unpack(rq, e)
	if err != nil {
		return err
	}
	copyTo(v, b[from:])
	n.packed.add(e, b, era)
	return nil
}

// unpack reads and decompresses a cluster.
func (n *node) unpack(rq *block.Req, e uint64) ([]byte, error) {
	off, length := n.packedPlace(e)
	if off >= n.file.Size() {
		return nil, errEntry("the compressed cluster at %d lies beyond the end of the file, which has %d bytes: repair the image (check -r all)", off, n.file.Size())
	}
	length = min(length, n.file.Size()-off)
	src, err := n.copies.take(rq, length)
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
