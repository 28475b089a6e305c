// Package blocktest is what tests use to put any node to the proof: an
// in-memory node with any limits that asserts them (Emulator), the conformance
// suite (Run), a model test with concurrent random operations (Model), and the
// few lines that open nodes without a graph.
package blocktest

import (
	"context"
	"io"
	"log/slog"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/bufpool"
	"github.com/platter-storage/platter/internal/realenv"
)

// NewEnv makes an environment for one test. Buffers that the test's requests
// leave in use when it ends fail it.
func NewEnv(t testing.TB) *block.Env { return NewEnvLimit(t, 0) }

// NewEnvLimit is NewEnv with at most bufLimit bytes of bounce buffers.
func NewEnvLimit(t testing.TB, bufLimit int64) *block.Env {
	t.Helper()
	return closeLater(t, realenv.New(slog.New(slog.NewTextHandler(io.Discard, nil)), bufLimit))
}

// NewEnvAligned is NewEnv with buffers aligned to align, as on a system with
// such pages.
func NewEnvAligned(t testing.TB, align int) *block.Env {
	t.Helper()
	env := NewEnv(t)
	if err := env.CloseBuffers(); err != nil {
		t.Fatal(err)
	}
	env.Buffers = bufpool.New(bufpool.Config{Align: align})
	return env
}

func closeLater(t testing.TB, env *block.Env) *block.Env {
	t.Cleanup(func() {
		if n := env.Buffers.Stats().InUse; n != 0 {
			t.Errorf("%d bytes of buffers are still in use at the end of the test", n)
			return
		}
		if err := env.CloseBuffers(); err != nil {
			t.Errorf("closing the buffer pool: %v", err)
		}
	})
	return env
}

// Open opens a node of a registered driver. children are the instances under
// the options that are nodes. Everything is closed at the end of the test.
func Open(t testing.TB, env *block.Env, vals block.Values, children map[string]*block.Instance) *block.Instance {
	t.Helper()
	in, err := TryOpen(t, env, vals, children, false)
	if err != nil {
		t.Fatalf("opening %s: %v", vals, err)
	}
	return in
}

// TryOpen is Open for nodes that may refuse.
func TryOpen(t testing.TB, env *block.Env, vals block.Values, children map[string]*block.Instance, readOnly bool) (*block.Instance, error) {
	t.Helper()
	d, err := block.FindDriver(vals["driver"])
	if err != nil {
		return nil, err
	}
	all := block.Values{}
	for k, x := range vals {
		all[k] = x
	}
	for k, in := range children {
		all[k] = in.Name()
	}
	opts, err := d.Check(all)
	if err != nil {
		return nil, err
	}
	var edges []*block.Child
	node, err := d.Open(context.Background(), &block.OpenArgs{Env: env, Options: opts, ReadOnly: readOnly,
		Child: func(name string, role block.Role, perm, shared block.Perm) (*block.Child, error) {
			c, err := children[name].NewChild(d.Name, role, perm, shared)
			if err == nil {
				edges = append(edges, c)
			}
			return c, err
		}})
	if err != nil {
		for _, c := range edges {
			c.Close()
		}
		return nil, err
	}
	return attach(t, env, node, d.Name, edges), nil
}

// Attach makes an instance of node, closed at the end of the test.
func Attach(t testing.TB, env *block.Env, node block.Node, name string) *block.Instance {
	t.Helper()
	return attach(t, env, node, name, nil)
}

func attach(t testing.TB, env *block.Env, node block.Node, name string, edges []*block.Child) *block.Instance {
	in := block.NewInstance(node, name, env)
	t.Cleanup(func() {
		q := block.NewQueue(env, block.NewQueueGroup())
		rq := q.Begin()
		err := in.Close(rq)
		q.End(rq, block.OpFlush, 0, err)
		if err != nil {
			t.Errorf("closing %s: %v", name, err)
		}
		for _, c := range edges {
			c.Close()
		}
	})
	return in
}

// Edge makes an edge to in that may do everything the node allows, closed at
// the end of the test.
func Edge(t testing.TB, in *block.Instance) *block.Child {
	t.Helper()
	perm := block.PermAll
	if in.Info().ReadOnly {
		perm = block.PermRead
	}
	c, err := in.NewChild("test", block.RoleRoot, perm, block.PermAll)
	if err != nil {
		t.Fatalf("edge to %s: %v", in.Name(), err)
	}
	t.Cleanup(c.Close)
	return c
}
