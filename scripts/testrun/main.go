// Command testrun runs the repository's tests in stages and sums them up:
// what `make test` and `make soak` do. It prints Go's own closing line for
// each package, the whole output of each test that failed, each test that
// skipped, and at the very end, in few lines, why each test failed; the stages
// go on after a failure, so that one run shows them all.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"time"
)

func main() {
	soak := flag.Duration("soak", 0, "run the model and stress tests under the race detector for about this long a package, instead of the stages")
	strict := flag.Bool("strict", strictHere(), "a skipped test fails the run (default: as root on Linux, where every test can run)")
	flag.Parse()

	packages, err := listPackages()
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
		os.Exit(1)
	}
	todo := stages(packages)
	if *soak > 0 {
		todo = soakStages(packages, *soak)
	}
	// An interrupt reaches the children, which are in our process group;
	// we stay to report what they say.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	if !runAll(os.Stdout, todo, *strict) {
		os.Exit(1)
	}
}

// strictHere reports whether nothing excuses a skip: continuous integration
// and developers who are root on Linux have all that the tests need.
func strictHere() bool {
	return runtime.GOOS == "linux" && os.Getuid() == 0
}

func listPackages() ([]string, error) {
	out, err := exec.Command("go", "list", "./...").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w\n%s", err, exit.Stderr)
		}
		return nil, fmt.Errorf("go list ./...: %w", err)
	}
	return strings.Fields(string(out)), nil
}

// runAll runs the stages in order, prints the summary and reports whether
// everything passed.
func runAll(w io.Writer, todo []stage, strict bool) bool {
	var done []result
	for _, s := range todo {
		if len(s.args) == 0 {
			continue
		}
		fmt.Fprintf(w, "=== %s: %s\n", s.name, s.about)
		done = append(done, run(w, s))
	}
	return summarise(w, done, strict)
}

// result is what came of one stage.
type result struct {
	stage    string
	took     time.Duration
	counts   counts
	failed   bool // the command's own verdict: also when no test ran at all
	skipped  []string
	failures []failure
}

func run(w io.Writer, s stage) result {
	start := time.Now()
	cmd := exec.Command("go", s.args...)
	cmd.Env = append(os.Environ(), s.env...)
	end := &tail{w: w}
	cmd.Stderr = end
	r := result{stage: s.name}
	if s.plain {
		cmd.Stdout = end
		r.failed = cmd.Run() != nil
	} else {
		r.failed = runEvents(w, cmd, &r)
	}
	if r.failed && len(r.failures) == 0 {
		r.failures = append(r.failures, end.failure(s.about))
	}
	r.took = time.Since(start)
	return r
}

// runEvents runs a `go test -json` and follows its events. It reports failure.
func runEvents(w io.Writer, cmd *exec.Cmd, r *result) bool {
	events, err := cmd.StdoutPipe()
	if err != nil {
		fmt.Fprintln(w, "testrun:", err)
		return true
	}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(w, "testrun:", err)
		return true
	}
	f := newFollower(w)
	readErr := f.follow(events)
	waitErr := cmd.Wait()
	if readErr != nil {
		fmt.Fprintln(w, "testrun: reading go test's events:", readErr)
	}
	r.counts, r.skipped, r.failures = f.counts, f.skipped, f.failed
	return readErr != nil || waitErr != nil || f.counts.failed > 0
}

func summarise(w io.Writer, done []result, strict bool) bool {
	var total result
	good := true
	fmt.Fprintf(w, "\n%-8s %8s %8s %8s %9s\n", "stage", "passed", "failed", "skipped", "time")
	for _, r := range done {
		mark := ""
		if r.failed {
			good, mark = false, "  FAILED"
		}
		printRow(w, r, mark)
		total.took += r.took
		total.counts.add(r.counts)
		total.skipped = append(total.skipped, r.skipped...)
	}
	total.stage = "all"
	printRow(w, total, "")
	for _, s := range total.skipped {
		fmt.Fprintln(w, "skipped:", s)
	}
	if strict && len(total.skipped) > 0 {
		fmt.Fprintln(w, "testrun: skipped tests count as failures here, where every test can run (root on Linux): install what is missing, or see internal/lint/testdata/skips.txt")
		good = false
	}
	tellFailures(w, done)
	return good
}

func printRow(w io.Writer, r result, mark string) {
	fmt.Fprintf(w, "%-8s %8d %8d %8d %9s%s\n", r.stage, r.counts.passed, r.counts.failed, r.counts.skipped,
		r.took.Round(100*time.Millisecond), mark)
}
