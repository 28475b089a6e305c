package main

import (
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
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

// told is what the end of a run says about these events.
func told(t *testing.T, events string) string {
	t.Helper()
	f, _ := follow(t, events)
	var out strings.Builder
	tellFailures(&out, []result{{stage: "unit", failures: f.failed}})
	return out.String()
}

func TestTheEndSaysWhyATestFailed(t *testing.T) {
	got := told(t, `
{"Action":"output","Package":"p","Test":"TestA/s","Output":"=== RUN   TestA/s\n"}
{"Action":"output","Package":"p","Test":"TestA/s","Output":"    a_test.go:7: got\n"}
{"Action":"output","Package":"p","Test":"TestA/s","Output":"        1, want 2\n"}
{"Action":"output","Package":"p","Test":"TestA/s","Output":"    a_test.go:9: time=2026 level=INFO msg=\"hello\"\n"}
{"Action":"output","Package":"p","Test":"TestA/s","Output":"        time=2026 level=INFO msg=\"hello\"\n"}
{"Action":"output","Package":"p","Test":"TestA/s","Output":"--- FAIL: TestA/s (0.00s)\n"}
{"Action":"fail","Package":"p","Test":"TestA/s"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- FAIL: TestA (0.00s)\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"FAIL\n"}
{"Action":"output","Package":"p","Output":"exit status 1\n"}
{"Action":"fail","Package":"p"}`)
	if want := "failed: unit p TestA/s\n    a_test.go:7: got | 1, want 2\n"; got != want {
		t.Errorf("the end says\n%swant\n%s", got, want)
	}
}

func TestTheEndSaysWhyAPackageFailed(t *testing.T) {
	for name, c := range map[string]struct{ events, want string }{
		"panic": {`
{"Action":"output","Package":"p","Test":"TestA","Output":"panic: boom\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"goroutine 9 [running]:\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"\t/go/src/runtime/panic.go:860 +0x13a\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"\t/home/p/a_test.go:4 +0x25\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.01s\n"}
{"Action":"fail","Package":"p"}`, "failed: unit p TestA\n    panic: boom\n    /home/p/a_test.go:4 +0x25\n"},
		"does not build": {`
{"ImportPath":"p","Action":"build-output","Output":"# p\n"}
{"ImportPath":"p","Action":"build-output","Output":"p/a.go:1:1: no\n"}
{"ImportPath":"p","Action":"build-fail"}
{"Action":"output","Package":"p","Output":"FAIL\tp [build failed]\n"}
{"Action":"fail","Package":"p","FailedBuild":"p"}`, "failed: unit p\n    p/a.go:1:1: no\n    FAIL\tp [build failed]\n"},
		"ends by itself": {`
{"Action":"output","Package":"p","Output":"something is left behind\n"}
{"Action":"output","Package":"p","Output":"exit status 3\n"}
{"Action":"fail","Package":"p"}`, "failed: unit p\n    something is left behind\n    exit status 3\n"},
	} {
		if got := told(t, c.events); got != c.want {
			t.Errorf("%s: the end says\n%swant\n%s", name, got, c.want)
		}
	}
}

func TestTheEndIsShort(t *testing.T) {
	f := newFailure("p", "TestA", strings.Repeat("    a_test.go:7: "+strings.Repeat("é", maxWhyBytes)+"\n", maxWhyLines+5))
	if len(f.why) != maxWhyLines+1 || f.why[maxWhyLines] != "(5 more lines above)" {
		t.Errorf("%d lines, the last %q", len(f.why), f.why[len(f.why)-1])
	}
	for _, line := range f.why {
		if len(line) > maxWhyBytes+3 || !utf8.ValidString(line) {
			t.Errorf("%d bytes in a line, valid %v", len(line), utf8.ValidString(line))
		}
	}
}

func TestTheEndShowsThePlainStagesLastLines(t *testing.T) {
	var whole, end strings.Builder
	c := &tail{w: &whole}
	for range 1000 {
		io.WriteString(c, "chatter\n")
	}
	io.WriteString(c, "a.go:1:1: unreachable code\n")
	if len(c.last) > maxTail {
		t.Errorf("%d bytes kept, limit %d", len(c.last), maxTail)
	}
	summarise(&end, []result{{stage: "vet", failed: true, failures: []failure{c.failure("go vet")}}}, false)
	if !strings.HasSuffix(end.String(), "    a.go:1:1: unreachable code\n") || strings.Count(end.String(), "\n    ") != maxWhyLines {
		t.Errorf("the end is %q", end.String())
	}
	if strings.Count(whole.String(), "\n") != 1001 {
		t.Error("the whole output was not passed on")
	}
}
