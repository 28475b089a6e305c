package lint

import (
	"bufio"
	"fmt"
	"go/ast"
	"strconv"
	"strings"
)

// maxFunction is the length of a function, in lines from func to its closing
// brace, that fits on a screen. Tables of cases in tests do not count.
const maxFunction = 70

// Baseline maps "path function" to the length that a function was allowed to
// keep when the rule met it. Entries only ever shrink or go.
type Baseline map[string]int

// ParseBaseline reads lines of "path function length"; # begins a comment.
func ParseBaseline(name, text string) (Baseline, []Finding) {
	base := make(Baseline)
	var bad []Finding
	sc := bufio.NewScanner(strings.NewReader(text))
	for n := 1; sc.Scan(); n++ {
		line, _, _ := strings.Cut(sc.Text(), "#")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		length := 0
		if len(fields) == 3 {
			length, _ = strconv.Atoi(fields[2])
		}
		if length <= maxFunction {
			bad = append(bad, Finding{name, n, fmt.Sprintf("want: path function length, the length above %d", maxFunction)})
			continue
		}
		base[fields[0]+" "+fields[1]] = length
	}
	return base, bad
}

// Length reports functions that do not fit on a screen and are not in the
// baseline, or have grown beyond their entry; and, given all the files of the
// tree, entries that are no longer needed or could be smaller.
func Length(files []*File, baseline string, base Baseline) []Finding {
	var out []Finding
	seen := make(map[string]int)
	for _, f := range files {
		for _, d := range f.AST.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			key := f.Path + " " + functionName(fn)
			n := f.line(fn.End()) - f.line(fn.Pos()) + 1 - f.tables(fn)
			seen[key] = max(n, seen[key])
			if n > max(maxFunction, base[key]) {
				out = append(out, f.finding(fn.Pos(), "%s has %d lines, more than %d: keep the branches here and move straight work into functions of their own", functionName(fn), n, max(maxFunction, base[key])))
			}
		}
	}
	for key, allowed := range base {
		switch n := seen[key]; {
		case n <= maxFunction:
			out = append(out, Finding{File: baseline, Msg: fmt.Sprintf("%s fits on a screen now, or is gone: remove its entry", key)})
		case n < allowed:
			out = append(out, Finding{File: baseline, Msg: fmt.Sprintf("%s has shrunk from %d to %d lines: lower its entry", key, allowed, n)})
		}
	}
	return sortFindings(out)
}

// tables is how many lines of a test function are the inside of tables: slices,
// arrays and maps written out. A test's cases are data, however many.
func (f *File) tables(fn *ast.FuncDecl) int {
	if !f.Test() {
		return 0
	}
	lines := 0
	ast.Inspect(fn, func(n ast.Node) bool {
		lit, ok := n.(*ast.CompositeLit)
		if !ok {
			return true
		}
		switch lit.Type.(type) {
		case *ast.ArrayType, *ast.MapType:
			lines += max(0, f.line(lit.Rbrace)-f.line(lit.Lbrace)-1)
			return false
		}
		return true
	})
	return lines
}

// functionName is Name, or Type.Name for a method.
func functionName(fn *ast.FuncDecl) string {
	if fn.Recv == nil || len(fn.Recv.List) == 0 {
		return fn.Name.Name
	}
	typ := fn.Recv.List[0].Type
	for {
		switch t := typ.(type) {
		case *ast.StarExpr:
			typ = t.X
		case *ast.IndexExpr:
			typ = t.X
		case *ast.IndexListExpr:
			typ = t.X
		case *ast.Ident:
			return t.Name + "." + fn.Name.Name
		default:
			return fn.Name.Name
		}
	}
}
