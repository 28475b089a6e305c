package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// Limits of what is repeated about one failure: the whole is printed once,
// where it happened.
const (
	maxWhyLines = 12  // lines of one failure
	maxWhyBytes = 400 // bytes of one line
)

// failure is what is repeated at the end of a run about one test, or about a
// package that failed outside its tests.
type failure struct {
	pkg, test string
	why       []string
}

// said matches a line that a test printed through testing.T; wrong the first
// line of what the runtime or go test says by itself, a compiler's line among
// them; frame a frame of a stack, and goOwn one of Go's own packages.
var (
	said  = regexp.MustCompile(`^ +[^ :]+\.go:\d+: `)
	wrong = regexp.MustCompile(`^(panic: |fatal error: |WARNING: DATA RACE|SIG[A-Z]+: |signal: |.*\[(build|setup) failed\]|[^ ].*\.go:\d+:\d+: )`)
	frame = regexp.MustCompile(`^\s+/\S+\.go:\d+ \+0x`)
	goOwn = regexp.MustCompile(`/src/(runtime|testing|internal)/`)
)

// newFailure picks the lines of output that say why. Of what a test said in
// several lines the second comes along, since it often holds the values.
// Records of a log are left out: they tell how, and there are many.
func newFailure(pkg, test, output string) failure {
	f := failure{pkg: strings.TrimPrefix(pkg, module), test: test}
	lines := strings.Split(output, "\n")
	left := 0
	for i, line := range lines {
		if !tells(line) {
			continue
		}
		if len(f.why) == maxWhyLines {
			left++
			continue
		}
		line = strings.TrimSpace(line)
		if i+1 < len(lines) && follows(lines[i+1]) {
			line += " | " + strings.TrimSpace(lines[i+1])
		}
		f.why = append(f.why, clip(line))
	}
	if left > 0 {
		f.why = append(f.why, fmt.Sprintf("(%d more lines above)", left))
	}
	return f
}

func tells(line string) bool {
	switch {
	case strings.Contains(line, " level="):
		return false
	case frame.MatchString(line):
		return !goOwn.MatchString(line)
	}
	return wrong.MatchString(line) || said.MatchString(line)
}

// follows reports whether line continues what the line before it said.
func follows(line string) bool {
	deeper := strings.HasPrefix(line, "        ") || strings.HasPrefix(line, "\t")
	return deeper && !strings.Contains(line, " level=") && !frame.MatchString(line)
}

func clip(line string) string {
	if len(line) <= maxWhyBytes {
		return line
	}
	return strings.ToValidUTF8(line[:maxWhyBytes], "") + "..."
}

// tellFailures repeats at the very end why the run failed: whoever keeps only
// the tail of a log has it there. A test that failed because its subtests did
// has nothing to add to them.
func tellFailures(w io.Writer, done []result) {
	for _, r := range done {
		for _, f := range r.failures {
			if len(f.why) == 0 && slices.ContainsFunc(r.failures, f.contains) {
				continue
			}
			fmt.Fprintln(w, strings.TrimRight("failed: "+r.stage+" "+f.pkg+" "+f.test, " "))
			for _, line := range f.why {
				fmt.Fprintln(w, "   ", line)
			}
		}
	}
}

// contains reports whether g is a part of f: a test of the package, a subtest
// of the test.
func (f failure) contains(g failure) bool {
	return f.pkg == g.pkg && f.test != g.test && (f.test == "" || strings.HasPrefix(g.test, f.test+"/"))
}

// tail keeps the last lines of what passes through it to w.
type tail struct {
	w    io.Writer
	last []byte
}

const maxTail = 2 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.last = append(t.last, p...)
	if extra := len(t.last) - maxTail; extra > 0 {
		t.last = slices.Delete(t.last, 0, extra)
	}
	return t.w.Write(p)
}

// failure is what a command that runs no tests said last.
func (t *tail) failure(about string) failure {
	return failure{pkg: about, why: lastLines(string(t.last))}
}

func lastLines(output string) []string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	lines = lines[max(0, len(lines)-maxWhyLines):]
	for i, line := range lines {
		lines[i] = clip(line)
	}
	return lines
}
