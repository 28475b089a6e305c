package lint

import (
	"path"
	"slices"
	"strings"
)

// importRule says what packages may not import. Packages of this module are
// written relative to it, "." being the front door; a pattern ending in /...
// means a folder and all below, and * stands for one element.
type importRule struct {
	of     []string
	except []string
	only   []string // all that may be imported directly, beside the standard library
	never  []string // not to be reached, directly or through other packages
	direct []string // not to be imported directly
	why    string
}

var (
	drivers   = []string{"protocol/*/...", "format/*/...", "filter/*/..."}
	allImport = []string{"protocol/all", "format/all", "filter/all"}
	upper     = []string{".", "graph/...", "export/...", "job/...", "image/...", "serve/...", "api/...", "cmd/...", "queue/..."}

	aboveBlock = append([]string{"engine/...", "wire/...", "virtio/...", "protocol/...", "format/...", "filter/..."}, upper...)
)

var importRules = []importRule{
	{
		of: []string{"block/..."}, except: []string{"block/blocktest/..."},
		only: []string{"block/...", "internal/..."},
		why:  "block is the waist: everything imports it, so it knows nobody but internal",
	},
	{
		of:   []string{"block/blocktest/..."},
		only: []string{"block/...", "internal/...", "pgregory.net/rapid", "github.com/google/go-cmp/..."},
		why:  "the conformance suite must run on any node, so it knows none",
	},
	{
		of: drivers, except: allImport,
		never: append(slices.Clone(drivers), upper...),
		why:   "a driver knows block and internal; it never knows another driver, nor who uses it: reach a child through the block.Child it was given",
	},
	{
		of: drivers, except: append(slices.Clone(allImport), "protocol/file/..."),
		never: []string{"engine/..."},
		why:   "files are read and written by protocol/file alone",
	},
	{
		of: []string{"format/*/...", "filter/*/..."}, except: allImport,
		never: []string{"wire/...", "virtio/..."},
		why:   "a format or filter works on children, not on the network or a guest",
	},
	{
		of:   []string{"graph/..."},
		only: []string{"block/...", "graph/...", "internal/..."},
		why:  "the graph handles nodes through block and knows no driver",
	},
	{
		of:    []string{"job/...", "image/..."},
		never: append(slices.Clone(drivers), "engine/...", "export/...", "serve/...", "api/...", "cmd/...", "."),
		why:   "jobs and image operations work on any node: the caller's registry has the drivers",
	},
	{
		of:    []string{"export/..."},
		never: append(slices.Clone(drivers), "job/...", "image/...", "serve/...", "api/...", "cmd/...", "."),
		why:   "an export offers any node and owns no policy",
	},
	{
		of:     []string{"serve/...", "api/...", "queue/..."},
		direct: drivers,
		why:    "only the all packages, the front door and cmd import drivers",
	},
	{
		of:    []string{"api/..."},
		never: []string{"block/...", "engine/...", "graph/...", "export/...", "serve/...", "queue/...", "cmd/..."},
		why:   "HTTP knows nothing of disks: what there is to ask for comes to it as routes",
	},
	{
		of:     []string{"virtio/..."},
		never:  []string{"block/...", "engine/...", "queue/...", "internal/sys/...", "golang.org/x/sys/..."},
		direct: []string{"os", "os/...", "net", "net/...", "syscall"},
		why:    "virtio does no I/O and no system call, so that it is fuzzed without a kernel",
	},
	{
		of:   []string{"wire/..."},
		only: []string{"wire/...", "internal/...", "virtio/..."},
		why:  "messages are shared by client and server and do nothing else",
	},
	{
		of:   []string{"engine/..."},
		only: []string{"engine/...", "internal/...", "golang.org/x/sys/..."},
		why:  "an engine carries requests to the kernel and does not know what they are for",
	},
	{
		of: []string{"internal/..."}, except: []string{"internal/testutil/...", "internal/realenv", "internal/ratelimit"},
		never: append([]string{"block/..."}, aboveBlock...),
		why:   "internal is below everything",
	},
	{
		of:    []string{"internal/realenv", "internal/ratelimit"},
		never: aboveBlock,
		why:   "they make a block.Env and limit its requests; for the rest, internal is below everything",
	},
	{
		of:    []string{"cmd/..."},
		never: []string{"testing", "pgregory.net/rapid", "github.com/google/go-cmp/...", "block/blocktest/...", "internal/testutil/..."},
		why:   "what only tests need stays out of the program",
	},
	{
		of: []string{"..."}, except: []string{"cmd/..."},
		never: []string{"github.com/spf13/..."},
		why:   "commands are thin and live in cmd",
	},
	{
		of:    []string{"..."},
		never: []string{"C"},
		why:   "there is no cgo in the default build: the binary is static",
	},
}

// Package is what `go list -json` says of one.
type Package struct {
	ImportPath string
	Name       string
	Dir        string
	Standard   bool
	Imports    []string
	Error      *struct{ Err string }
}

// CheckImports holds the packages against the rules.
func CheckImports(packages []Package) []Finding {
	byPath := make(map[string]Package, len(packages))
	for _, p := range packages {
		byPath[p.ImportPath] = p
	}
	var out []Finding
	for _, p := range packages {
		if !ours(p.ImportPath) {
			continue
		}
		for _, r := range importRules {
			if matchAny(r.of, relative(p.ImportPath)) && !matchAny(r.except, relative(p.ImportPath)) {
				out = append(out, r.check(p, byPath)...)
			}
		}
	}
	return sortFindings(out)
}

func (r importRule) check(p Package, byPath map[string]Package) []Finding {
	var out []Finding
	bad := func(chain ...string) {
		for i, c := range chain {
			chain[i] = relative(c)
		}
		out = append(out, Finding{File: relative(p.ImportPath), Msg: "must not import " + strings.Join(chain, ", which imports ") + ": " + r.why})
	}
	for _, imp := range p.Imports {
		name := relative(imp)
		if sameFolder(relative(p.ImportPath), name) {
			continue
		}
		// An import of cgo shows as a package of the standard library.
		standard := byPath[imp].Standard
		if r.only != nil && !standard && !matchAny(r.only, name) || matchAny(r.direct, name) {
			bad(imp)
		}
	}
	for _, chain := range reach(p, byPath) {
		last := relative(chain[len(chain)-1])
		if matchAny(r.never, last) && !sameFolder(relative(p.ImportPath), last) {
			bad(chain...)
		}
	}
	return out
}

// reach returns, for each package that p reaches through code outside the
// standard library, the shortest chain of imports to it, p itself left out.
func reach(p Package, byPath map[string]Package) [][]string {
	var chains [][]string
	seen := map[string]bool{p.ImportPath: true}
	type step struct {
		pkg   Package
		chain []string
	}
	for queue := []step{{pkg: p}}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		for _, imp := range at.pkg.Imports {
			if seen[imp] {
				continue
			}
			seen[imp] = true
			chain := append(slices.Clone(at.chain), imp)
			chains = append(chains, chain)
			if next, ok := byPath[imp]; ok && !next.Standard {
				queue = append(queue, step{next, chain})
			}
		}
	}
	return chains
}

func ours(importPath string) bool { return underAny(importPath, module) }

// relative is the path of a package of this module within it, and any other
// import path as it is.
func relative(importPath string) string {
	if importPath == module {
		return "."
	}
	return strings.TrimPrefix(importPath, module+"/")
}

// sameFolder reports whether two packages are of one driver or one part: they
// share their first two elements.
func sameFolder(a, b string) bool {
	first := func(s string) string {
		parts := strings.SplitN(s, "/", 3)
		return path.Join(parts[:min(2, len(parts))]...)
	}
	return first(a) == first(b)
}

func matchAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return match(p, name) })
}

func match(pattern, name string) bool {
	if pattern == "..." {
		return true
	}
	base, below := strings.CutSuffix(pattern, "/...")
	parts := strings.Split(name, "/")
	if depth := strings.Count(base, "/") + 1; below && len(parts) > depth {
		name = strings.Join(parts[:depth], "/")
	}
	ok, err := path.Match(base, name)
	return err == nil && ok
}
