// Package peers drives a served disk with the tools that people already use:
// QEMU's, libnbd's and fio. What they read, write, map and verify must agree.
package peers

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/platter-storage/platter/internal/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

const size = 64 << 20

// backing is a kind of disk below the server.
type backing struct {
	name string
	make func(t *testing.T) []string // serve's arguments
}

func fileDisk(cache string, extra ...string) func(t *testing.T) []string {
	return func(t *testing.T) []string {
		path := filepath.Join(t.TempDir(), "disk.img")
		return append([]string{"--create", fmt.Sprint(size), "--cache", cache, path}, extra...)
	}
}

var backings = []backing{
	{"mem", func(*testing.T) []string { return []string{fmt.Sprintf("mem:%d", size)} }},
	{"file-none", fileDisk("none")},
	{"file-none-threads", fileDisk("none", "--aio", "threads")},
	{"file-none-native", fileDisk("none", "--aio", "native")},
	{"file-writeback", fileDisk("writeback")},
	{"file-directsync", fileDisk("directsync")},
	{"loop-512", func(t *testing.T) []string {
		return []string{"--cache", "none", testutil.Loop(t, t.TempDir(), size, 512)}
	}},
	{"loop-4096", func(t *testing.T) []string {
		return []string{"--cache", "none", testutil.Loop(t, t.TempDir(), size, 4096)}
	}},
}

// onEach runs f against a server over each kind of disk.
func onEach(t *testing.T, f func(t *testing.T, s *testutil.Server)) {
	for _, b := range backings {
		t.Run(b.name, func(t *testing.T) {
			s := testutil.Serve(t, b.make(t)...)
			f(t, s)
			s.Stop(t)
		})
	}
}

// content makes a file that is part random, part zero, part hole.
func content(t *testing.T, seed uint64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "content.raw")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rng := rand.New(rand.NewPCG(seed, 1))
	buf := make([]byte, 1<<20)
	for off := int64(0); off < size; off += int64(len(buf)) {
		switch rng.IntN(3) {
		case 0:
			continue // a hole
		case 1:
			clear(buf)
		default:
			for i := range buf {
				buf[i] = byte(rng.Uint32())
			}
		}
		if _, err := f.WriteAt(buf, off); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return path
}

func hashOf(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func TestQemuImgInfo(t *testing.T) {
	onEach(t, func(t *testing.T, s *testutil.Server) {
		var info struct {
			VirtualSize int64  `json:"virtual-size"`
			Format      string `json:"format"`
		}
		out := testutil.Run(t, "qemu-img", "info", "--output=json", s.URI(""))
		if err := json.Unmarshal([]byte(out), &info); err != nil {
			t.Fatal(err)
		}
		if info.VirtualSize != size || info.Format != "raw" {
			t.Errorf("qemu-img info sees %+v, want %d bytes of raw", info, size)
		}
	})
}

func TestQemuImgConvertAndCompare(t *testing.T) {
	src := content(t, 1)
	qcow := filepath.Join(t.TempDir(), "src.qcow2")
	testutil.Run(t, "qemu-img", "convert", "-O", "qcow2", src, qcow)
	onEach(t, func(t *testing.T, s *testutil.Server) {
		testutil.Run(t, "qemu-img", "convert", "-n", "-f", "qcow2", "-O", "raw", qcow, s.URI(""))
		testutil.Run(t, "qemu-img", "compare", "-f", "raw", "-F", "raw", src, s.URI(""))
		back := filepath.Join(t.TempDir(), "back.raw")
		testutil.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "raw", s.URI(""), back)
		if a, b := hashOf(t, src), hashOf(t, back); a != b {
			t.Errorf("what came back hashes to %s, not %s", b, a)
		}
	})
}

// extent is an entry of qemu-img map.
type extent struct {
	Start  int64 `json:"start"`
	Length int64 `json:"length"`
	Zero   bool  `json:"zero"`
	Data   bool  `json:"data"`
}

func qemuMap(t *testing.T, target string) []extent {
	t.Helper()
	var m []extent
	if err := json.Unmarshal([]byte(testutil.Run(t, "qemu-img", "map", "--output=json", "-f", "raw", target)), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestQemuImgMap compares the map through the server with qemu-img's own map
// of the same file.
func TestQemuImgMap(t *testing.T) {
	src := content(t, 2)
	want := qemuMap(t, src)
	for _, cache := range []string{"none", "writeback"} {
		s := testutil.Serve(t, "--cache", cache, "--read-only", src)
		got := qemuMap(t, s.URI(""))
		s.Stop(t)
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("cache=%s: the served map differs:\n got %v\nwant %v", cache, got, want)
		}
	}
}

// qemuIO runs commands and fails on the first that fails, a pattern that does
// not match included.
func qemuIO(t *testing.T, uri string, commands ...string) string {
	t.Helper()
	args := []string{"-f", "raw", uri}
	for _, c := range commands {
		args = append(args, "-c", c)
	}
	out := testutil.Run(t, "qemu-io", args...)
	for _, bad := range []string{"failed", "error", "Pattern verification"} {
		if strings.Contains(out, bad) {
			t.Fatalf("qemu-io %v: %s", commands, out)
		}
	}
	return out
}

func TestQemuIO(t *testing.T) {
	onEach(t, func(t *testing.T, s *testutil.Server) {
		qemuIO(t, s.URI(""),
			"write -P 1 0 1M",
			"write -P 2 512 512", "read -P 1 0 512", "read -P 2 512 512", "read -P 1 1024 1023k",
			"write -P 3 70001 3333", "read -P 1 69632 369", "read -P 3 70001 3333", "read -P 1 73334 100",
			"write -z 128k 64k", "read -P 0 128k 64k", "read -P 1 192k 64k",
			"write -z -u 300001 100000", "read -P 0 300001 100000", "read -P 1 300000 1", "read -P 1 400001 7",
			"write -f -P 4 2M 64k", "read -P 4 2M 64k",
			"discard 3M 1M", "flush",
			"writev -P 5 4M 512 1536 4096 1", "read -P 5 4M 6145",
			"aio_write -P 6 5M 64k", "aio_write -P 7 5184k 64k", "aio_flush", "read -P 6 5M 64k", "read -P 7 5184k 64k",
			fmt.Sprintf("write -P 8 %d 511", size-511), fmt.Sprintf("read -P 8 %d 511", size-511),
			"length")
		if out, err := testutil.Try("qemu-io", "-f", "raw", "-c", fmt.Sprintf("read %d 1M", size), s.URI("")); err == nil && !strings.Contains(out, "failed") {
			t.Errorf("a read beyond the end succeeded: %s", out)
		}
	})
}

func TestNbdinfo(t *testing.T) {
	src := content(t, 3)
	s := testutil.Serve(t, "--read-only", "--export", "name=golden,description=the golden image", src)
	defer s.Stop(t)
	if got := strings.TrimSpace(testutil.Run(t, "nbdinfo", "--size", s.URI("golden"))); got != fmt.Sprint(size) {
		t.Errorf("nbdinfo --size says %s", got)
	}
	list := testutil.Run(t, "nbdinfo", "--list", s.URI(""))
	for _, want := range []string{"golden", "the golden image", "base:allocation", "is_read_only: true"} {
		if !strings.Contains(list, want) {
			t.Errorf("nbdinfo --list lacks %q:\n%s", want, list)
		}
	}
	var m []struct {
		Offset, Length int64
		Type           int
	}
	if err := json.Unmarshal([]byte(testutil.Run(t, "nbdinfo", "--map", "--json", s.URI("golden"))), &m); err != nil {
		t.Fatal(err)
	}
	want := qemuMap(t, src)
	if len(m) != len(want) {
		t.Fatalf("nbdinfo --map has %d runs, qemu-img map of the file %d", len(m), len(want))
	}
	for i, e := range want {
		hole := m[i].Type&1 != 0
		if m[i].Offset != e.Start || m[i].Length != e.Length || hole == e.Data {
			t.Errorf("run %d: nbdinfo says %+v, qemu-img says %+v", i, m[i], e)
		}
	}
}

func TestNbdcopyBothWays(t *testing.T) {
	src := content(t, 4)
	onEach(t, func(t *testing.T, s *testutil.Server) {
		back := filepath.Join(t.TempDir(), "back.raw")
		testutil.Run(t, "nbdcopy", "--flush", src, s.URI(""))
		testutil.Run(t, "nbdcopy", s.URI(""), back)
		if a, b := hashOf(t, src), hashOf(t, back); a != b {
			t.Errorf("what came back hashes to %s, not %s", b, a)
		}
	})
}

// TestNbdsh runs a session in the Python of the distribution, which is the one
// that libnbd's package installs its module for.
func TestNbdsh(t *testing.T) {
	script, err := os.ReadFile("testdata/session.py")
	if err != nil {
		t.Fatal(err)
	}
	onEach(t, func(t *testing.T, s *testutil.Server) {
		out := testutil.Run(t, "env", "PATH=/usr/bin:/bin", "nbdsh", "--base-allocation", "-u", s.URI(""), "-c", string(script))
		if !strings.Contains(out, "all checks passed") {
			t.Errorf("nbdsh: %s", out)
		}
	})
}

func TestFioVerify(t *testing.T) {
	onEach(t, func(t *testing.T, s *testutil.Server) {
		testutil.Run(t, "fio", "--name=verify", "--ioengine=nbd", "--uri="+s.URI(""), "--rw=randwrite", "--bsrange=512-128k",
			"--bs_unaligned=0", "--blockalign=512", "--size=48m", "--io_size=48m", "--iodepth=32", "--verify=crc32c", "--verify_backlog=64",
			"--do_verify=1", "--verify_state_save=0", "--randseed=7", "--verify_fatal=1")
	})
}

// TestStorageDaemonClient reads and writes a disk through the reference
// daemon's NBD client and its own export on top.
func TestStorageDaemonClient(t *testing.T) {
	onEach(t, func(t *testing.T, s *testutil.Server) {
		dir, err := os.MkdirTemp("", "qsd")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		sock := filepath.Join(dir, "q")
		stop := testutil.Background(t, sock, "qemu-storage-daemon",
			"--blockdev", "driver=nbd,node-name=n,server.type=unix,server.path="+s.Socket+",export=",
			"--nbd-server", "addr.type=unix,addr.path="+sock,
			"--export", "type=nbd,id=e,node-name=n,name=through,writable=on")
		defer stop()
		qemuIO(t, "nbd+unix:///through?socket="+sock,
			"write -P 9 1000 100000", "read -P 9 1000 100000", "write -z -u 8192 8192", "read -P 0 8192 8192", "flush")
		qemuIO(t, s.URI(""), "read -P 9 1000 7192", "read -P 0 8192 8192")
	})
}
