package lint

import (
	"go/ast"
	"regexp"
	"slices"
)

// deterministic lists the folders whose code takes time, chance and
// concurrency from block.Env. The real world's is made in internal/realenv.
var deterministic = []string{"block", "graph", "format", "filter", "job"}

// outsideDeterminism lists what in those folders is exempt, and why.
var outsideDeterminism = []struct{ name, why string }{
	{"block/blocktest", "contends on purpose, and only in tests"},
}

// taken lists, for a package, what takes from the world. Deadlines of a
// context are the clock by another name.
var taken = map[string]*regexp.Regexp{
	"time":    regexp.MustCompile(`^(Now|Since|Until|Sleep|After|AfterFunc|NewTimer|NewTicker|Tick)$`),
	"context": regexp.MustCompile(`^With(Timeout|Deadline)(Cause)?$`),
}

// givenRand matches what of math/rand and math/rand/v2 works on a source that
// the caller gives; every other function uses the global one.
var givenRand = regexp.MustCompile(`^(New.*|Rand|Source|Source64|PCG|ChaCha8|Zipf)$`)

// Determinism forbids taking time, chance or a goroutine from the world.
func Determinism(f *File) []Finding {
	if f.Test() || !underAny(f.Path, deterministic...) {
		return nil
	}
	for _, o := range outsideDeterminism {
		if underAny(f.Path, o.name) {
			return nil
		}
	}
	return append(clockAndChance(f), goroutines(f)...)
}

func clockAndChance(f *File) []Finding {
	var out []Finding
	f.uses(func(sel *ast.SelectorExpr, pkg string) {
		name := sel.Sel.Name
		if re := taken[pkg]; re != nil && re.MatchString(name) {
			out = append(out, f.finding(sel.Pos(), "uses %s.%s: time is given by block.Env (Now, After), so that a simulation can give its own", pkg, name))
		}
		if slices.Contains([]string{"math/rand", "math/rand/v2"}, pkg) && !givenRand.MatchString(name) {
			out = append(out, f.finding(sel.Pos(), "uses the global rand.%s: chance is given by block.Env (Rand), so that a failure can be played again from its seed", name))
		}
	})
	for _, spec := range f.AST.Imports {
		if spec.Name != nil && spec.Name.Name == "." {
			out = append(out, f.finding(spec.Pos(), "imports %s by dot: what it takes from the world could not be seen", importPath(spec)))
		}
	}
	return out
}

func goroutines(f *File) []Finding {
	const advice = "goroutines are started through block.Env (Go), so that a simulation can order them"
	groups := waitGroups(f)
	var out []Finding
	ast.Inspect(f.AST, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			out = append(out, f.finding(n.Pos(), "starts a goroutine with go: %s", advice))
		case *ast.CallExpr:
			if sel, ok := n.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Go" && groups[lastName(sel.X)] {
				out = append(out, f.finding(n.Pos(), "starts a goroutine with WaitGroup.Go: %s", advice))
			}
		}
		return true
	})
	for _, spec := range f.AST.Imports {
		if importPath(spec) == "golang.org/x/sync/errgroup" {
			out = append(out, f.finding(spec.Pos(), "imports errgroup: %s", advice))
		}
	}
	return out
}

// waitGroups collects the names that the file declares as a sync.WaitGroup:
// variables, fields and parameters.
func waitGroups(f *File) map[string]bool {
	syncName := ""
	for name, p := range f.imported() {
		if p == "sync" {
			syncName = name
		}
	}
	groups := make(map[string]bool)
	declare := func(names []*ast.Ident, typ ast.Expr) {
		if star, ok := typ.(*ast.StarExpr); ok {
			typ = star.X
		}
		sel, ok := typ.(*ast.SelectorExpr)
		if !ok || sel.Sel.Name != "WaitGroup" || lastName(sel.X) != syncName {
			return
		}
		for _, n := range names {
			groups[n.Name] = true
		}
		if len(names) == 0 {
			groups["WaitGroup"] = true // embedded
		}
	}
	ast.Inspect(f.AST, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			declare(n.Names, n.Type)
		case *ast.ValueSpec:
			declare(n.Names, n.Type)
		}
		return true
	})
	return groups
}

// lastName is the last identifier of a chain of selectors: c of a.b.c.
func lastName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}
