package main

import (
	"os"
	"strings"
	"time"
)

// stage is one command of a run.
type stage struct {
	name  string
	about string
	args  []string // of go; none: the stage has nothing to do
	env   []string
	plain bool // not a `go test -json`: its output is shown as it comes
}

const module = "github.com/platter-storage/platter/"

// raced lists the folders whose packages share memory between goroutines.
// They run twice: under the race detector, and without it, since it changes
// what allocates.
var raced = []string{
	"block", "graph", "engine", "queue", "protocol", "format", "filter", "export", "job",
	"serve", "api", "wire", "sim", "image", "internal/bufpool", "internal/invariants",
}

// stages are what decides whether a change may land, quickest verdict first.
func stages(packages []string) []stage {
	unit := pick(packages, func(p string) bool { return !under(p, "test") && !under(p, "internal/lint") })
	race := pick(packages, func(p string) bool { return underAny(p, raced) })
	whole := pick(packages, func(p string) bool { return under(p, "test") })
	return []stage{
		{name: "vet", about: "go vet over the tree", args: []string{"vet", "./..."}, plain: true},
		{name: "lint", about: "the repository's rules", args: goTest([]string{"./internal/lint"}, "-count=1", "-timeout=10m")},
		{name: "cross", about: "builds for the other systems", args: goTest([]string{"./internal/lint"}, "-count=1", "-timeout=20m", "-tags=cross", "-run=Builds")},
		{name: "unit", about: "each package by itself", args: goTest(unit, fresh("-timeout=6m")...)},
		{name: "race", about: "what runs concurrently, under the race detector", args: goTest(race, fresh("-race", "-timeout=10m")...)},
		{name: "whole", about: "the program, against its peers", args: goTest(whole, "-count=1", "-p=1", "-timeout=20m")},
	}
}

// soakStages run everything concurrent for longer. A test that can go on for
// any time reads PLATTER_SOAK, a duration; property tests take RAPID_CHECKS.
func soakStages(packages []string, d time.Duration) []stage {
	long := pick(packages, func(p string) bool { return underAny(p, raced) || under(p, "test") })
	return []stage{{
		name:  "soak",
		about: "model and stress tests for " + d.String() + " a package",
		args:  goTest(long, "-race", "-count=1", "-timeout="+(2*d+20*time.Minute).String()),
		env:   []string{"PLATTER_SOAK=" + d.String(), "RAPID_CHECKS=5000", "PLATTER_MODEL_OPS=1000000"},
	}}
}

func goTest(packages []string, flags ...string) []string {
	if len(packages) == 0 {
		return nil
	}
	args := append([]string{"test", "-json"}, flags...)
	return append(args, packages...)
}

// fresh adds -count=1 in continuous integration: a result from the cache is
// good enough for whoever works on one package, and no more.
func fresh(flags ...string) []string {
	if os.Getenv("CI") != "" {
		return append(flags, "-count=1")
	}
	return flags
}

func pick(packages []string, want func(string) bool) []string {
	var out []string
	for _, p := range packages {
		if want(strings.TrimPrefix(p, module)) {
			out = append(out, p)
		}
	}
	return out
}

func underAny(p string, folders []string) bool {
	for _, f := range folders {
		if under(p, f) {
			return true
		}
	}
	return false
}

// under reports whether package path p, relative to the module, is folder or
// lies below it.
func under(p, folder string) bool {
	return p == folder || strings.HasPrefix(p, folder+"/")
}
