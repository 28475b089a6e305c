package block

// Vec is a scatter-gather list, in order. Elements may point into guest memory
// or into memory of our own; zero-length elements are allowed and carry
// nothing.
type Vec [][]byte

// Len is the sum of the elements' lengths in bytes.
func (v Vec) Len() int64 {
	var n int64
	for _, e := range v {
		n += int64(len(e))
	}
	return n
}

// AppendRange appends to dst the elements that cover bytes [from, from+n) of v
// and returns it. The bytes are shared, not copied. The range must lie in v.
func (v Vec) AppendRange(dst Vec, from, n int64) Vec {
	for _, e := range v {
		if n == 0 {
			break
		}
		l := int64(len(e))
		if from >= l {
			from -= l
			continue
		}
		take := min(l-from, n)
		dst = append(dst, e[from:from+take:from+take])
		from, n = 0, n-take
	}
	return dst
}

// CopyOut copies bytes [from, from+len(dst)) of v into dst.
func (v Vec) CopyOut(dst []byte, from int64) {
	for _, e := range v {
		if len(dst) == 0 {
			return
		}
		if from >= int64(len(e)) {
			from -= int64(len(e))
			continue
		}
		k := copy(dst, e[from:])
		dst, from = dst[k:], 0
	}
}

// CopyIn copies src over bytes [from, from+len(src)) of v.
func (v Vec) CopyIn(src []byte, from int64) {
	for _, e := range v {
		if len(src) == 0 {
			return
		}
		if from >= int64(len(e)) {
			from -= int64(len(e))
			continue
		}
		k := copy(e[from:], src)
		src, from = src[k:], 0
	}
}

// Zero clears bytes [from, from+n) of v.
func (v Vec) Zero(from, n int64) {
	for _, e := range v {
		if n <= 0 {
			return
		}
		l := int64(len(e))
		if from >= l {
			from -= l
			continue
		}
		k := min(l-from, n)
		clear(e[from : from+k])
		from, n = 0, n-k
	}
}
