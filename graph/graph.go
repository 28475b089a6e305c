// Package graph keeps the opened nodes of a program: it opens them from option
// values through the driver registry, names them, connects them, and closes
// them when their last user has gone. It knows no driver.
package graph

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// MaxNodes bounds the nodes of one graph, MaxDepth how many stand on each other:
// a chain of 200 backing files, their files and some filters.
const (
	MaxNodes = 4096
	MaxDepth = 224
)

// Graph is a set of named nodes.
type Graph struct {
	env  *block.Env
	jobs *block.Queue // lends request objects for drain and close

	mu    sync.Mutex
	nodes map[string]*node
	next  int
}

// node is an instance with the edges it holds to nodes below it.
type node struct {
	inst *block.Instance
	// children in the order of opening.
	children []*block.Child
	// pinned nodes stay open without users until Graph.Close or Remove.
	pinned bool
}

// New makes an empty graph.
func New(env *block.Env) *Graph {
	return &Graph{env: env, jobs: block.NewQueue(env, block.NewQueueGroup()), nodes: map[string]*node{}}
}

// Env is what the graph's nodes run in.
func (g *Graph) Env() *block.Env { return g.env }

// nodeName is the form of names that users may give, as in the reference.
var nodeName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9\-._]{0,30}$`)

// Add opens the node that vals describe, with all nodes below it, and keeps it
// open until Remove or Close. The option node-name names it.
func (g *Graph) Add(ctx context.Context, vals block.Values, readOnly bool) (*block.Instance, error) {
	n, err := g.open(ctx, vals, readOnly, true, 0)
	if err != nil {
		return nil, err
	}
	return n.inst, nil
}

// Find is the node called name, or nil.
func (g *Graph) Find(name string) *block.Instance {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.nodes[name]; n != nil {
		return n.inst
	}
	return nil
}

// Nodes lists all instances.
func (g *Graph) Nodes() []*block.Instance {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []*block.Instance
	for _, n := range g.nodes {
		all = append(all, n.inst)
	}
	return all
}

// open opens one node; depth counts the nodes above it.
func (g *Graph) open(ctx context.Context, vals block.Values, readOnly, pinned bool, depth int) (*node, error) {
	if depth > MaxDepth {
		return nil, block.Errorf(syscall.EINVAL, "nodes are nested deeper than %d: a chain of backing files that is as long, or ends in itself, is not opened", MaxDepth)
	}
	d, err := block.FindDriver(vals["driver"])
	if err != nil {
		return nil, err
	}
	opts, err := d.Check(vals)
	if err != nil {
		return nil, err
	}
	n := &node{pinned: pinned}
	name, err := g.reserve(vals["node-name"], n)
	if err != nil {
		return nil, err
	}
	bn, err := d.Open(ctx, &block.OpenArgs{Env: g.env, Options: opts, ReadOnly: readOnly,
		Child: func(child string, role block.Role, perm, shared block.Perm) (*block.Child, error) {
			return g.child(ctx, n, name, vals, child, role, perm, shared, readOnly || role == block.RoleBacking, depth)
		},
		Below: func(child string, sub block.Values, readOnly bool, role block.Role, perm, shared block.Perm) (*block.Child, error) {
			return g.below(ctx, n, name, child, sub, role, perm, shared, readOnly, depth)
		}})
	if err != nil {
		g.mu.Lock()
		delete(g.nodes, name)
		g.mu.Unlock()
		return nil, errors.Join(err, g.dropChildren(n))
	}
	inst := block.NewInstance(bn, name, g.env)
	g.mu.Lock()
	n.inst = inst
	g.mu.Unlock()
	return n, nil
}

// reserve enters n under the wanted name, or one that is made up.
func (g *Graph) reserve(want string, n *node) (string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.nodes) >= MaxNodes {
		return "", block.Errorf(syscall.ENOSPC, "there are %d nodes already, the most that one program keeps", MaxNodes)
	}
	if want == "" {
		g.next++
		want = "#node" + strconv.Itoa(g.next)
	} else if !nodeName.MatchString(want) {
		return "", block.Errorf(syscall.EINVAL, "%q is not a node name: a letter, then up to 30 letters, digits, '-', '.' or '_'", want)
	}
	if g.nodes[want] != nil {
		return "", block.Errorf(syscall.EEXIST, "a node is called %q already", want)
	}
	g.nodes[want] = n
	return want, nil
}

// child makes the edge from parent to the node that option names: opened from
// nested options, or found by its node name.
func (g *Graph) child(ctx context.Context, parent *node, parentName string, vals block.Values, option string,
	role block.Role, perm, shared block.Perm, readOnly bool, depth int) (*block.Child, error) {
	var inst *block.Instance
	if ref, ok := vals[option]; ok {
		if inst = g.Find(ref); inst == nil {
			return nil, block.Errorf(syscall.ENOENT, "option %s: there is no node called %q (for a file write %s.filename=%s)", option, ref, option, ref)
		}
	} else {
		sub := vals.Sub(option)
		if sub == nil {
			return nil, block.Errorf(syscall.EINVAL, "option %s is missing: name a node, or describe one with %s.driver=…", option, option)
		}
		return g.below(ctx, parent, parentName, option, sub, role, perm, shared, readOnly, depth)
	}
	return g.connect(parent, parentName, inst, role, perm, shared)
}

// below opens the node that sub describes and makes the edge to it. The format is
// probed where sub has none, which only drivers leave out.
func (g *Graph) below(ctx context.Context, parent *node, parentName, option string, sub block.Values,
	role block.Role, perm, shared block.Perm, readOnly bool, depth int) (*block.Child, error) {
	if sub["driver"] == "" && sub["file.driver"] != "" && readOnly {
		format, err := g.probe(ctx, sub.Sub("file"))
		if err != nil {
			return nil, err
		}
		sub["driver"] = format
	}
	n, err := g.open(ctx, sub, readOnly, sub["node-name"] != "", depth+1)
	if err != nil {
		if option == "file" || depth > 0 {
			return nil, err // the file's own name says more
		}
		return nil, fmt.Errorf("%s: %w", option, err)
	}
	return g.connect(parent, parentName, n.inst, role, perm, shared)
}

// connect makes the edge from parent to inst.
func (g *Graph) connect(parent *node, parentName string, inst *block.Instance, role block.Role, perm, shared block.Perm) (*block.Child, error) {
	c, err := inst.NewChild(parentName, role, perm, shared)
	if err != nil {
		return nil, errors.Join(err, g.release(inst.Name()))
	}
	parent.children = append(parent.children, c)
	return c, nil
}

// dropChildren closes n's edges downwards and the nodes that only they held.
func (g *Graph) dropChildren(n *node) error {
	var errs []error
	for _, c := range n.children {
		c.Close()
		errs = append(errs, g.release(c.Instance().Name()))
	}
	n.children = nil
	return errors.Join(errs...)
}

// release closes the node called name unless somebody uses or pinned it.
func (g *Graph) release(name string) error {
	g.mu.Lock()
	n := g.nodes[name]
	if n == nil || n.inst == nil || n.pinned || n.inst.Edges() > 0 {
		g.mu.Unlock()
		return nil
	}
	delete(g.nodes, name)
	g.mu.Unlock()
	return g.closeNode(n)
}

func (g *Graph) closeNode(n *node) error {
	rq := g.jobs.Begin()
	err := n.inst.Close(rq)
	g.jobs.End(rq, block.OpFlush, 0, nil)
	return errors.Join(err, g.dropChildren(n))
}

// Remove closes the node called name, and those below it that nobody else
// uses. It fails while the node is in use.
func (g *Graph) Remove(name string) error {
	g.mu.Lock()
	n := g.nodes[name]
	switch {
	case n == nil || n.inst == nil:
		g.mu.Unlock()
		return block.Errorf(syscall.ENOENT, "there is no node called %q", name)
	case n.inst.Edges() > 0:
		g.mu.Unlock()
		return block.Errorf(syscall.EBUSY, "node %q is in use", name)
	}
	delete(g.nodes, name)
	g.mu.Unlock()
	return g.closeNode(n)
}

// Close closes every node, users first. Edges from outside must be closed.
func (g *Graph) Close() error {
	var errs []error
	for {
		name := g.idle()
		if name == "" {
			break
		}
		errs = append(errs, g.Remove(name))
	}
	if left := len(g.Nodes()); left > 0 {
		errs = append(errs, block.Errorf(syscall.EBUSY, "%d nodes are still in use", left))
	}
	return errors.Join(errs...)
}

// idle names a node without users, or "".
func (g *Graph) idle() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, n := range g.nodes {
		if n.inst != nil && n.inst.Edges() == 0 {
			return name
		}
	}
	return ""
}
