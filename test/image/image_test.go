// Package image compares the image tools with the reference's: the same images,
// made by either, are asked for with both, and the answers compared field by
// field.
package image

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/platter-storage/platter/internal/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// result is what a call printed, and its exit code.
type result struct {
	out, err string
	code     int
}

func call(t testing.TB, dir, prog string, args ...string) result {
	t.Helper()
	cmd := exec.Command(prog, args...)
	var out, stderr strings.Builder
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &stderr
	err := cmd.Run()
	if _, exited := err.(*exec.ExitError); err != nil && !exited {
		t.Fatal(err)
	}
	return result{out.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// tools makes links to the program by which it is the others.
func tools(t testing.TB) (dir, img, io string) {
	bin := testutil.Binary(t)
	dir = t.TempDir()
	testutil.Run(t, bin, "install-links", dir)
	return t.TempDir(), filepath.Join(dir, "qemu-img"), filepath.Join(dir, "qemu-io")
}

// must runs a program that is to succeed.
func must(t testing.TB, dir, prog string, args ...string) string {
	t.Helper()
	r := call(t, dir, prog, args...)
	if r.code != 0 {
		t.Fatalf("%s %q: exit code %d\n%s%s", prog, args, r.code, r.out, r.err)
	}
	return r.out
}

// images makes one of each kind with the programs given, and lists them.
func images(t testing.TB, dir, img, io string) []string {
	type step []string
	for _, s := range []step{
		{img, "create", "-f", "raw", "empty.raw", "1M"},
		{img, "create", "-f", "raw", "sparse.raw", "3M"},
		{io, "-f", "raw", "-c", "write -P 1 64k 64k", "-c", "write -P 2 1M 4k", "-c", "write -P 3 3141632 4k", "sparse.raw"},
		{img, "convert", "-f", "raw", "-O", "qcow2", "sparse.raw", "a.qcow2"},
		{img, "convert", "-f", "raw", "-O", "qcow2", "-c", "sparse.raw", "packed.qcow2"},
		{img, "convert", "-f", "raw", "-O", "qcow2", "-o", "cluster_size=4k,compat=0.10", "sparse.raw", "v2.qcow2"},
		{img, "convert", "-f", "qcow2", "-O", "raw", "-S", "0", "a.qcow2", "full.raw"},
		{img, "convert", "-f", "qcow2", "-O", "raw", "packed.qcow2", "again.raw"},
		{img, "create", "-f", "qcow2", "-o", "extended_l2=on,cluster_size=128k,refcount_bits=64,lazy_refcounts=on", "ext.qcow2", "5M"},
		{img, "create", "-f", "qcow2", "-b", "a.qcow2", "-F", "qcow2", "over.qcow2"},
		{io, "-f", "qcow2", "-c", "write -P 5 128k 64k", "-c", "write -z 1M 64k", "over.qcow2"},
		{img, "create", "-f", "qcow2", "-b", "over.qcow2", "-F", "qcow2", "top.qcow2", "4M"},
		{img, "convert", "-f", "raw", "-O", "qcow2", "sparse.raw", "snap.qcow2"},
		{img, "snapshot", "-c", "one", "snap.qcow2"},
		{io, "-f", "qcow2", "-c", "write -P 7 2M 64k", "snap.qcow2"},
		{img, "bitmap", "--add", "-g", "64k", "snap.qcow2", "b0"},
	} {
		must(t, dir, s[0], s[1:]...)
	}
	return []string{"empty.raw", "sparse.raw", "full.raw", "again.raw", "a.qcow2", "packed.qcow2", "v2.qcow2", "ext.qcow2", "over.qcow2", "top.qcow2", "snap.qcow2"}
}

// answers parses JSON, without what the reference's release on test machines
// does not print yet.
func answers(t testing.TB, r result) any {
	t.Helper()
	if strings.TrimSpace(r.out) == "" {
		return nil
	}
	var x any
	if err := json.Unmarshal([]byte(r.out), &x); err != nil {
		t.Fatalf("%v in %q", err, r.out)
	}
	return without(x)
}

func without(x any) any {
	switch x := x.(type) {
	case map[string]any:
		delete(x, "children")
		if _, isRun := x["depth"]; isRun {
			delete(x, "compressed")
			if x["data"] == true {
				delete(x, "zero") // see joined
			} else if x["depth"] != 0.0 {
				delete(x, "present") // a layer below does not tell zeroes from nothing
			}
		}
		for k, y := range x {
			x[k] = without(y)
		}
	case []any:
		var out []any
		for _, y := range x {
			y = without(y)
			if n := len(out); n == 0 || !joined(out[n-1], y) {
				out = append(out, y)
			}
		}
		return out
	}
	return x
}

// joined makes two runs of data in a row one: the reference also tells of holes
// that the file below has within a cluster.
func joined(a, b any) bool {
	u, isRun := a.(map[string]any)
	v, _ := b.(map[string]any)
	if !isRun || u["data"] != true || v["data"] != true || u["offset"] == nil || v["offset"] == nil || u["depth"] != v["depth"] {
		return false
	}
	if u["offset"].(float64)+u["length"].(float64) != v["offset"].(float64) {
		return false
	}
	u["length"] = u["length"].(float64) + v["length"].(float64)
	return true
}

// Whoever made an image, both say the same of it, with the same exit code.
func TestSameAnswers(t *testing.T) {
	dir, img, io := tools(t)
	for _, maker := range [][2]string{{img, io}, {"qemu-img", "qemu-io"}} {
		sub := filepath.Join(dir, fmt.Sprint("by-", filepath.Base(filepath.Dir(maker[0]))))
		if err := os.Mkdir(sub, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, name := range images(t, sub, maker[0], maker[1]) {
			if maker[0] == "qemu-img" && strings.HasSuffix(name, ".raw") {
				continue
			}
			format := strings.TrimPrefix(filepath.Ext(name), ".")
			for _, args := range [][]string{
				{"info", "--output=json", "--backing-chain", name},
				{"map", "--output=json", "-s", "70k", "-f", format, name},
				{"check", "--output=json", "-f", format, name},
				{"measure", "--output=json", "-O", "qcow2", "-f", format, name},
			} {
				ours, theirs := call(t, sub, img, args...), call(t, sub, "qemu-img", args...)
				if ours.code != theirs.code {
					t.Errorf("%s %q: exit code %d, the reference's %d\n%s%s", sub, args, ours.code, theirs.code, ours.err, theirs.err)
				}
				if d := cmp.Diff(answers(t, theirs), answers(t, ours)); d != "" {
					t.Errorf("%s %q (- the reference):\n%s", sub, args, d)
				}
			}
		}
	}
}

// What we made has the same content by the reference, and its metadata is
// whole.
func TestSameContent(t *testing.T) {
	dir, img, io := tools(t)
	for _, name := range images(t, dir, img, io) {
		if strings.HasSuffix(name, ".qcow2") {
			must(t, dir, "qemu-img", "check", "-f", "qcow2", name)
		}
	}
	same := [][2]string{{"sparse.raw", "a.qcow2"}, {"sparse.raw", "packed.qcow2"}, {"sparse.raw", "v2.qcow2"}, {"sparse.raw", "full.raw"},
		{"sparse.raw", "again.raw"}, {"over.qcow2", "top.qcow2"}, {"a.qcow2", "over.qcow2"}, {"empty.raw", "ext.qcow2"}, {"empty.raw", "sparse.raw"}}
	for _, p := range same {
		for _, strict := range [][]string{nil, {"-s"}} {
			args := append(append([]string{"compare"}, strict...), p[0], p[1])
			ours, theirs := call(t, dir, img, args...), call(t, dir, "qemu-img", args...)
			// Where allocation first differs depends on what the file system tells.
			if ours.code != theirs.code || strict == nil && ours.out != theirs.out {
				t.Errorf("%q: %d %q, the reference %d %q", args, ours.code, ours.out, theirs.code, theirs.out)
			}
		}
	}
	if r := call(t, dir, img, "compare", "a.qcow2", "over.qcow2"); r.code != 1 || !strings.Contains(r.out, "offset 65536") && !strings.Contains(r.out, "offset 131072") {
		t.Errorf("images that differ: %+v", r)
	}
}

// Changes keep the content, or make it what they are to make it.
func TestChanges(t *testing.T) {
	dir, img, io := tools(t)
	images(t, dir, img, io)
	must(t, dir, img, "convert", "-f", "qcow2", "-O", "raw", "top.qcow2", "before.raw")
	must(t, dir, img, "rebase", "-f", "qcow2", "-b", "a.qcow2", "-F", "qcow2", "top.qcow2")
	must(t, dir, "qemu-img", "compare", "before.raw", "top.qcow2")
	must(t, dir, img, "rebase", "-f", "qcow2", "-b", "", "top.qcow2")
	must(t, dir, "qemu-img", "compare", "before.raw", "top.qcow2")
	must(t, dir, img, "resize", "-f", "qcow2", "top.qcow2", "+1M")
	if r := call(t, dir, img, "resize", "-f", "qcow2", "top.qcow2", "-2M"); r.code != 1 || !strings.Contains(r.err, "--shrink") {
		t.Errorf("shrinking unasked: %+v", r)
	}
	must(t, dir, img, "resize", "-f", "qcow2", "--shrink", "top.qcow2", "-1M")
	must(t, dir, "qemu-img", "compare", "-s", "before.raw", "before.raw")
	must(t, dir, "qemu-img", "compare", "before.raw", "top.qcow2")
	must(t, dir, img, "convert", "-f", "qcow2", "-O", "raw", "over.qcow2", "over.raw")
	must(t, dir, img, "commit", "-d", "-f", "qcow2", "over.qcow2")
	must(t, dir, "qemu-img", "compare", "over.raw", "a.qcow2")
	must(t, dir, img, "convert", "-f", "qcow2", "-O", "raw", "-l", "one", "snap.qcow2", "one.raw")
	must(t, dir, "qemu-img", "compare", "sparse.raw", "one.raw")
	must(t, dir, img, "snapshot", "-a", "one", "snap.qcow2")
	must(t, dir, "qemu-img", "compare", "sparse.raw", "snap.qcow2")
	must(t, dir, img, "snapshot", "-d", "one", "snap.qcow2")
	must(t, dir, img, "amend", "-f", "qcow2", "-o", "lazy_refcounts=on", "snap.qcow2")
	for _, part := range []string{"skip=1", "count=20"} {
		must(t, dir, img, "dd", "-f", "raw", "bs=64k", part, "if=sparse.raw", "of=ours.raw")
		must(t, dir, "qemu-img", "dd", "-f", "raw", "bs=64k", part, "if=sparse.raw", "of=theirs.raw")
		must(t, dir, "cmp", "ours.raw", "theirs.raw")
	}
	for _, name := range []string{"a.qcow2", "top.qcow2", "snap.qcow2"} {
		must(t, dir, "qemu-img", "check", "-f", "qcow2", name)
	}
}

var numbers = regexp.MustCompile(`; .*`)

// The same commands print the same, times aside, and end with the same code.
func TestSameIO(t *testing.T) {
	dir, _, io := tools(t)
	for _, format := range []string{"raw", "qcow2"} {
		var out [2]result
		for i, prog := range []string{io, "qemu-io"} {
			name := fmt.Sprintf("%d.img", i)
			must(t, dir, "qemu-img", "create", "-f", format, name, "2M")
			args := []string{"-f", format}
			for _, c := range []string{"write 0 64k", "writev -P 0x11 64k 4k 8k", "read -P 0xcd 0 64k", "read -P 0x11 -s 4k -l 4k 60k 12k", "read -v 65530 20",
				"write -z 1k 512", "write -z -u 64k 64k", "alloc 0 2M", "map", "length", "discard 0 64k", "read -P 9 0 512", "read 3M 1k", "writev 2M 512 512",
				"readv 1M 4k 4k", "aio_write -P 3 1M 64k", "aio_flush", "truncate 3M", "length", "read -P 3 1M 64k", "read -P 0 2M 1M", "write -q 0 512", "flush", "quit", "length"} {
				args = append(args, "-c", c)
			}
			out[i] = call(t, dir, prog, append(args, name)...)
			out[i].out = numbers.ReplaceAllString(out[i].out, "")
		}
		if d := cmp.Diff(out[1].out, out[0].out); d != "" || out[0].code != out[1].code {
			t.Errorf("%s: exit codes %d and %d (- the reference):\n%s", format, out[0].code, out[1].code, d)
		}
		must(t, dir, "qemu-img", "compare", "-f", format, "-F", format, "0.img", "1.img")
	}
}

// A conversion that is killed leaves no file of the target's name.
func TestKilledConversion(t *testing.T) {
	dir, img, io := tools(t)
	must(t, dir, img, "create", "-f", "raw", "a.raw", "64M")
	must(t, dir, io, "-f", "raw", "-c", "write 0 64M", "a.raw")
	// So slow that it does not end by itself.
	cmd := exec.Command(img, "convert", "-f", "raw", "-O", "qcow2", "-r", "64k", "a.raw", "b.qcow2")
	cmd.Dir = dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	partial := filepath.Join(dir, ".b.qcow2.partial")
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(partial); err == nil {
			break
		}
		if time.Since(start) > time.Minute {
			t.Error("the conversion has not begun within a minute")
			break
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the conversion was not killed")
	}
	if _, err := os.Stat(filepath.Join(dir, "b.qcow2")); !os.IsNotExist(err) {
		t.Errorf("the target after the kill: %v", err)
	}
	must(t, dir, img, "convert", "-f", "raw", "-O", "qcow2", "a.raw", "b.qcow2")
	must(t, dir, "qemu-img", "compare", "a.raw", "b.qcow2")
	if _, err := os.Stat(partial); !os.IsNotExist(err) {
		t.Errorf("the unfinished file after a whole conversion: %v", err)
	}
}
