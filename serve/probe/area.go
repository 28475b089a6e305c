package probe

import (
	"errors"
	"fmt"

	"github.com/platter-storage/platter/block"
)

// area is where requests go: runs of the disk that have data.
type area struct {
	runs  []run
	holes bool // there is no data: the runs read as holes
}

type run struct{ off, n int64 }

// Bounds on looking for data.
const (
	maxRuns     = 64
	maxStatus   = 1024
	minUseful   = 1 << 20 // less data than this is no sample
	areaAlign   = 4096
	largestRead = 256 << 10
)

func (a *area) size() int64 {
	n := int64(0)
	for _, r := range a.runs {
		n += r.n
	}
	return n
}

// ErrTooSmall is wrapped where a disk has no room for a single request.
var ErrTooSmall = errors.New("the disk is too small to measure")

// findArea looks for data, because a read of a hole never reaches the device.
func findArea(env *block.Env, c *block.Child) (*area, error) {
	q := block.NewQueue(env, block.NewQueueGroup())
	defer q.Close()
	a := &area{}
	size := c.Size()
	for off, asked := int64(0), 0; off < size && asked < maxStatus && len(a.runs) < maxRuns && a.size() < maxArea; asked++ {
		rq := q.Begin()
		ext, err := c.BlockStatus(rq, off, size-off)
		q.End(rq, block.OpStatus, 0, err)
		if err != nil {
			return nil, err
		}
		if begin, end := roundUp(off), (off+ext.Len)/areaAlign*areaAlign; ext.Data && end-begin >= largestRead {
			a.runs = append(a.runs, run{begin, min(end-begin, maxArea)})
		}
		off += ext.Len
	}
	if a.size() >= min(minUseful, size/2) && a.size() > 0 {
		return a, nil
	}
	if size < areaAlign {
		return nil, fmt.Errorf("%w: %d bytes, and the least is %d", ErrTooSmall, size, areaAlign)
	}
	return &area{runs: []run{{0, min(size, maxArea) / areaAlign * areaAlign}}, holes: true}, nil
}

func roundUp(n int64) int64 { return (n + areaAlign - 1) / areaAlign * areaAlign }

// at is the offset of the i-th request of n bytes: spread over all the runs in
// an order that no readahead guesses, the same each time.
func (a *area) at(i uint64, n int64) int64 {
	x := i*0x9E3779B97F4A7C15 + 1
	x ^= x >> 29
	x *= 0xBF58476D1CE4E5B9
	x ^= x >> 32
	r := a.runs[x%uint64(len(a.runs))]
	places := uint64((r.n-n)/areaAlign) + 1
	return r.off + int64(x/uint64(len(a.runs))%places)*areaAlign
}

// holds reports whether requests of n bytes fit everywhere.
func (a *area) holds(n int64) bool {
	for _, r := range a.runs {
		if r.n < n {
			return false
		}
	}
	return true
}
