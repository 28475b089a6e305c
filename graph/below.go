package graph

import "github.com/platter-storage/platter/block"

// Below lists the nodes that the node called name stands on, itself first, each
// before its own children, a node with several users once: what a description
// of the disk shows.
func (g *Graph) Below(name string) []*block.Instance {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []*block.Instance
	seen := map[string]bool{}
	var visit func(name string)
	visit = func(name string) {
		n := g.nodes[name]
		if n == nil || n.inst == nil || seen[name] {
			return
		}
		seen[name] = true
		all = append(all, n.inst)
		for _, c := range n.children {
			visit(c.Instance().Name())
		}
	}
	visit(name)
	return all
}
