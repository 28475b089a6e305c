package qcow2

import "sync/atomic"

// pins holds back the reuse of host clusters: a request that has looked up where
// its data lies must not find another's there. A request pins before it looks;
// an extent that was unmapped in generation g is free for others in generation
// g+2, when everybody who may have looked before has unpinned.
type pins struct {
	gen    atomic.Uint64
	counts [2][pinShards]pinCount
}

// pinShards spreads the counters over cache lines by guest offset.
const pinShards = 8

type pinCount struct {
	n atomic.Int64
	_ [56]byte
}

// pin counts a request at a guest offset in; the result goes to unpin.
func (p *pins) pin(cluster int64) uint64 {
	c := p.gen.Load()&1<<3 | uint64(cluster)&(pinShards-1)
	p.counts[c>>3][c&7].n.Add(1)
	return c
}

func (p *pins) unpin(c uint64) { p.counts[c>>3][c&7].n.Add(-1) }

// advance begins the next generation if nobody from before the last is left.
func (p *pins) advance() bool {
	g := p.gen.Load()
	old := &p.counts[(g+1)&1]
	for i := range old {
		if old[i].n.Load() != 0 {
			return false
		}
	}
	return p.gen.CompareAndSwap(g, g+1)
}
