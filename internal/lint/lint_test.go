package lint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/format"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// maxBaseline is how many entries testdata/length.txt may have. It falls with
// them and does not rise.
const maxBaseline = 0

// tree is everything the rules look at, read once.
type tree struct {
	root    string
	tracked []string
	files   []*File
}

var readTree = sync.OnceValues(func() (tree, error) {
	var t tree
	var err error
	if t.root, err = Root(); err != nil {
		return t, err
	}
	if t.tracked, err = Tracked(t.root); err != nil {
		return t, err
	}
	for _, name := range t.tracked {
		if !strings.HasSuffix(name, ".go") || strings.Contains("/"+name, "/testdata/") {
			continue
		}
		src, err := os.ReadFile(filepath.Join(t.root, name))
		if err != nil {
			return t, err
		}
		f, err := Parse(name, src)
		if err != nil {
			return t, err
		}
		t.files = append(t.files, f)
	}
	if len(t.files) == 0 {
		return t, fmt.Errorf("no Go file tracked in %s", t.root)
	}
	return t, nil
})

func repository(t *testing.T) tree {
	t.Helper()
	tr, err := readTree()
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func report(t *testing.T, findings []Finding) {
	t.Helper()
	for _, f := range findings {
		t.Errorf("%s", f)
	}
}

// everyFile runs a rule over each Go file of the tree.
func everyFile(t *testing.T, rule func(*File) []Finding) {
	t.Helper()
	for _, f := range repository(t).files {
		report(t, rule(f))
	}
}

func TestUnsafe(t *testing.T)      { everyFile(t, Unsafe) }
func TestSyscalls(t *testing.T)    { everyFile(t, Syscalls) }
func TestDeterminism(t *testing.T) { everyFile(t, Determinism) }
func TestNames(t *testing.T)       { everyFile(t, Names) }
func TestUnfinished(t *testing.T)  { everyFile(t, Unfinished) }

func TestGofmt(t *testing.T) {
	everyFile(t, func(f *File) []Finding {
		want, err := format.Source(f.Src)
		if err != nil {
			return []Finding{{File: f.Path, Msg: err.Error()}}
		}
		if bytes.Equal(want, f.Src) {
			return nil
		}
		return []Finding{{f.Path, firstDifference(f.Src, want), "is not as gofmt writes it: run gofmt -w " + f.Path}}
	})
}

// firstDifference is the number of the first line that differs.
func firstDifference(a, b []byte) int {
	n := 1
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			break
		}
		if a[i] == '\n' {
			n++
		}
	}
	return n
}

func TestLength(t *testing.T) {
	tr := repository(t)
	const list = "internal/lint/testdata/length.txt"
	base, bad := ParseBaseline(list, readFile(t, tr.root, list))
	report(t, bad)
	report(t, Length(tr.files, list, base))
	if len(base) > maxBaseline {
		t.Errorf("%s: has %d entries, more than %d: the list only shrinks: shorten the function instead", list, len(base), maxBaseline)
	}
	if len(base) < maxBaseline {
		t.Errorf("internal/lint/lint_test.go: maxBaseline is %d and %s has %d entries: lower it", maxBaseline, list, len(base))
	}
}

func TestSkips(t *testing.T) {
	tr := repository(t)
	const list = "internal/lint/testdata/skips.txt"
	allowed, bad := ParseSkips(list, readFile(t, tr.root, list))
	report(t, bad)
	report(t, Skips(tr.files, list, allowed))
}

func TestWords(t *testing.T) {
	tr := repository(t)
	for _, name := range tr.tracked {
		report(t, Words(name, []byte(readFile(t, tr.root, name))))
	}
}

func TestLinks(t *testing.T) {
	tr := repository(t)
	for _, name := range tr.tracked {
		if strings.HasSuffix(name, ".md") {
			report(t, Links(tr.root, name))
		}
	}
}

func TestImports(t *testing.T) {
	packages, err := listPackages(repository(t).root)
	if err != nil {
		t.Fatal(err)
	}
	report(t, CheckImports(packages))
}

// listPackages is every package of the module and all they import.
func listPackages(root string) ([]Package, error) {
	cmd := exec.Command("go", "list", "-e", "-deps", "-json=ImportPath,Name,Dir,Standard,Imports,Error", "./...")
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr.String())
	}
	var packages []Package
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p Package
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return packages, nil
		}
		if err != nil {
			return nil, fmt.Errorf("go list's answer: %w", err)
		}
		packages = append(packages, p)
	}
}

func TestVet(t *testing.T)         { runTool(t, nil, "go", "vet", "./...") }
func TestStaticcheck(t *testing.T) { runTool(t, nil, "go", "tool", "staticcheck", "./...") }

// runTool runs a command in the repository; whatever it says is a failure.
func runTool(t *testing.T, env []string, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = repository(t).root
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s %s: %v\n%s", strings.Join(env, " "), strings.Join(cmd.Args, " "), err, out)
	}
}

func readFile(t *testing.T, root, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
