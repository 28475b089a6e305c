package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// maxKept is how much output of one test is kept until its verdict is known.
const maxKept = 1 << 20

type counts struct{ passed, failed, skipped int }

func (c *counts) add(d counts) {
	c.passed += d.passed
	c.failed += d.failed
	c.skipped += d.skipped
}

// event is a line of `go test -json` (see `go doc test2json`).
type event struct {
	Action      string
	Package     string
	ImportPath  string // of a build event
	Test        string
	Output      string
	FailedBuild string // of a package's verdict: the package that does not build
}

type key struct{ pkg, test string }

// follower keeps the output of each test that runs, shows it if the test
// fails, and forgets it otherwise.
type follower struct {
	w       io.Writer
	kept    map[key]*strings.Builder
	counts  counts
	skipped []string
	failed  []failure
	built   map[string]string // what the compiler said, of packages that fail to build
}

func newFollower(w io.Writer) *follower {
	return &follower{w: w, kept: make(map[key]*strings.Builder), built: make(map[string]string)}
}

// follow reads events until the end.
func (f *follower) follow(r io.Reader) error {
	dec := json.NewDecoder(r)
	for {
		var e event
		err := dec.Decode(&e)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		f.event(e)
	}
}

func (f *follower) event(e event) {
	k := key{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		fmt.Fprint(f.w, e.Output)
		if said := f.built[e.ImportPath] + e.Output; len(said) <= maxKept {
			f.built[e.ImportPath] = said
		}
	case "output":
		f.keep(k, e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			f.closePackage(k, e)
		} else {
			f.closeTest(k, e.Action)
		}
	}
}

func (f *follower) keep(k key, text string) {
	b := f.kept[k]
	if b == nil {
		b = new(strings.Builder)
		f.kept[k] = b
	}
	if b.Len()+len(text) <= maxKept {
		b.WriteString(text)
	} else if b.Len() <= maxKept {
		b.WriteString(strings.Repeat(" ", maxKept-b.Len()) + "\n[more output than 1 MiB: run this test alone to see the rest]\n")
	}
}

func (f *follower) closeTest(k key, action string) {
	switch action {
	case "pass":
		f.counts.passed++
	case "fail":
		f.counts.failed++
		f.failed = append(f.failed, newFailure(k.pkg, k.test, f.text(k)))
		fmt.Fprint(f.w, f.text(k))
	case "skip":
		f.counts.skipped++
		f.skipped = append(f.skipped, strings.TrimPrefix(k.pkg, module)+" "+k.test+": "+reason(f.text(k)))
	}
	delete(f.kept, k)
}

// closePackage prints the package's closing line; after a failure, everything
// that no finished test accounts for, such as a panic or a timeout.
func (f *follower) closePackage(k key, e event) {
	if e.Action == "fail" {
		for other := range f.kept {
			if other.pkg == k.pkg && other != k {
				f.failed = append(f.failed, newFailure(k.pkg, other.test, f.text(other)))
				fmt.Fprint(f.w, f.text(other))
				delete(f.kept, other)
			}
		}
		f.failPackage(k, f.built[e.FailedBuild]+f.text(k))
		fmt.Fprint(f.w, f.text(k))
	} else {
		for line := range strings.Lines(f.text(k)) {
			if strings.HasPrefix(line, "ok ") {
				fmt.Fprint(f.w, line)
			}
		}
	}
	delete(f.kept, k)
}

// failPackage notes why the package failed where none of its tests says so.
func (f *follower) failPackage(k key, output string) {
	whole := newFailure(k.pkg, "", output)
	if len(whole.why) == 0 && !slices.ContainsFunc(f.failed, whole.contains) {
		whole.why = lastLines(output)
	}
	if len(whole.why) > 0 {
		f.failed = append(f.failed, whole)
	}
}

func (f *follower) text(k key) string {
	if b := f.kept[k]; b != nil {
		return b.String()
	}
	return ""
}

// reason is what the test said when it skipped: its output without the frame
// lines that the testing package adds.
func reason(output string) string {
	var said []string
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			said = append(said, line)
		}
	}
	if len(said) == 0 {
		return "no reason given"
	}
	return strings.Join(said, " ")
}
