package lint

import (
	"fmt"
	"go/ast"
	"regexp"
	"strings"
)

var skipCall = regexp.MustCompile(`^Skip(f|Now)?$`)

// AllowedSkips maps "path function" to the reason why it may skip.
type AllowedSkips map[string]string

// ParseSkips reads lines of "path function: reason"; # begins a comment.
func ParseSkips(name, text string) (AllowedSkips, []Finding) {
	allowed := make(AllowedSkips)
	var bad []Finding
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, reason, ok := strings.Cut(line, ": ")
		if !ok || len(strings.Fields(key)) != 2 || strings.TrimSpace(reason) == "" {
			bad = append(bad, Finding{name, i + 1, "want: path function: reason"})
			continue
		}
		allowed[key] = reason
	}
	return allowed, bad
}

// Skips reports tests that skip without leave, and, given all the files of
// the tree, leave that nobody needs. A property's rapid.T.Skip is something
// else: it throws away one input.
func Skips(files []*File, list string, allowed AllowedSkips) []Finding {
	var out []Finding
	used := make(map[string]bool)
	for _, f := range files {
		for _, d := range f.AST.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			key := f.Path + " " + functionName(fn)
			for _, call := range skipCalls(f, fn) {
				used[key] = true
				if allowed[key] == "" {
					out = append(out, f.finding(call.Pos(), "%s skips: make what it needs (scripts/deps.sh installs tools), or list it with a reason in %s", functionName(fn), list))
				}
			}
		}
	}
	for key := range allowed {
		if !used[key] {
			out = append(out, Finding{File: list, Msg: fmt.Sprintf("%s skips no more: remove its entry", key)})
		}
	}
	return sortFindings(out)
}

// skipCalls finds calls of Skip, Skipf and SkipNow in a file that imports
// testing, except on a parameter that is a *rapid.T.
func skipCalls(f *File, fn *ast.FuncDecl) []*ast.CallExpr {
	names := f.imported()
	if names["testing"] != "testing" {
		return nil
	}
	var calls []*ast.CallExpr
	var walk func(n ast.Node, rapid map[string]bool)
	walk = func(root ast.Node, rapid map[string]bool) {
		ast.Inspect(root, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncLit:
				walk(n.Body, withParams(rapid, n.Type, names))
				return false
			case *ast.CallExpr:
				sel, ok := n.Fun.(*ast.SelectorExpr)
				if ok && skipCall.MatchString(sel.Sel.Name) && !rapid[lastName(sel.X)] {
					calls = append(calls, n)
				}
			}
			return true
		})
	}
	walk(fn.Body, withParams(nil, fn.Type, names))
	return calls
}

// withParams is the set of names that mean a *rapid.T inside a function of
// type fn, which lies where outer holds.
func withParams(outer map[string]bool, fn *ast.FuncType, imported map[string]string) map[string]bool {
	inner := make(map[string]bool, len(outer))
	for name := range outer {
		inner[name] = true
	}
	for _, field := range fn.Params.List {
		isRapid := false
		if star, ok := field.Type.(*ast.StarExpr); ok {
			if sel, ok := star.X.(*ast.SelectorExpr); ok && sel.Sel.Name == "T" {
				isRapid = imported[lastName(sel.X)] == "pgregory.net/rapid"
			}
		}
		for _, name := range field.Names {
			inner[name.Name] = isRapid
		}
	}
	return inner
}
