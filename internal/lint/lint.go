// Package lint holds the rules of the repository that a machine can check:
// who may import whom, where system calls and unsafe live, what takes time
// from the world, how long a function is, which words stay out. Its tests run
// the rules over the tree; each rule is also run on small sources that break
// it, so that a rule that no longer fires is noticed.
package lint

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const module = "github.com/platter-storage/platter"

// Finding is a place where a rule is broken.
type Finding struct {
	File string // relative to the repository, with slashes
	Line int    // 0: the whole file
	Msg  string // what is wrong, why, and what to do
}

func (f Finding) String() string {
	if f.Line == 0 {
		return f.File + ": " + f.Msg
	}
	return fmt.Sprintf("%s:%d: %s", f.File, f.Line, f.Msg)
}

// File is a Go source file, whatever system it is for.
type File struct {
	Path string // relative to the repository, with slashes
	Src  []byte
	AST  *ast.File
	fset *token.FileSet
}

// Parse makes a File of src.
func Parse(name string, src []byte) (*File, error) {
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	return &File{Path: name, Src: src, AST: tree, fset: fset}, nil
}

// Dir is the folder of the file, "." for the repository's own.
func (f *File) Dir() string { return path.Dir(f.Path) }

// Test reports whether the file is a test's.
func (f *File) Test() bool { return strings.HasSuffix(f.Path, "_test.go") }

func (f *File) line(p token.Pos) int { return f.fset.Position(p).Line }

func (f *File) finding(p token.Pos, format string, args ...any) Finding {
	return Finding{File: f.Path, Line: f.line(p), Msg: fmt.Sprintf(format, args...)}
}

// imported maps the names by which the file knows its imports to their paths.
func (f *File) imported() map[string]string {
	names := make(map[string]string)
	for _, spec := range f.AST.Imports {
		p := importPath(spec)
		name := path.Base(p)
		if isVersion(name) {
			name = path.Base(path.Dir(p))
		}
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = p
	}
	return names
}

func importPath(spec *ast.ImportSpec) string {
	p, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		return spec.Path.Value
	}
	return p
}

func isVersion(s string) bool {
	_, err := strconv.Atoi(strings.TrimPrefix(s, "v"))
	return err == nil && strings.HasPrefix(s, "v")
}

// uses calls visit for each pkg.Name in the file where pkg is an import.
func (f *File) uses(visit func(sel *ast.SelectorExpr, pkg string)) {
	names := f.imported()
	ast.Inspect(f.AST, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok {
			if p, ok := names[x.Name]; ok {
				visit(sel, p)
			}
		}
		return true
	})
}

// Root finds the repository's folder, from the working directory upwards.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", fmt.Errorf("no go.mod in the working directory or above it")
		}
		dir = up
	}
}

// Tracked lists the files that git knows or would take in, relative to root.
func Tracked(root string) ([]string, error) {
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files in %s: %w", root, err)
	}
	names := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	names = slices.DeleteFunc(names, func(name string) bool {
		info, err := os.Lstat(filepath.Join(root, name))
		return err != nil || !info.Mode().IsRegular() // deleted, or a link
	})
	slices.Sort(names)
	return slices.Compact(names), nil
}

// underAny reports whether name is one of folders or lies below one.
func underAny(name string, folders ...string) bool {
	for _, folder := range folders {
		if name == folder || strings.HasPrefix(name, folder+"/") {
			return true
		}
	}
	return false
}

func sortFindings(fs []Finding) []Finding {
	slices.SortFunc(fs, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Msg, b.Msg))
	})
	return fs
}
