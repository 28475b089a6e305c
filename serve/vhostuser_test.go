package serve

import (
	"encoding/binary"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/platter-storage/platter/export/vhostuser"
	"github.com/platter-storage/platter/serve/config"
	wire "github.com/platter-storage/platter/wire/vhostuser"
)

// frontEnd connects to the daemon's vhost-user socket DIR/name and asks how
// many sectors the disk has.
func (b *bench) frontEnd(name string) (f *wire.Frontend, sectors uint64) {
	b.t.Helper()
	f, err := wire.DialFrontend(b.dir + "/" + name)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { f.Close() })
	f.Timeout = 30 * time.Second
	if err := f.SetProtocolFeatures(wire.ProtocolConfig | wire.ProtocolMQ); err != nil {
		b.t.Fatal(err)
	}
	c, err := f.GetConfig(0, 60)
	if err != nil {
		b.t.Fatal(err)
	}
	return f, binary.LittleEndian.Uint64(c)
}

// Without listen there is no NBD where every disk is offered over vhost-user;
// what is printed attaches the disk.
func TestVhostUserAlone(t *testing.T) {
	b := &bench{t: t, dir: short(t)}
	cfg := parse(t, "disks:\n  - {name: a, path: 'mem:1M', vhost-user: "+b.dir+"/v}\n")
	if got := effectiveListen(cfg, &inherited{}); len(got) != 0 {
		t.Errorf("listeners %v, though nobody asked for one", got)
	}
	cfg = parse(t, "disks:\n  - {name: a, path: 'mem:1M', vhost-user: "+b.dir+"/v}\n  - {name: b, path: 'mem:1M'}\n")
	if got := effectiveListen(cfg, &inherited{}); len(got) != 1 {
		t.Errorf("listeners %v, though one disk is offered over NBD alone", got)
	}
}

// One disk over both at once; a reload keeps who is the same, and lets go of
// who is not.
func TestVhostUserReload(t *testing.T) {
	const one = "disks:\n  - {name: a, path: 'mem:1M', vhost-user: 'DIR/v,queues=2,block-size=4096'}\n"
	b := serving(t, one)
	f, sectors := b.frontEnd("v")
	if sectors != 2048 {
		t.Errorf("%d sectors", sectors)
	}
	if n, err := f.QueueNum(); n != 2 || err != nil {
		t.Errorf("%d queues, %v", n, err)
	}
	if _, err := b.dial("a"); err != nil {
		t.Errorf("over NBD: %v", err)
	}
	b.mustReload(one + "  - {name: b, path: 'mem:2M', vhost-user: [DIR/w, DIR/x]}\n")
	if _, err := f.Features(); err != nil {
		t.Errorf("a front end of a disk that stays: %v", err)
	}
	for _, name := range []string{"w", "x"} {
		if _, sectors := b.frontEnd(name); sectors != 4096 {
			t.Errorf("%s: %d sectors", name, sectors)
		}
	}
	r := b.d.Ready()
	if len(r.Disks) != 2 || len(r.Disks[1].VhostUsers) != 2 || len(r.Listen) != 4 {
		t.Errorf("%+v", r)
	}
	if s := b.d.Stats(); s.Connections < 1 {
		t.Errorf("%d connections", s.Connections)
	}
	b.mustReload("disks:\n  - {name: a, path: 'mem:1M', vhost-user: 'DIR/v,queues=3,block-size=4096'}\n")
	if _, err := f.Features(); err == nil {
		t.Error("the front end of a socket with other settings is still served")
	}
	if g, _ := b.frontEnd("v"); g != nil {
		if n, err := g.QueueNum(); n != 3 || err != nil {
			t.Errorf("%d queues, %v", n, err)
		}
	}
	for _, name := range []string{"w", "x"} {
		if _, err := os.Lstat(b.dir + "/" + name); err == nil {
			t.Errorf("socket %s is still there", name)
		}
	}
	b.mustReload("disks:\n  - {name: a, path: 'mem:1M'}\n")
	if _, err := os.Lstat(b.dir + "/v"); err == nil {
		t.Error("the socket is still there")
	}
	if err := b.reload("disks:\n  - {name: a, path: 'mem:1M', vhost-user: /nowhere/at/all}\n"); err == nil {
		t.Error("a socket in a folder that there is not")
	}
}

func TestVhostUserSettings(t *testing.T) {
	if config.MaxVhostQueues != vhostuser.MaxQueues || config.MinVhostQueueSize != vhostuser.MinQueueSize || config.MaxVhostQueueSize != vhostuser.MaxQueueSize {
		t.Error("the bounds of the settings are not those of the export")
	}
	cfg := parse(t, `
disks:
  - path: mem:1M
    vhost-user: {path: /run/a, queues: 8, size: 256, packed: off, in-order: on, block-size: 4096, serial: "x,y", poll: off, mode: 0660}
  - path: mem:2M
    vhost-user: ["/run/b,poll=20us", "path=/run/c,connect=on"]
`)
	want := [][]config.VhostUser{
		{{Path: "/run/a", Queues: 8, Size: 256, NoPacked: true, InOrder: true, BlockSize: 4096, Serial: "x,y", Poll: -1, Mode: 0o660}},
		{{Path: "/run/b", Poll: 20 * time.Microsecond}, {Path: "/run/c", Connect: true}},
	}
	for i, vs := range want {
		got := cfg.Disks[i].VhostUsers
		if len(got) != len(vs) {
			t.Fatalf("disk %d: %+v", i, got)
		}
		for j := range vs {
			if !got[j].Same(vs[j]) {
				t.Errorf("%+v, want %+v", got[j], vs[j])
			}
		}
	}
	for text, part := range map[string]string{
		"{path: /run/a, queues: 65}":                    "whole number from 1 to 64",
		"{path: /run/a, size: 100}":                     "power of two",
		"{path: /run/a, block-size: 1024}":              "512 or 4096",
		"{path: /run/a, poll: 1s}":                      "up to 1ms",
		"{path: /run/a, serial: 012345678901234567890}": "at most 20 bytes",
		"{path: /run/a, connect: on, mode: 0600}":       "leave one away",
		"{queues: 2}":                      "lacks the socket's path",
		"{path: /run/a, qeues: 2}":         "did you mean queues?",
		"[/run/a, /run/a]":                 "used twice",
		"/" + strings.Repeat("x", 107):     "at most 107 bytes",
		"{path: /run/a, packed: 2}":        "neither on nor off",
		"{path: /run/nbd.sock, queues: 2}": "used twice",
	} {
		l, err := config.Parse("x.yaml", []byte("listen: unix:/run/nbd.sock\ndisks:\n  - path: mem:1M\n    vhost-user: "+text+"\n"))
		if err == nil {
			_, err = config.Build(l)
		}
		if err == nil || !strings.Contains(err.Error(), part) || !strings.HasPrefix(err.Error(), "x.yaml:") {
			t.Errorf("%s: %v, want x.yaml:… %q", text, err, part)
		}
	}
}

func TestVhostUserLines(t *testing.T) {
	lines := vhostLines(&config.VhostUser{Path: "/run/a,b", Size: 64}, 4, true)
	for i, part := range []string{
		"path=/run/a,,b,reconnect=1 -device vhost-user-blk-pci,chardev=platter0,num-queues=4",
		"socket=/run/a,b,num_queues=4,queue_size=64,readonly=on",
		`"socket":"/run/a,b"`,
	} {
		if !strings.Contains(lines[i], part) {
			t.Errorf("%s\nlacks %s", lines[i], part)
		}
	}
	if lines := vhostLines(&config.VhostUser{Path: "/run/a", Connect: true}, 1, false); len(lines) != 1 || !strings.Contains(lines[0], "server=on,wait=off") {
		t.Errorf("%q", lines)
	}
}

// A front end that leaves is a client that leaves.
func TestVhostUserOnce(t *testing.T) {
	b := serving(t, "once: on\ndisks:\n  - {name: a, path: 'mem:1M', vhost-user: DIR/v}\n")
	f, _ := b.frontEnd("v")
	c, err := b.dial("a")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	select {
	case <-b.d.LastLeft():
		t.Fatal("the end, though an NBD client is there")
	case <-time.After(50 * time.Millisecond):
	}
	c.Close()
	select {
	case <-b.d.LastLeft():
	case <-time.After(30 * time.Second):
		t.Fatal("no end, though all have left")
	}
}

// Without a lock nothing shows that the writes of a process that died have
// ended.
func TestVhostUserWithoutALock(t *testing.T) {
	dir := short(t)
	for _, c := range []struct {
		more string
		want bool
	}{{"locking: off", true}, {"locking: off, read-only: on", false}, {"locking: on", false}} {
		t.Run(c.more, func(t *testing.T) {
			if err := os.WriteFile(dir+"/disk", make([]byte, 1<<20), 0o600); err != nil {
				t.Fatal(err)
			}
			b := serving(t, "disks:\n  - {name: a, path: "+dir+"/disk, vhost-user: DIR/v, "+c.more+"}\n")
			if got := strings.Contains(b.log.String(), "a late write of the old process"); got != c.want {
				t.Errorf("warned %v, want %v\n%s", got, c.want, b.log.String())
			}
		})
	}
}
