package qcow2

import "github.com/platter-storage/platter/block"

// BlockStatus describes the run at off, over as many clusters as are alike.
func (n *node) BlockStatus(rq *block.Req, off, length int64) (block.Extent, error) {
	pin := n.pins.pin(off >> n.clusterBits)
	defer n.pins.unpin(pin)
	r, err := n.locate(rq, off, length)
	if err != nil {
		return block.Extent{}, err
	}
	total := r.n
	for looked := 0; total < length && looked < statusRuns; looked++ {
		next, err := n.locate(rq, off+total, length-total)
		if err != nil {
			break // a later question meets it
		}
		if next.kind != r.kind || r.kind == stored && next.host != r.host+total {
			break
		}
		total += next.n
	}
	return n.extentOf(rq, r, off, total)
}

// statusRuns bounds the work of one question.
const statusRuns = 4096

func (n *node) extentOf(rq *block.Req, r run, off, total int64) (block.Extent, error) {
	x := block.Extent{Len: total, Allocated: true, Host: -1, EOF: off+total == n.info.Size()}
	switch r.kind {
	case stored:
		x.Data, x.Host, x.HostFile = true, r.host, n.data.Info().Filename
	case packed:
		x.Data, x.Compressed = true, true
	case zeroes:
		x.Zero = true
	default:
		return n.statusBelow(rq, off, total, x.EOF)
	}
	return x, nil
}

// statusBelow is what the backing file says, or zeroes where there is none.
func (n *node) statusBelow(rq *block.Req, off, total int64, eof bool) (block.Extent, error) {
	if n.backing == nil || off >= n.backing.Size() {
		return block.Extent{Len: total, Zero: true, Host: -1, EOF: eof}, nil
	}
	total = min(total, n.backing.Size()-off)
	x, err := n.backing.BlockStatus(rq, off, total)
	x.Len = min(x.Len, total)
	x.Depth++
	x.Allocated = false
	x.EOF = off+x.Len == n.info.Size()
	return x, err
}
