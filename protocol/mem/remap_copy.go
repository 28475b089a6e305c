//go:build !linux

package mem

// giveBack does nothing: what the calls of this system promise is not that the
// memory reads as zeroes afterwards.
func giveBack([]byte) bool { return false }

// remap copies what was ever written to a longer mapping.
func (n *node) remap(length int) ([]byte, error) {
	mem, err := mapMemory(length)
	if err != nil {
		return nil, err
	}
	for off, end := int64(0), int64(len(n.mem)); off < end; {
		run, touched := n.touched.run(off, end)
		if touched {
			copy(mem[off:off+run], n.mem[off:])
		}
		off += run
	}
	return mem, unmapMemory(n.mem)
}
