package qcow2

import (
	"github.com/platter-storage/platter/block"
)

// Preadv reads run by run: from the data file, from the backing file, zeroes, or
// what is decompressed.
func (n *node) Preadv(rq *block.Req, off int64, v block.Vec, _ block.Flags) error {
	pin := n.pins.pin(off >> n.clusterBits)
	defer n.pins.unpin(pin)
	return n.read(rq, off, v)
}

// read is Preadv for who has pinned.
func (n *node) read(rq *block.Req, off int64, v block.Vec) error {
	length := v.Len()
	var part block.Vec
	for at := int64(0); at < length; {
		r, err := n.locate(rq, off+at, length-at)
		if err != nil {
			return err
		}
		sub := v
		if r.n != length {
			part = v.AppendRange(part[:0], at, r.n)
			sub = part
		}
		if err := n.readRun(rq, r, off+at, sub); err != nil {
			return err
		}
		at += r.n
	}
	return nil
}

func (n *node) readRun(rq *block.Req, r run, off int64, v block.Vec) error {
	switch r.kind {
	case stored:
		return n.readStored(rq, r.host, v)
	case packed:
		return n.readPacked(rq, r.entry.e, n.inCluster(off), v)
	case absent:
		if n.backing != nil {
			return n.readBacking(rq, off, v)
		}
	}
	v.Zero(0, r.n)
	return nil
}

// readStored reads from the data file, which may end before its last cluster
// does.
func (n *node) readStored(rq *block.Req, host int64, v block.Vec) error {
	length := v.Len()
	have := min(max(n.data.Size()-host, 0), length)
	if have < length {
		v.Zero(have, length-have)
		if have == 0 {
			return nil
		}
		v = v.AppendRange(nil, 0, have)
	}
	return n.data.Preadv(rq, host, v, 0)
}

// readBacking reads what this image does not have; behind the end of the backing
// file are zeroes.
func (n *node) readBacking(rq *block.Req, off int64, v block.Vec) error {
	length := v.Len()
	have := min(max(n.backing.Size()-off, 0), length)
	if have < length {
		v.Zero(have, length-have)
		if have == 0 {
			return nil
		}
		v = v.AppendRange(nil, 0, have)
	}
	return n.backing.Preadv(rq, off, v, 0)
}
