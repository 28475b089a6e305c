package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/platter-storage/platter/block"
)

// createOn makes an image on file.
func (r *run) createOn(d *block.Driver, vals block.Values, file *Disk, size int64) error {
	opts, err := d.CheckCreate(vals)
	if err != nil {
		return err
	}
	in := block.NewInstance(file, "file", r.env)
	c, err := in.NewChild("create", block.RoleRoot, block.PermAll, block.PermAll)
	if err != nil {
		return err
	}
	err = d.Create(context.Background(), &block.CreateArgs{Env: r.env, Options: opts, Size: size, File: c})
	c.Close()
	o := &opened{queue: r.queue}
	return errors.Join(err, o.do(block.OpFlush, in.Close))
}

// openOn opens the format over nodes: the file and, where there is one, the data
// file. between goes between the format and its file.
func (r *run) openOn(nodes []block.Node, vals block.Values, readOnly bool, between func(*block.Child) block.Node) (*opened, error) {
	o := &opened{queue: r.queue}
	d, err := block.FindDriver(r.Driver)
	if err != nil {
		return nil, err
	}
	names := map[string]block.Node{"file": nodes[0]}
	if len(nodes) > 1 {
		names["data-file"] = nodes[1]
	}
	if r.backing != nil {
		names["backing"] = r.backing
	}
	all := maps.Clone(vals)
	if all == nil {
		all = block.Values{}
	}
	for name := range names {
		all[name] = name
	}
	opts, err := d.Check(all)
	if err != nil {
		return nil, err
	}
	node, err := d.Open(context.Background(), &block.OpenArgs{Env: r.env, Options: opts, ReadOnly: readOnly,
		Child: func(name string, role block.Role, perm, shared block.Perm) (*block.Child, error) {
			in, err := o.attach(r.env, names[name], name, between)
			if err != nil {
				return nil, err
			}
			c, err := in.NewChild(r.Driver, role, perm, shared)
			if err == nil {
				o.edges = append(o.edges, c)
			}
			return c, err
		}})
	if err != nil {
		return nil, errors.Join(err, o.close())
	}
	o.in = block.NewInstance(node, r.Driver, r.env)
	perm := block.PermAll
	if node.Info().ReadOnly {
		perm = block.PermRead
	}
	if o.c, err = o.in.NewChild("proof", block.RoleRoot, perm, block.PermAll); err != nil {
		return nil, errors.Join(err, o.close())
	}
	return o, nil
}

// attach makes an instance of a node below the format.
func (o *opened) attach(env *block.Env, node block.Node, name string, between func(*block.Child) block.Node) (*block.Instance, error) {
	in := block.NewInstance(node, name, env)
	o.below = append(o.below, in)
	if between == nil || node.Info().ReadOnly {
		return in, nil
	}
	c, err := in.NewChild("between", block.RoleFiltered, block.PermAll, block.PermAll)
	if err != nil {
		return nil, err
	}
	o.edges = append(o.edges, c)
	in = block.NewInstance(between(c), "between", env)
	o.below = append(o.below, in)
	return in, nil
}

// close closes everything, the disks apart, which do not mind.
func (o *opened) close() error {
	var errs []error
	closing := func(in *block.Instance) {
		errs = append(errs, o.do(block.OpFlush, in.Close))
	}
	if o.c != nil {
		o.c.Close()
	}
	if o.in != nil {
		closing(o.in)
	}
	for _, c := range o.edges {
		c.Close()
	}
	for i := len(o.below) - 1; i >= 0; i-- {
		closing(o.below[i])
	}
	return errors.Join(errs...)
}

// do runs one request.
func (o *opened) do(op block.Op, f func(rq *block.Req) error) error {
	rq := o.queue.Begin()
	err := f(rq)
	o.queue.End(rq, op, 0, err)
	return err
}

// read reads all.
func (o *opened) read() ([]byte, error) {
	b := make([]byte, o.c.Size())
	err := o.do(block.OpRead, func(rq *block.Req) error { return o.c.Preadv(rq, 0, block.Vec{b}, 0) })
	return b, err
}

// errCorrupt is what a check found.
type errCorrupt struct{ s string }

func (e *errCorrupt) Error() string { return e.s }

// check runs the format's check of a state, where it has one: nothing may be
// corrupt. Leaks are counted.
func (r *run) check(file block.Node) error {
	d, err := block.FindDriver(r.Driver)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(d.Options, func(o block.Option) bool { return o.Name == "check" }) {
		return nil
	}
	vals := maps.Clone(r.Proof.Open)
	if vals == nil {
		vals = block.Values{}
	}
	vals["check"] = "on"
	o, err := r.openOn([]block.Node{file}, vals, true, nil)
	if err != nil {
		return fmt.Errorf("the image does not open for a check: %w", err)
	}
	res, told, err := o.check(0)
	if e := o.close(); err == nil {
		err = e
	}
	if err == nil && res.Corruptions+res.CheckErrors > 0 {
		err = &errCorrupt{fmt.Sprintf("%d corruptions, %d errors: %s", res.Corruptions, res.CheckErrors, strings.Join(told, "; "))}
	}
	if res.Leaks > 0 {
		r.result.Leaking++
		r.result.Leaks += res.Leaks
	}
	return err
}

// mend opens a corrupt state as its next user does, which must mend it; or
// repairs it, where that is what its user has to do.
func (r *run) mend(nodes []block.Node) error {
	vals := maps.Clone(r.Proof.Open)
	if r.Repair {
		if vals == nil {
			vals = block.Values{}
		}
		vals["check"] = "on"
	}
	n, err := r.openOn(nodes, vals, false, nil)
	if err == nil && r.Repair {
		_, _, err = n.check(block.FixErrors | block.FixLeaks)
	}
	if err == nil {
		err = n.close()
	}
	if err == nil {
		err = r.check(nodes[0])
	}
	return err
}

// check runs the ability.
func (o *opened) check(fix block.Fix) (res block.CheckResult, told []string, err error) {
	err = o.do(block.OpStatus, func(rq *block.Req) error {
		perm := block.PermRead
		if fix != 0 {
			perm = block.PermWrite
		}
		return o.c.Exclusive(rq, perm, func(a *block.Abilities) (err error) {
			res, err = a.Check(rq, block.CheckOptions{Fix: fix, Report: func(s string) {
				if len(told) < 20 {
					told = append(told, s)
				}
			}})
			return err
		})
	})
	return res, told, err
}

// deep reads the snapshots, and goes on with the image as its next user does: it
// writes, flushes, closes, and finds it sound and as it was beside.
func (r *run) deep(s *State, nodes []block.Node) error {
	r.result.Deep++
	if err := r.saved(s.At, nodes); err != nil {
		return err
	}
	n, err := r.openOn(nodes, r.Proof.Open, false, nil)
	if err != nil {
		return fmt.Errorf("the image does not open for writing: %w", err)
	}
	size := n.c.Size()
	at := r.rng.Int64N(size/Sector) * Sector
	was, err := n.read()
	b := make([]byte, min(size-at, (1+r.rng.Int64N(5))*Sector))
	if err == nil {
		content(1<<41).fill(b, at/Sector)
		copy(was[at:], b)
		err = n.do(block.OpWrite, func(rq *block.Req) error { return n.c.Pwritev(rq, at, block.Vec{b}, 0) })
	}
	if err == nil && r.rng.IntN(2) == 0 {
		err = n.do(block.OpFlush, n.c.Flush)
	}
	if e := n.close(); err == nil {
		err = e
	}
	if err == nil {
		err = r.check(nodes[0])
	}
	if err != nil {
		return fmt.Errorf("a write of %d bytes at %d after it: %w", len(b), at, err)
	}
	return r.same(nodes, r.Proof.Open, was)
}

// same opens the image and compares all of it.
func (r *run) same(nodes []block.Node, vals block.Values, want []byte) error {
	n, err := r.openOn(nodes, vals, true, nil)
	if err != nil {
		return err
	}
	got, err := n.read()
	if e := n.close(); err == nil {
		err = e
	}
	if err == nil && string(got) != string(want) {
		err = errors.New("what is read is not what was written after it")
	}
	return err
}
