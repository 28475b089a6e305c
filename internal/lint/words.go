package lint

import (
	"bytes"
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
)

// emptyNames are names that say nothing of what is inside.
var emptyNames = []string{"util", "utils", "common", "helper", "helpers", "misc", "shared", "base", "lib", "tools", "types"}

// Names keeps package names telling, and equal to their folder's.
func Names(f *File) []Finding {
	name := strings.TrimSuffix(f.AST.Name.Name, "_test")
	var out []Finding
	if slices.Contains(emptyNames, name) || slices.Contains(emptyNames, path.Base(f.Dir())) {
		out = append(out, f.finding(f.AST.Name.Pos(), "package %s: the name does not say what is inside: name it after what it has", name))
	}
	if f.Dir() != "." && name != "main" && name != path.Base(f.Dir()) {
		out = append(out, f.finding(f.AST.Name.Pos(), "package %s is in folder %s: the two have one name", name, path.Base(f.Dir())))
	}
	return out
}

var (
	unfinished      = regexp.MustCompile(`\b(TODO|FIXME|XXX)\b`)
	unfinishedQuote = regexp.MustCompile(`\b(TODO|FIXME)\b`) // XXX is a pattern's part in os.MkdirTemp and the like
)

// Unfinished reports marks of work that was left for later.
func Unfinished(f *File) []Finding {
	if underAny(f.Dir(), "internal/lint") {
		return nil // speaks of them
	}
	const advice = "finish it, or leave it out and say in the documentation what is not there"
	var out []Finding
	for _, group := range f.AST.Comments {
		for _, c := range group.List {
			if m := unfinished.FindString(c.Text); m != "" {
				out = append(out, f.finding(c.Pos(), "%s in a comment: %s", m, advice))
			}
		}
	}
	ast.Inspect(f.AST, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok {
			if m := unfinishedQuote.FindString(lit.Value); m != "" {
				out = append(out, f.finding(lit.Pos(), "%s in a string: %s", m, advice))
			}
		}
		return true
	})
	f.uses(func(sel *ast.SelectorExpr, pkg string) {
		if pkg == "context" && sel.Sel.Name == "TODO" {
			out = append(out, f.finding(sel.Pos(), "context.TODO: %s", advice))
		}
	})
	return out
}

// forbidden lists what no tracked file holds. The patterns are put together
// so that this file does not hold them either.
var forbidden = []struct {
	re  *regexp.Regexp
	why string
}{
	{
		regexp.MustCompile(`(?:^|[^\w./~$})-])(/(?:work|` + `root)/)`),
		"a path of one machine: use a temporary folder, or a path relative to the repository",
	},
	{
		regexp.MustCompile(`((?:proxy|sum|index)\.golang` + `\.org|(?:deb|security|snapshot|ftp)\.(?:\w+\.)?debian` + `\.org|registry\.npmjs` + `\.org|\bpypi` + `\.org|\bcrates` + `\.io)`),
		"the host of a package registry: package clients know their own",
	},
}

// Words reports forbidden text in any tracked file, given by its lines.
func Words(name string, content []byte) []Finding {
	if bytes.IndexByte(content, 0) >= 0 {
		return nil // not text
	}
	var out []Finding
	n := 0
	for line := range bytes.Lines(content) {
		n++
		for _, f := range forbidden {
			if m := f.re.FindSubmatch(line); m != nil {
				out = append(out, Finding{name, n, string(m[1]) + ": " + f.why})
			}
		}
	}
	return out
}
