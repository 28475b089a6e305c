package serve

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/platter-storage/platter/serve/config"
	"github.com/platter-storage/platter/wire/nbd"
)

// waits is how often requests of a disk were told to wait.
func (b *bench) waits(disk string) uint64 {
	b.t.Helper()
	for _, s := range b.d.Stats().Throttles {
		if s.Disk == disk {
			return s.Waits
		}
	}
	b.t.Fatalf("no limits of disk %s in the statistics", disk)
	return 0
}

// held sends a write that the limits of a disk hold back, and returns when they
// do. The channel gives the write's end.
func (b *bench) held(disk string, c *nbd.Client) chan error {
	b.t.Helper()
	before, done := b.waits(disk), make(chan error, 1)
	go func() { done <- c.Pwrite([]byte{1}, 0, 0) }()
	for range 24000 { // two minutes: test machines are slow
		if b.waits(disk) > before {
			return done
		}
		time.Sleep(5 * time.Millisecond)
	}
	b.t.Fatal("the write is not held back")
	return nil
}

// Two disks of a group, one for NBD clients and one for virtual machines, get
// together what the group's limits allow.
func TestLimitsOfAGroupOverBothKindsOfExport(t *testing.T) {
	b := serving(t, `
disks:
  - {name: a, path: 'mem:1M', throttle: group=both-kinds}
  - {name: b, path: 'mem:1M', throttle: 'group=both-kinds,iops-total=40', vhost-user: DIR/v}
`)
	guest := serving(t, "disks: [{name: there, path: 'vhost-user:"+b.dir+"/v'}]")
	start := time.Now()
	local, remote := b.mustDial("a"), guest.mustDial("there")
	for range 12 {
		mark(t, local, 1)
		mark(t, remote, 2)
	}
	if took, least := time.Since(start), 19*time.Second/40; took < least { // 4 at once, and one before its time
		t.Errorf("24 writes to two disks took %v, %v is the least under 40 a second together", took, least)
	}
	if b.waits("a") == 0 || b.waits("a") != b.waits("b") {
		t.Errorf("the disks of a group were told to wait %d and %d times", b.waits("a"), b.waits("b"))
	}
	has(t, b.mustDial("b"), 2)
	var text strings.Builder
	if err := b.d.Stats().WriteText(&text); err != nil || !strings.Contains(text.String(), `throttle of disk b: iops-total=40, shared by the group "both-kinds"; `) {
		t.Errorf("the limits are not in the statistics for people (%v):\n%s", err, text.String())
	}
}

// A reload changes limits in place: clients stay, and a request that would have
// waited for hours under the old ones goes on.
func TestReloadChangesLimits(t *testing.T) {
	const slow, disks = "bps-write=1", "disks: [{name: a, path: 'mem:1M', throttle: '%'}, {name: b, path: 'mem:1M', throttle: '%'}]"
	with := func(a, b string) string { return strings.Replace(strings.Replace(disks, "%", a, 1), "%", b, 1) }
	b := serving(t, with(slow+",group=r", "group=r"))
	c := b.mustDial("a")
	for _, to := range []struct{ a, b string }{
		{"bps-write=1G,group=r", "group=r"},            // other limits of the group
		{"group=r", "bps-write=1G,group=r"},            // said by another disk
		{"bps-write=1G", "group=r"},                    // another group
		{"", ""},                                       // none
		{"iops-read=1,group=r", "iops-read=1,group=r"}, // no more of writes
	} {
		b.mustReload(with(slow+",group=r", "group=r"))
		if err := c.Pwrite(make([]byte, 1<<20), 0, 0); err != nil { // owes twelve days
			t.Fatal(err)
		}
		done := b.held("a", c)
		b.mustReload(with(slow+",group=r", "group=r"))
		select {
		case err := <-done:
			t.Fatalf("a reload that changes nothing lets a write pass: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
		changes, err := b.d.Reload(t.Context(), b.config(with(to.a, to.b)))
		if err != nil || !strings.Contains(strings.Join(changes, "\n"), "disk a has other limits") {
			t.Errorf("%s: %q, %v", to, changes, err)
		}
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("%s: the write that was held back: %v", to, err)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("%s: the write is still held back", to)
		}
	}
}

// What a disk's limits cannot be leaves the old ones in force; a disk that had
// none is opened again to get some.
func TestReloadRefusesLimits(t *testing.T) {
	b := serving(t, "disks: [{name: a, path: 'mem:1M', throttle: 'iops-total=1000,group=x'}, {name: b, path: 'mem:1M'}]")
	a, other := b.mustDial("a"), b.mustDial("b")
	err := b.reload("disks: [{name: a, path: 'mem:1M', throttle: 'iops-total=5,group=x'}, {name: b, path: 'mem:1M', throttle: 'iops-total=6,group=x'}]")
	if err == nil || !strings.Contains(err.Error(), `disks a and b say different limits for the group "x"`) {
		t.Errorf("two limits for one group: %v", err)
	}
	mark(t, a, 1)
	mark(t, other, 1)
	if said := b.d.Ready().Disks[0].Throttle; said != `iops-total=1000, shared by the group "x"` {
		t.Errorf("in force is %s", said)
	}
	b.mustReload("disks: [{name: a, path: 'mem:1M', throttle: 'iops-total=1000,group=x'}, {name: b, path: 'mem:1M', throttle: group=x}]")
	mark(t, a, 2)
	gone(t, other)
	if r := b.d.Ready(); r.Disks[0].Throttle != r.Disks[1].Throttle {
		t.Errorf("of a group's disks one says %q, the other %q", r.Disks[0].Throttle, r.Disks[1].Throttle)
	}
}

// Neither a client that goes nor the end waits for what is held back.
func TestStopWhileThrottled(t *testing.T) {
	b := &bench{t: t, dir: short(t)}
	var err error
	if b.d, err = Start(t.Context(), b.config("disks: [{name: a, path: 'mem:1M', throttle: bps-write=1}]"), slog.New(slog.NewTextHandler(&b.log, nil))); err != nil {
		t.Fatal(err)
	}
	c := b.mustDial("a")
	if err := c.Pwrite(make([]byte, 1<<20), 0, 0); err != nil {
		t.Fatal(err)
	}
	done := b.held("a", c)
	start := time.Now()
	if err := b.d.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took >= closeWait {
		t.Errorf("the end took %v: all the time that requests in flight may take", took)
	}
	if err := <-done; err == nil {
		t.Error("the write was made, twelve days early")
	}
	if b.waits("a") == 0 {
		t.Error("the last statistics do not say that requests were held back")
	}
}

// A group's limits are what one of its disks says, wherever it stands; two that
// say different things are a mistake.
func TestThrottlesOfAConfiguration(t *testing.T) {
	disks := func(texts ...string) (all []config.Disk) {
		for i, text := range texts {
			cfg := parse(t, "disks: [{path: 'mem:1M', throttle: '"+text+"'}]")
			cfg.Disks[0].Name = string(rune('a' + i))
			all = append(all, cfg.Disks[0])
		}
		return all
	}
	all, err := throttles(disks("group=g", "iops-read=7", "group=g,iops-total=5", "group=h", ""))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{`iops-total=5, shared by the group "g"`, "iops-read=7", `iops-total=5, shared by the group "g"`, `no limit, shared by the group "h"`, "no limit"} {
		if all[i].String() != want {
			t.Errorf("disk %d: %v, want %s", i, all[i], want)
		}
	}
	if _, err := throttles(disks("group=g,iops-total=5", "group=g,iops-total=5")); err != nil {
		t.Errorf("the same limits twice: %v", err)
	}
	all, err = throttles(disks("group=g,iops-total=5", "group=g,iops-total=6"))
	if err == nil || all[1] != all[0] {
		t.Errorf("two limits of one group: %v, %v", all, err)
	}
	if _, err := throttles(disks("iops-totl=5")); err == nil || !strings.Contains(err.Error(), "did you mean iops-total?") {
		t.Errorf("a name that does not exist: %v", err)
	}
}
