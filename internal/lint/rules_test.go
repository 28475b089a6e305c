package lint

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fixture is a small source and the findings a rule must make in it: "line
// text", the text being a part of the message.
type fixture struct {
	name string
	path string
	src  string
	want []string
}

func runFixtures(t *testing.T, rule func(*File) []Finding, fixtures []fixture) {
	t.Helper()
	for _, fx := range fixtures {
		t.Run(fx.name, func(t *testing.T) {
			f, err := Parse(fx.path, []byte(fx.src))
			if err != nil {
				t.Fatal(err)
			}
			compare(t, rule(f), fx.path, fx.want)
		})
	}
}

func compare(t *testing.T, got []Finding, file string, want []string) {
	t.Helper()
	sortFindings(got)
	for i, g := range got {
		if i >= len(want) {
			t.Errorf("unexpected finding: %s", g)
			continue
		}
		line, text, _ := strings.Cut(want[i], " ")
		if g.File != file || fmt.Sprint(g.Line) != line || !strings.Contains(g.Msg, text) {
			t.Errorf("finding %d = %q, want %s:%s with %q", i, g, file, line, text)
		}
	}
	for _, w := range want[min(len(got), len(want)):] {
		t.Errorf("the rule did not fire: want %s:%s", file, w)
	}
}

func TestUnsafeRule(t *testing.T) {
	const src = "package p\n\nimport \"unsafe\"\n\nvar _ unsafe.Pointer\n"
	runFixtures(t, Unsafe, []fixture{
		{"elsewhere", "block/p.go", src, []string{"3 imports unsafe"}},
		{"in a test", "block/p_test.go", src, []string{"3 imports unsafe"}},
		{"named so", "block/p_unsafe.go", src, nil},
		{"named so for a system", "block/p_unsafe_linux.go", src, nil},
	})
}

func TestSyscallsRule(t *testing.T) {
	const raw = "package p\n\nimport \"golang.org/x/sys/unix\"\n\nvar _ = unix.Getpid\n"
	const old = "package p\n\nimport sc \"syscall\"\n\nvar _ = sc.EINVAL\nvar _ sc.Signal = sc.SIGTERM\nvar _ = sc.Open\n"
	runFixtures(t, Syscalls, []fixture{
		{"x/sys in a format", "format/qcow2/p.go", raw, []string{"3 imports golang.org/x/sys/unix"}},
		{"x/sys in an engine", "engine/uring/p.go", raw, nil},
		{"x/sys in a folder with a like name", "engines/p.go", raw, []string{"3 imports"}},
		{"x/sys in a test", "format/qcow2/p_test.go", raw, nil},
		{"syscall beyond names", "block/p.go", old, []string{"7 uses syscall.Open"}},
	})
}

func TestDeterminismRule(t *testing.T) {
	clock := "package p\n\nimport (\n\t\"context\"\n\t\"time\"\n)\n\nvar _ = time.Now\nvar _ = time.Second\nvar _ = time.NewTimer(1)\nvar _, _ = context.WithTimeout(nil, 1)\n"
	runFixtures(t, Determinism, []fixture{
		{"clock", "block/p.go", clock, []string{"8 time.Now", "10 time.NewTimer", "11 context.WithTimeout"}},
		{"clock elsewhere", "export/nbd/p.go", clock, nil},
		{"clock in a test", "block/p_test.go", clock, nil},
		{"clock in the real environment", "internal/realenv/p.go", clock, nil},
		{"clock by another name", "job/p.go", "package p\n\nimport t \"time\"\n\nvar _ = t.Sleep\n", []string{"5 time.Sleep"}},
		{"clock by dot", "job/p.go", "package p\n\nimport . \"time\"\n\nvar _ = Sleep\n", []string{"3 by dot"}},
		{"global chance", "graph/p.go", "package p\n\nimport \"math/rand/v2\"\n\nvar _ = rand.IntN(3)\nvar _ = rand.New(rand.NewPCG(1, 2))\n", []string{"5 global rand.IntN"}},
		{"old global chance", "graph/p.go", "package p\n\nimport \"math/rand\"\n\nvar _ = rand.Int63()\n", []string{"5 global rand.Int63"}},
		{"go statement", "format/raw/p.go", "package p\n\nfunc f() {\n\tgo f()\n}\n", []string{"4 with go"}},
		{"wait group", "filter/delay/p.go", "package p\n\nimport \"sync\"\n\ntype s struct{ wg sync.WaitGroup }\n\nfunc (s *s) f() {\n\ts.wg.Go(func() {})\n}\n", []string{"8 WaitGroup.Go"}},
		{"wait group as a variable", "filter/delay/p.go", "package p\n\nimport \"sync\"\n\nfunc f() {\n\tvar g sync.WaitGroup\n\tg.Go(f)\n}\n", []string{"7 WaitGroup.Go"}},
		{"the environment's Go", "filter/delay/p.go", "package p\n\ntype env struct{ Go func(func()) }\n\nfunc f(e env) { e.Go(func() {}) }\n", nil},
		{"errgroup", "job/p.go", "package p\n\nimport \"golang.org/x/sync/errgroup\"\n\nvar _ errgroup.Group\n", []string{"3 errgroup"}},
	})
}

func TestNamesRule(t *testing.T) {
	runFixtures(t, Names, []fixture{
		{"telling", "internal/align/p.go", "package align\n", nil},
		{"empty", "internal/utils/p.go", "package utils\n", []string{"1 does not say"}},
		{"empty folder of a program", "tools/p.go", "package main\n", []string{"1 does not say"}},
		{"unlike its folder", "wire/nbd/p.go", "package wire\n", []string{"1 have one name"}},
		{"a test's outside", "wire/nbd/p_test.go", "package nbd_test\n", nil},
		{"the front door", "platter.go", "package platter\n", nil},
		{"a program", "cmd/platter/main.go", "package main\n", nil},
	})
}

func TestUnfinishedRule(t *testing.T) {
	runFixtures(t, Unfinished, []fixture{
		{"comment", "block/p.go", "package p\n\n// TODO: all of it\nvar a int // FIXME later\n", []string{"3 TODO", "4 FIXME"}},
		{"block comment", "block/p.go", "package p\n\n/* XXX */\n", []string{"3 XXX"}},
		{"string", "block/p.go", "package p\n\nvar _ = \"TODO\"\n", []string{"3 TODO in a string"}},
		{"context", "block/p.go", "package p\n\nimport \"context\"\n\nvar _ = context.TODO()\n", []string{"5 context.TODO"}},
		{"a name that has the letters", "block/p.go", "package p\n\n// Todos and fXXX are fine.\nvar _ = \"tmp-XXXXXX\"\n", nil},
	})
}

func TestLengthRule(t *testing.T) {
	function := func(lines int) string {
		return "package p\n\nfunc (s *t[K]) f() {\n" + strings.Repeat("\ts.x++\n", lines-2) + "}\n"
	}
	run := func(lines int, baseline string) []Finding {
		f, err := Parse("block/p.go", []byte(function(lines)))
		if err != nil {
			t.Fatal(err)
		}
		base, bad := ParseBaseline("list", baseline)
		return append(bad, Length([]*File{f}, "list", base)...)
	}
	compare(t, run(maxFunction, ""), "block/p.go", nil)
	compare(t, run(maxFunction+1, ""), "block/p.go", []string{"3 t.f has 71 lines"})
	compare(t, run(80, "block/p.go t.f 80\n"), "block/p.go", nil)
	compare(t, run(81, "block/p.go t.f 80 # why\n"), "block/p.go", []string{"3 t.f has 81 lines, more than 80"})
	compare(t, run(79, "block/p.go t.f 80\n"), "list", []string{"0 lower its entry"})
	compare(t, run(20, "block/p.go t.f 80\n"), "list", []string{"0 remove its entry"})
	compare(t, run(20, "block/p.go t.gone 80\n"), "list", []string{"0 remove its entry"})
	compare(t, run(20, "\nblock/p.go t.f\n"), "list", []string{"2 want: path function length"})
	compare(t, run(20, "block/p.go t.f 70\n"), "list", []string{"1 above 70"})
}

func TestLengthRuleLeavesOutTablesOfTests(t *testing.T) {
	src := func(table, rest int) string {
		return "package p\n\nfunc f() {\n\tfor range []int{\n" + strings.Repeat("\t\t1,\n", table) + "\t} {\n\t}\n" + strings.Repeat("\tx++\n", rest) + "}\n"
	}
	const frame = 5 // the lines of src that are neither
	for _, c := range []struct {
		file        string
		table, rest int
		want        []string
	}{
		{"block/p_test.go", 500, maxFunction - frame, nil},
		{"block/p_test.go", 500, maxFunction - frame + 1, []string{"3 f has 71 lines"}},
		{"block/p.go", 10, maxFunction - frame - 9, []string{"3 f has 71 lines"}},
	} {
		f, err := Parse(c.file, []byte(src(c.table, c.rest)))
		if err != nil {
			t.Fatal(err)
		}
		compare(t, Length([]*File{f}, "list", nil), c.file, c.want)
	}
}

func TestWordsRule(t *testing.T) {
	home := "/" + "root/"
	compare(t, Words("a.md", []byte("fine\nsee "+home+"notes\n\n\""+"/"+"work/main\"\n")), "a.md",
		[]string{"2 path of one machine", "4 path of one machine"})
	compare(t, Words("a.md", []byte("the tree/work/x, $DIR"+home+"x and net"+home+"x\n")), "a.md", nil)
	compare(t, Words("a.sh", []byte("GOPROXY=https://proxy.golang"+".org\nhttp://deb.debian"+".org/debian\n")), "a.sh",
		[]string{"1 package registry", "2 package registry"})
	compare(t, Words("a.bin", []byte(home+"\x00")), "a.bin", nil)
}

func TestLinksRule(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("README.md", "# Platter\n## How it's made: a *plan*\n## Twice\n## Twice\n```\n# Not a heading\n```\n")
	write("docs/page.md", strings.Join([]string{
		"[up](../README.md) [x](../README.md#how-its-made-a-plan) [y](../README.md#twice-1)",
		"[gone](nowhere.md)",
		"[no heading](../README.md#not-a-heading)",
		"`[code](nowhere.md)` [web](https://example.org/x) [here](#nothing)",
		"[abs](/README.md) [out](../../x)",
		"~~~",
		"[code](nowhere.md)",
		"~~~",
		"[ref]: gone.md",
	}, "\n"))
	compare(t, Links(root, "README.md"), "README.md", nil)
	compare(t, Links(root, "docs/page.md"), "docs/page.md", []string{
		"2 no such file",
		"3 no such heading in README.md",
		"4 no such heading in docs/page.md",
		"5 leaves the repository",
		"5 is absolute",
		"9 no such file",
	})
}

func TestSkipsRule(t *testing.T) {
	src := `package p

import (
	"testing"

	"pgregory.net/rapid"
)

func TestA(t *testing.T) {
	t.Skip("why")
	t.Run("sub", func(u *testing.T) { u.Skipf("why") })
	rapid.Check(t, func(t *rapid.T) { t.Skip() })
}

func (h *helper) need(b testing.TB) {
	b.SkipNow()
}
`
	f, err := Parse("block/p_test.go", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	run := func(list string) []Finding {
		allowed, bad := ParseSkips("list", list)
		return append(bad, Skips([]*File{f}, "list", allowed)...)
	}
	all := []string{"10 TestA skips", "11 TestA skips", "16 helper.need skips"}
	compare(t, run(""), "block/p_test.go", all)
	compare(t, run("# comment\nblock/p_test.go TestA: no such device on this system\n"), "block/p_test.go", all[2:])
	compare(t, run("block/p_test.go TestA: a\nblock/p_test.go helper.need: b\nblock/p_test.go TestB: c\n"), "list", []string{"0 TestB skips no more"})
	if _, bad := ParseSkips("list", "block/p_test.go TestA:\n"); len(bad) != 1 {
		t.Errorf("an entry without a reason made %d findings, want 1", len(bad))
	}
}

func TestImportsRule(t *testing.T) {
	for _, c := range []struct{ from, imports, want string }{
		{"block", "internal/align", ""},
		{"block", "graph", "block is the waist"},
		{"block", "golang.org/x/sys/unix", "block is the waist"},
		{"block/blocktest", "pgregory.net/rapid", ""},
		{"format/qcow2", "block", ""},
		{"format/qcow2", "format/qcow2/table", ""},
		{"format/qcow2", "format/raw", "never knows another driver"},
		{"format/qcow2", "protocol/file", "never knows another driver"},
		{"format/qcow2", "wire/nbd", "not on the network"},
		{"format/all", "format/raw", ""},
		{"protocol/nbd", "wire/nbd", ""},
		{"protocol/nbd", "engine", "protocol/file alone"},
		{"protocol/file", "engine", ""},
		{"protocol/file", "job", "nor who uses it"},
		{"graph", "protocol/null", "knows no driver"},
		{"job", "filter/all", "caller's registry"},
		{"export/nbd", "queue", ""},
		{"export/nbd", "protocol/null", "offers any node"},
		{"serve", "protocol/all", "front door and cmd"},
		{".", "protocol/all", ""},
		{"cmd/platter", "protocol/all", ""},
		{"cmd/platter", "testing", "only tests need"},
		{"virtio", "os", "no system call"},
		{"virtio", "internal/sys", "no system call"},
		{"wire/nbd", "block", "do nothing else"},
		{"engine", "block", "does not know"},
		{"internal/align", "block", "below everything"},
		{"internal/realenv", "block", ""},
		{"internal/realenv", "graph", "below everything"},
		{"serve", "github.com/spf13/cobra", "live in cmd"},
		{"export/fuse", "C", "no cgo"},
	} {
		got := CheckImports(imports(c.from, c.imports))
		if c.want == "" {
			for _, g := range got {
				t.Errorf("%s imports %s: unexpected finding: %s", c.from, c.imports, g)
			}
			continue
		}
		if !slices.ContainsFunc(got, func(g Finding) bool { return strings.Contains(g.Msg, c.want) }) {
			t.Errorf("%s imports %s: got %v, want %q", c.from, c.imports, got, c.want)
		}
	}
}

// imports makes the packages of a chain of imports.
func imports(chain ...string) []Package {
	var out []Package
	for i, name := range chain {
		p := Package{ImportPath: absolute(name), Standard: slices.Contains([]string{"os", "testing", "C"}, name)}
		if i+1 < len(chain) {
			p.Imports = []string{absolute(chain[i+1])}
		}
		out = append(out, p)
	}
	return out
}

func absolute(name string) string {
	first, _, _ := strings.Cut(name, "/")
	switch {
	case name == ".":
		return module
	case name == "os" || name == "testing" || name == "C" || strings.Contains(first, "."):
		return name
	}
	return module + "/" + name
}

func TestImportsRuleFollowsChains(t *testing.T) {
	got := CheckImports(imports("image", "internal/x", "graph", "format/raw"))
	const want = "image: must not import internal/x, which imports graph, which imports format/raw: "
	if !slices.ContainsFunc(got, func(g Finding) bool { return strings.HasPrefix(g.String(), want) }) {
		t.Errorf("findings %v, want one that begins %q", got, want)
	}
	// The standard library's own imports are its own business.
	for _, g := range CheckImports([]Package{
		{ImportPath: absolute("virtio"), Imports: []string{"fmt"}},
		{ImportPath: "fmt", Standard: true, Imports: []string{"os", "testing"}},
	}) {
		t.Errorf("unexpected finding: %s", g)
	}
}
