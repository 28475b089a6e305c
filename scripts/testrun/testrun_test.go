package main

import (
	"strings"
	"testing"
	"time"
)

func follow(t *testing.T, events string) (*follower, string) {
	t.Helper()
	var out strings.Builder
	f := newFollower(&out)
	if err := f.follow(strings.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	return f, out.String()
}

func TestPassingPackageShowsItsClosingLineOnly(t *testing.T) {
	f, out := follow(t, `
{"Action":"output","Package":"p","Test":"TestA","Output":"chatter\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.01s\n"}
{"Action":"pass","Package":"p"}`)
	if out != "ok  \tp\t0.01s\n" {
		t.Errorf("printed %q, want the closing line only", out)
	}
	if f.counts != (counts{passed: 1}) {
		t.Errorf("counts = %+v, want one passed", f.counts)
	}
	if len(f.kept) != 0 {
		t.Errorf("output of %d tests kept after the end", len(f.kept))
	}
}

func TestFailingTestShowsItsOutput(t *testing.T) {
	f, out := follow(t, `
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:7: got 1, want 2\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.01s\n"}
{"Action":"fail","Package":"p"}`)
	for _, want := range []string{"a_test.go:7: got 1, want 2", "FAIL\tp\t0.01s"} {
		if !strings.Contains(out, want) {
			t.Errorf("output lacks %q:\n%s", want, out)
		}
	}
	if f.counts != (counts{failed: 1}) {
		t.Errorf("counts = %+v, want one failed", f.counts)
	}
}

func TestPanicIsShownThoughItsTestNeverEnded(t *testing.T) {
	_, out := follow(t, `
{"Action":"output","Package":"p","Test":"TestA","Output":"panic: boom\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.01s\n"}
{"Action":"fail","Package":"p"}`)
	if !strings.Contains(out, "panic: boom") {
		t.Errorf("the panic is not shown:\n%s", out)
	}
}

func TestBuildErrorIsShown(t *testing.T) {
	_, out := follow(t, `
{"ImportPath":"p","Action":"build-output","Output":"p/a.go:1:1: no\n"}
{"ImportPath":"p","Action":"build-fail"}
{"Action":"output","Package":"p","Output":"FAIL\tp [build failed]\n"}
{"Action":"fail","Package":"p","FailedBuild":"p"}`)
	for _, want := range []string{"p/a.go:1:1: no", "[build failed]"} {
		if !strings.Contains(out, want) {
			t.Errorf("output lacks %q:\n%s", want, out)
		}
	}
}

func TestSkipIsListedWithItsReason(t *testing.T) {
	f, _ := follow(t, `
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:3: needs a moon\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- SKIP: TestA (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}`)
	if len(f.skipped) != 1 || f.skipped[0] != "p TestA: a_test.go:3: needs a moon" {
		t.Errorf("skipped = %q", f.skipped)
	}
}

func TestSkipFailsAStrictRunOnly(t *testing.T) {
	done := []result{{stage: "unit", counts: counts{skipped: 1}, skipped: []string{"p TestA: why"}}}
	for _, strict := range []bool{false, true} {
		var out strings.Builder
		if good := summarise(&out, done, strict); good == strict {
			t.Errorf("strict %v: good = %v", strict, good)
		}
		if !strings.Contains(out.String(), "p TestA: why") {
			t.Errorf("the skip is not listed:\n%s", out.String())
		}
	}
}

func TestFailedStageFailsTheRunWithoutATest(t *testing.T) {
	var out strings.Builder
	if summarise(&out, []result{{stage: "vet", failed: true}}, false) {
		t.Error("a run whose vet failed is good")
	}
}

func TestKeptOutputIsBounded(t *testing.T) {
	f := newFollower(&strings.Builder{})
	k := key{"p", "TestA"}
	chunk := strings.Repeat("x", maxKept/4)
	for range 4 {
		f.keep(k, chunk)
	}
	if n := len(f.text(k)); n != maxKept {
		t.Fatalf("kept %d bytes at the limit, want all %d", n, maxKept)
	}
	for range 8 {
		f.keep(k, "y")
	}
	if n := len(f.text(k)); n > maxKept+100 || strings.Contains(f.text(k), "y\n") {
		t.Errorf("kept %d bytes past the limit of %d", n, maxKept)
	}
}

func TestStagesRunEveryPackageOnceWithoutRace(t *testing.T) {
	packages := []string{"block", "internal/lint", "internal/align", "test/peers", "cmd/platter", "blocked"}
	for i, p := range packages {
		packages[i] = module + p
	}
	seen := make(map[string]int)
	for _, s := range stages(packages) {
		for _, a := range s.args {
			if s.name != "race" && s.name != "cross" {
				seen[strings.TrimPrefix(strings.Replace(a, "./", module, 1), module)]++
			}
			if s.name == "race" && strings.HasSuffix(a, "/blocked") {
				t.Error("package blocked taken for one below block")
			}
		}
	}
	for _, p := range packages {
		if n := seen[strings.TrimPrefix(p, module)]; n != 1 {
			t.Errorf("%s runs in %d stages without race, want 1", p, n)
		}
	}
}

func TestSoakPassesItsLengthOn(t *testing.T) {
	s := soakStages([]string{module + "block"}, time.Minute)
	if len(s) != 1 || !strings.Contains(strings.Join(s[0].env, " "), "PLATTER_SOAK=1m0s") {
		t.Errorf("stages = %+v", s)
	}
}
