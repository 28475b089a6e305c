package graph

import (
	"context"
	"errors"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/magic"
)

// probe is the name of the format that the file described by vals begins like,
// raw where it looks like none. What looks like a format that there is no driver
// for is that format: opening it says so.
func (g *Graph) probe(ctx context.Context, vals block.Values) (string, error) {
	n, err := g.open(ctx, vals, true, false, 0)
	if err != nil {
		return "", err
	}
	head, err := g.readHead(n.inst)
	if err := errors.Join(err, g.release(n.inst.Name())); err != nil {
		return "", err
	}
	if d, score := block.Probe(head, vals["filename"]); d != nil && score > 0 {
		return d.Name, nil
	}
	if format := magic.Find(head); format != "" {
		return format, nil
	}
	return "raw", nil
}

// readHead reads the beginning of a node.
func (g *Graph) readHead(inst *block.Instance) ([]byte, error) {
	c, err := inst.NewChild("format detection", block.RoleRoot, block.PermRead, block.PermAll)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	head := make([]byte, min(block.ProbeHead, c.Size()))
	rq := g.jobs.Begin()
	err = c.Preadv(rq, 0, block.Vec{head}, 0)
	g.jobs.End(rq, block.OpRead, int64(len(head)), err)
	return head, err
}

// Looks is the format that a file's beginning looks like and that no driver here
// is for, or empty.
func Looks(head []byte) string { return magic.Find(head) }
