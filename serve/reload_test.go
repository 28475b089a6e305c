package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	_ "github.com/platter-storage/platter/filter/all"
	_ "github.com/platter-storage/platter/format/all"
	"github.com/platter-storage/platter/internal/testutil"
	_ "github.com/platter-storage/platter/protocol/all"
	"github.com/platter-storage/platter/serve/config"
	"github.com/platter-storage/platter/wire/nbd"
)

// bench is a daemon under test, with the folder of its sockets and files.
type bench struct {
	t   *testing.T
	dir string
	d   *Daemon
	log bytes.Buffer
}

func parse(t *testing.T, text string) *config.Config {
	t.Helper()
	cfg, err := configOf(text)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func configOf(text string) (*config.Config, error) {
	l, err := config.Parse("serve.yaml", []byte(text))
	if err != nil {
		return nil, err
	}
	return config.Build(l)
}

// serving starts a daemon. DIR in text is its folder; without listen it
// listens on DIR/s.
func serving(t *testing.T, text string) *bench {
	t.Helper()
	b := &bench{t: t, dir: short(t)}
	var err error
	b.d, err = Start(t.Context(), b.config(text), slog.New(slog.NewTextHandler(&b.log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.d.Stop(context.Background()); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return b
}

func (b *bench) config(text string) *config.Config {
	b.t.Helper()
	if !strings.Contains(text, "listen:") {
		text += "\nlisten: unix:DIR/s\n"
	}
	return parse(b.t, strings.ReplaceAll(text, "DIR", b.dir))
}

func (b *bench) reload(text string) error {
	b.t.Helper()
	_, err := b.d.Reload(b.t.Context(), b.config(text))
	return err
}

func (b *bench) mustReload(text string) {
	b.t.Helper()
	if err := b.reload(text); err != nil {
		b.t.Fatal(err)
	}
}

// dial connects to an export on the socket DIR/s.
func (b *bench) dial(export string) (*nbd.Client, error) {
	c, err := nbd.Dial(b.t.Context(), "nbd+unix:///"+export+"?socket="+b.dir+"/s", nbd.Best)
	if err == nil {
		b.t.Cleanup(func() { c.Close() })
	}
	return c, err
}

func (b *bench) mustDial(export string) *nbd.Client {
	b.t.Helper()
	c, err := b.dial(export)
	if err != nil {
		b.t.Fatalf("export %q: %v", export, err)
	}
	return c
}

// mark writes a byte through a client, and has says whether it is there.
func mark(t *testing.T, c *nbd.Client, x byte) {
	t.Helper()
	if err := c.Pwrite([]byte{x}, 7, 0); err != nil {
		t.Fatal(err)
	}
}

func has(t *testing.T, c *nbd.Client, x byte) {
	t.Helper()
	p := []byte{0}
	if err := c.Pread(p, 7, 0); err != nil {
		t.Fatal(err)
	}
	if p[0] != x {
		t.Fatalf("read %d, want %d", p[0], x)
	}
}

// gone checks that the client's connection has ended.
func gone(t *testing.T, c *nbd.Client) {
	t.Helper()
	if err := c.Pread([]byte{0}, 7, 0); err == nil {
		t.Fatal("the connection still works")
	}
}

func TestReloadKeepsWhatStays(t *testing.T) {
	b := serving(t, "disks: [{path: 'mem:1M', name: a}, {path: 'mem:1M', name: b}, {path: 'mem:1M', name: c}]")
	a, other, c := b.mustDial("a"), b.mustDial("b"), b.mustDial("c")
	mark(t, a, 1)
	mark(t, other, 2)
	mark(t, c, 3)
	b.mustReload("disks: [{path: 'mem:1M', name: c}, {path: 'mem:1M', name: a}, {path: 'mem:2M', name: d}]")
	has(t, a, 1)
	has(t, c, 3)
	gone(t, other)
	if _, err := b.dial("b"); err == nil {
		t.Error("export b is still there")
	}
	if got := b.mustDial("d").Size(); got != 2<<20 {
		t.Errorf("d has %d bytes", got)
	}
	has(t, b.mustDial("a"), 1) // a new client sees the same memory
	has(t, b.mustDial(""), 3)  // the first disk is now c
}

func TestReloadReopensWhatChanged(t *testing.T) {
	b := serving(t, "disks: [{path: 'mem:1M', name: a}, {path: 'mem:1M', name: b}]")
	a, other := b.mustDial("a"), b.mustDial("b")
	mark(t, a, 1)
	mark(t, other, 2)
	b.mustReload("disks: [{path: 'mem:1M', name: a, discard: ignore}, {path: 'mem:1M', name: b}]")
	gone(t, a)
	has(t, other, 2)
	has(t, b.mustDial("a"), 0) // opened anew: memory begins empty
}

func TestReloadOfExportsAlone(t *testing.T) {
	b := serving(t, "disks: [{path: 'mem:1M', name: a, export: [x, y]}]")
	x, y := b.mustDial("x"), b.mustDial("y")
	mark(t, x, 1)
	b.mustReload("disks: [{path: 'mem:1M', name: a, export: [{name: z, read-only: on}, x]}]")
	has(t, x, 1)
	gone(t, y)
	z := b.mustDial("z")
	has(t, z, 1)
	if err := z.Pwrite([]byte{1}, 0, 0); err == nil {
		t.Error("a read-only export takes a write")
	}
}

func TestReloadOfARenamedDisk(t *testing.T) {
	b := serving(t, "disks: [{path: DIR/a.img, name: a, create: 1M}]")
	c := b.mustDial("")
	mark(t, c, 1)
	b.mustReload("disks: [{path: DIR/a.img, name: b, read-only: on}]")
	gone(t, c)
	c = b.mustDial("")
	has(t, c, 1)
	if err := c.Pwrite([]byte{1}, 0, 0); err == nil {
		t.Error("a read-only disk takes a write")
	}
}

func TestReloadMovesTheDefault(t *testing.T) {
	b := serving(t, "disks: [{path: 'mem:1M', name: a}, {path: 'mem:2M', name: b}]")
	unnamed, a := b.mustDial(""), b.mustDial("a")
	if unnamed.Size() != 1<<20 {
		t.Fatalf("the default export has %d bytes", unnamed.Size())
	}
	mark(t, a, 1)
	b.mustReload("disks: [{path: 'mem:2M', name: b}, {path: 'mem:1M', name: a}]")
	has(t, a, 1)
	gone(t, unnamed)
	if got := b.mustDial("").Size(); got != 2<<20 {
		t.Errorf("the default export now has %d bytes", got)
	}
}

// TestWrongReloadChangesNothing covers what is found before anything is
// touched.
func TestWrongReloadChangesNothing(t *testing.T) {
	const good = "disks: [{path: 'mem:1M', name: a}, {path: 'mem:1M', name: b}]"
	b := serving(t, good)
	a, other := b.mustDial("a"), b.mustDial("b")
	mark(t, a, 1)
	mark(t, other, 2)
	busy := filepath.Join(b.dir, "busy")
	mustListen(t, busy, 0o600)
	for text, want := range map[string]string{
		"disks: [{path: 'mem:1M', name: a},\n  {path: DIR/none.img, name: c}]":    "serve.yaml:2:4: ",
		"disks: [{path: 'mem:1M', name: a}, {path: 'meme:1M', name: b}]":          "",
		"disks: [{path: 'mem:2X', name: a}]":                                      "is not a size",
		"disks: [{path: 'driver=mum', name: a}]":                                  "did you mean mem?",
		"disks: [{path: 'mem:1M', name: c}]\nlisten: [unix:DIR/s, unix:DIR/busy]": "listens there already",
	} {
		err := b.reload(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngives %v, want %q", text, err, want)
		}
		has(t, a, 1)
		has(t, other, 2)
		has(t, b.mustDial("a"), 1)
		has(t, b.mustDial("b"), 2)
	}
	b.mustReload(good)
	has(t, a, 1)
}

func TestFailedReopenGoesBack(t *testing.T) {
	b := serving(t, "disks: [{path: DIR/a.img, name: a, create: 1M}, {path: 'mem:1M', name: b}]")
	other := b.mustDial("b")
	mark(t, other, 2)
	mark(t, b.mustDial("a"), 1)
	// Only opening finds this.
	err := b.reload("disks: [{path: DIR/a.img, name: a, options: {mem-align: 3}}, {path: 'mem:1M', name: b}]")
	if err == nil || !strings.Contains(err.Error(), "mem-align=3 is not possible") || !strings.Contains(err.Error(), "serve.yaml:1:") {
		t.Fatalf("got %v", err)
	}
	has(t, b.mustDial("a"), 1)
	has(t, other, 2)
	b.mustReload("disks: [{path: 'mem:1M', name: b}]")
	has(t, other, 2)
	if _, err := b.dial("a"); err == nil {
		t.Error("a is still there")
	}
}

func TestReloadOfListeners(t *testing.T) {
	b := serving(t, "disks: ['mem:1M']\nlisten: [unix:DIR/s, unix:DIR/old]")
	c := b.mustDial("")
	mark(t, c, 1)
	b.mustReload("disks: ['mem:1M']\nlisten: [unix:DIR/s, unix:DIR/new, 'localhost:0']")
	has(t, c, 1)
	has(t, b.mustDial(""), 1)
	if _, err := os.Lstat(filepath.Join(b.dir, "old")); !os.IsNotExist(err) {
		t.Errorf("the old socket: %v", err)
	}
	ready := b.d.Ready()
	if len(ready.Listen) != 3 || len(ready.Disks[0].Exports[0].URIs) != 3 {
		t.Fatalf("listens on %v, URIs %v", ready.Listen, ready.Disks[0].Exports[0].URIs)
	}
	for _, uri := range ready.Disks[0].Exports[0].URIs {
		other, err := nbd.Dial(t.Context(), uri, nbd.Best)
		if err != nil {
			t.Fatalf("%s: %v", uri, err)
		}
		has(t, other, 1)
		other.Close()
	}
}

func TestInheritedSocketComesBack(t *testing.T) {
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd, err := unix.Dup(int(f.Fd())) // the daemon's own from now on
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("disks: ['mem:1M']\nlisten: 'fd:%d'", fd)
	b := serving(t, text)
	for range 2 {
		runtime.GC()
		b.mustReload("disks: ['mem:1M']")
		b.mustReload(text)
	}
	c, err := nbd.Dial(t.Context(), "nbd://"+l.Addr().String(), nbd.Best)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

func TestReloadTakesNewCertificates(t *testing.T) {
	old, fresh, now := testutil.Certs(t), testutil.Certs(t), t.TempDir()
	use := func(dir string) {
		for _, name := range []string{"server-cert.pem", "server-key.pem", "ca-cert.pem"} {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(now, name), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	use(old)
	text := strings.ReplaceAll("disks: ['mem:1M']\ntls-cert: N/server-cert.pem\ntls-key: N/server-key.pem\ntls-ca: N/ca-cert.pem\ntls-verify-client: on\nlisten: 'localhost:0'", "N", now)
	b := serving(t, text)
	uri := b.d.Ready().Disks[0].Exports[0].URIs[0] + "?tls-certificates="
	c, err := nbd.Dial(t.Context(), uri+old, nbd.Best)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	mark(t, c, 1)
	use(fresh)
	b.mustReload(text)
	has(t, c, 1)
	other, err := nbd.Dial(t.Context(), uri+fresh, nbd.Best)
	if err != nil {
		t.Fatalf("with the new certificates: %v", err)
	}
	has(t, other, 1)
	other.Close()
	if _, err := nbd.Dial(t.Context(), uri+old, nbd.Best); err == nil {
		t.Error("the old certificates still work")
	}
	if err := os.WriteFile(filepath.Join(now, "server-key.pem"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.reload(text); err == nil || !strings.Contains(err.Error(), "belong together") {
		t.Errorf("with a broken key: %v", err)
	}
	has(t, c, 1)
}

func TestWarningsAboutOpenListeners(t *testing.T) {
	certs := testutil.Certs(t)
	const cert = "\ntls-cert: C/server-cert.pem\ntls-key: C/server-key.pem"
	for text, want := range map[string]string{
		"listen: ':0'":                       "can be read on the way",
		"listen: ':0'\ntls: optional" + cert: "can be read on the way",
		"listen: ':0'" + cert:                "let only clients with a certificate in",
		"listen: ':0'\ntls-verify-client: on\ntls-ca: C/ca-cert.pem" + cert: "",
		"listen: 'localhost:0'": "",
	} {
		b := serving(t, strings.ReplaceAll("disks: ['mem:1M']\n"+text, "C", certs))
		if got := b.log.String(); strings.Contains(got, "WARN") != (want != "") || !strings.Contains(got, want) {
			t.Errorf("%s\nlogs %q, want %q", text, got, want)
		}
	}
}

// TestStopLeavesNothingOpen counts descriptors over many lives of a daemon: a
// first one may leave what the process keeps for good.
func TestStopLeavesNothingOpen(t *testing.T) {
	dir := short(t)
	cfg := parse(t, strings.ReplaceAll("listen: [unix:DIR/s, 'localhost:0']\ndisks: [{path: DIR/a.img, create: 1M}, 'mem:1M']", "DIR", dir))
	life := func() int {
		t.Helper()
		d, err := Start(t.Context(), cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		c, err := nbd.Dial(t.Context(), "nbd+unix:///a?socket="+dir+"/s", nbd.Best)
		if err != nil {
			t.Fatal(err)
		}
		mark(t, c, 1)
		c.Close()
		if err := d.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		return descriptors(t)
	}
	first := life()
	for range 3 {
		life()
	}
	// What the runtime lets go of later, such as a timer's or a finaliser's.
	for end := time.Now().Add(testutil.StartTimeout); descriptors(t) > first; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d descriptors after the first life, %d after three more", first, descriptors(t))
		}
	}
}

// descriptors is how many this process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func TestReloadSaysWhatNeedsARestart(t *testing.T) {
	b := serving(t, "disks: ['mem:1M']\nmax-connections: 9")
	b.mustReload("disks: ['mem:1M']\nmax-connections: 10\nbuffer-memory: 1M")
	for _, name := range []string{"max-connections", "buffer-memory"} {
		if want := "this setting is changed by a restart only\" setting=" + name; !strings.Contains(b.log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, b.log.String())
		}
	}
	b.log.Reset()
	b.mustReload("disks: ['mem:1M']\nmax-connections: 9")
	if strings.Contains(b.log.String(), "restart only") {
		t.Errorf("nothing differs from the start, but:\n%s", b.log.String())
	}
}

func TestFailedStartLeavesNothing(t *testing.T) {
	dir := short(t)
	cfg := parse(t, strings.ReplaceAll("pid-file: DIR/pid\nlisten: [unix:DIR/s, 'fd:999']\ndisks: [{path: DIR/a.img, create: 1M}]", "DIR", dir))
	if _, err := Start(t.Context(), cfg, slog.New(slog.DiscardHandler)); err == nil {
		t.Fatal("it starts")
	}
	for _, name := range []string{"pid", "s"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !os.IsNotExist(err) {
			t.Errorf("%s is left behind (%v)", name, err)
		}
	}
	cfg.Listen = cfg.Listen[:1]
	d, err := Start(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatalf("the file is still locked: %v", err)
	}
	if err := d.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestExampleFitsTheDrivers holds the example in docs against the real drivers.
func TestExampleFitsTheDrivers(t *testing.T) {
	l, err := config.LoadFile("../docs/serve.yaml")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Build(l)
	if err != nil {
		t.Fatal(err)
	}
	if err := checkDisks(cfg); err != nil {
		t.Error(err)
	}
}

func TestStatsSurviveAReopen(t *testing.T) {
	b := serving(t, "disks: [{path: 'mem:1M', name: a}]")
	mark(t, b.mustDial(""), 1)
	b.mustReload("disks: [{path: 'mem:1M', name: a, discard: ignore}]")
	mark(t, b.mustDial(""), 1)
	s := b.d.Stats()
	if len(s.Exports) != 1 || s.Exports[0].Operations["write"].Requests != 2 || s.Exports[0].Disk != "a" {
		t.Errorf("statistics: %+v", s.Exports)
	}
}

// A volume that others have grown or cut: a reload notices, tells new clients,
// and leaves those who are connected alone.
func TestReloadAsksForSizes(t *testing.T) {
	b := serving(t, "disks: [{path: 'mem:1M', name: m}]")
	img := b.dir + "/a.img"
	if err := os.WriteFile(img, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	const text = "disks: [{path: 'mem:1M', name: m}, {path: DIR/a.img, name: a}, {path: 'driver=raw,size=64K,file.driver=file,file.filename=DIR/b.img', name: b}]"
	if err := os.WriteFile(b.dir+"/b.img", make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	b.mustReload(text)
	old := b.mustDial("a")
	for _, c := range []struct {
		size int64
		want string
	}{{2 << 20, "disk a has 2 MiB (2097152 bytes) now, it had 1048576"}, {1 << 19, "disk a has 512 KiB (524288 bytes) now, it had 2097152"}} {
		if err := errors.Join(os.Truncate(img, c.size), os.Truncate(b.dir+"/b.img", c.size)); err != nil {
			t.Fatal(err)
		}
		changes, err := b.d.Reload(t.Context(), b.config(text))
		if err != nil || !slices.Equal(changes, []string{c.want}) {
			t.Errorf("the reload says %q, %v, want %q", changes, err, c.want)
		}
		if got := b.mustDial("a").Size(); got != uint64(c.size) {
			t.Errorf("a new client is told of %d bytes, want %d", got, c.size)
		}
		mark(t, old, 5)
		has(t, old, 5)
	}
	if old.Size() != 1<<20 {
		t.Errorf("the old client is told of %d bytes", old.Size())
	}
}
