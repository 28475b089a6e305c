package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/platter-storage/platter/bench/content"
	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/export/vhostuser"
	"github.com/platter-storage/platter/virtio"
)

const forLong = time.Minute

// serve offers a disk in memory, whose first MiB holds what filled disks hold.
func serve(t *testing.T, in *block.Instance) (socket string) {
	t.Helper()
	child, err := in.NewChild("export", block.RoleRoot, block.PermRead|block.PermWrite, block.PermAll)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(child.Close)
	dev, err := vhostuser.New(vhostuser.Config{Name: "disk", Child: child, Env: in.Env(), Queues: 2, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Limiter: newClearing(4096)})
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- dev.Serve(l) }()
	t.Cleanup(func() {
		if err := dev.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, vhostuser.ErrClosed) {
			t.Error(err)
		}
	})
	return socket
}

func emulated(t *testing.T, env *block.Env, n int64) (*blocktest.Emulator, *block.Instance) {
	e := blocktest.NewEmulator(t, blocktest.EmulatorConfig{Size: n})
	b := make([]byte, n)
	content.Filled(b, 0)
	e.Fill(b)
	return e, blocktest.Attach(t, env, e, "disk")
}

// Every row's workload runs, and each byte is what it should be.
func TestRowsRunAndCheckWhatTheyRead(t *testing.T) {
	env := blocktest.NewEnv(t)
	e, in := emulated(t, env, 8*mib)
	socket := serve(t, in)
	for _, r := range rows {
		c, err := connect(socket, r.load)
		if err != nil {
			t.Fatal(r.name, err)
		}
		l, err := c.run(forLong, 40, content.Filled)
		if err = errors.Join(err, c.leave()); err != nil {
			t.Fatal(r.name, err)
		}
		if want := int64(40 * r.load.queues); l.ops != want || l.lat.Percentile(50) == 0 {
			t.Errorf("%s: %d requests, want %d", r.name, l.ops, want)
		}
	}
	want := make([]byte, 8*mib)
	content.Filled(want, 0)
	if !slices.Equal(e.Content(), want) {
		t.Error("the disk does not hold what was written")
	}
}

func TestWrongBytesAndFailuresAreErrors(t *testing.T) {
	env := blocktest.NewEnv(t)
	e, in := emulated(t, env, mib)
	socket := serve(t, in)
	e.Fill([]byte("something else"))
	w := workload{block: 4 * kib, depth: 1, queues: 1}
	for _, x := range []struct {
		fault *blocktest.Fault
		want  string
	}{{nil, "read of 4096 bytes at 0: other data"}, {&blocktest.Fault{Err: errors.New("broken")}, "failed with status 1"}} {
		if x.fault != nil {
			e.Inject(x.fault)
		}
		c, err := connect(socket, w)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = c.run(forLong, 4, content.Filled); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%v, want %q", err, x.want)
		}
		if err := c.leave(); err != nil {
			t.Error(err)
		}
	}
}

// Readers of streams follow each a part of the disk.
func TestStreams(t *testing.T) {
	l, err := newLoader(0, mib, make([]byte, 1<<20), 0, workload{streams: true, block: 8 * kib, depth: 4, queues: 1})
	if err != nil {
		t.Fatal(err)
	}
	var got []int64
	for range 2 {
		for i := range l.slots {
			got = append(got, l.place(&l.slots[i])/kib)
		}
	}
	if want := []int64{0, 256, 512, 768, 8, 264, 520, 776}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// The configuration space is asked for beside a load.
func TestAsking(t *testing.T) {
	env := blocktest.NewEnv(t)
	_, in := emulated(t, env, mib)
	c, err := connect(serve(t, in), workload{random: true, block: 4 * kib, depth: 8, queues: 2})
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.runAsking(50*time.Millisecond, nil)
	if err = errors.Join(err, c.leave()); err != nil || l.ops == 0 || l.lat.Percentile(99) == 0 {
		t.Errorf("%d requests, %v", l.ops, err)
	}
}

// A loop allocates nothing for a request.
func TestLoopDoesNotAllocate(t *testing.T) {
	w := workload{random: true, block: 4 * kib, depth: 4, queues: 1}
	_, _, n := room(w)
	l, err := newLoader(0, mib, make([]byte, n), 0, w)
	if err != nil {
		t.Fatal(err)
	}
	m, err := virtio.NewMap([]virtio.Region{{Guest: guestBase, User: userBase, Mem: l.mem}})
	if err != nil {
		t.Fatal(err)
	}
	desc, driver, device := virtio.AreaSizes(queueSize, features)
	ring, err := virtio.NewRing(virtio.Layout{Size: queueSize, Features: features, Desc: l.mem[:desc], Driver: l.mem[pages(desc):][:driver], Device: l.mem[pages(desc)+pages(driver):][:device]}, m, virtio.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var chain virtio.Chain
	now, sent := time.Now(), int64(0)
	for i := range l.slots {
		l.post(i, now)
	}
	turn := func() {
		l.show()
		for ok, _ := ring.Pop(&chain); ok; ok, _ = ring.Pop(&chain) {
			chain.In[len(chain.In)-1][0] = virtio.BlkOK
			ring.Push(chain.Handle, uint32(chain.InBytes))
		}
		ring.Publish()
		if n, err := l.reap(now.Add(forLong), 0, &sent); n != len(l.slots) || err != nil {
			t.Fatal(n, err)
		}
	}
	turn()
	if avg := testing.AllocsPerRun(100, turn); avg != 0 {
		t.Errorf("%v allocations for %d requests", avg, len(l.slots))
	}
}

func TestFio(t *testing.T) {
	l, err := parseFio([]byte(`{"jobs":[{"error":0,"read":{"total_ios":500,"runtime":250},"write":{"total_ios":0,"runtime":0}}]}`))
	if err != nil || l.ops != 500 || l.took != 250*time.Millisecond {
		t.Errorf("%d in %v: %v", l.ops, l.took, err)
	}
	for _, bad := range []string{"", "{}", `{"jobs":[{"error":5}]}`, `{"jobs":[{"error":0}]}`} {
		if _, err := parseFio([]byte(bad)); err == nil {
			t.Errorf("no error for %q", bad)
		}
	}
	args := strings.Join(fioArgs(disk{name: "direct"}, row{load: workload{streams: true, block: 8 * kib, depth: 4, queues: 1}}, "f", 4*mib, time.Second), " ")
	for _, want := range []string{"--rw=read ", "--iodepth=1 ", "--numjobs=4 ", "--direct=1", "--offset_increment=1048576"} {
		if !strings.Contains(args+" ", want) {
			t.Errorf("%q does not say %s", args, want)
		}
	}
}

func TestRowsNameDisks(t *testing.T) {
	for _, r := range rows {
		for _, name := range r.on {
			if !slices.ContainsFunc(disks, func(d disk) bool { return d.name == name }) {
				t.Errorf("row %s is on disk %q, which there is not", r.name, name)
			}
		}
		if 3*r.load.depth > queueSize {
			t.Errorf("row %s: a ring of %d has no room for depth %d", r.name, queueSize, r.load.depth)
		}
	}
}

// Each peer says how it serves each disk that it is measured on.
func TestPeersCommands(t *testing.T) {
	o := options{qsd: "/opt/qsd", other: "/opt/platter"}
	for _, p := range o.peers("platter", "self") {
		for _, d := range disks {
			if !p.serves(d) {
				continue
			}
			args := strings.Join(p.args(d, "/s", "/f", mib), " ")
			if !strings.HasPrefix(args, p.binary+" ") || !strings.Contains(args, "/s") || d.name != "null" && !strings.Contains(args, "/f") {
				t.Errorf("%s serves %s with %q", p.name, d.name, args)
			}
		}
	}
}
