//go:build linux && amd64

package guest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/platter-storage/platter/internal/testutil"
	"github.com/platter-storage/platter/test/guest/scenario"
)

// askTimeout bounds one scenario; none takes a tenth of it on an idle machine.
const askTimeout = 4 * time.Minute

var opened = sync.OnceValues(func() (*Lab, error) { return Open(context.Background()) })

func TestMain(m *testing.M) {
	testutil.Main(m, func() {
		if lab, err := opened(); err == nil {
			lab.Close()
		}
	})
}

func openLab(t *testing.T) *Lab {
	t.Helper()
	lab, err := opened()
	if err != nil {
		t.Fatal(err)
	}
	return lab
}

// machine is a guest that a test drives.
type machine struct {
	*VM
	t *testing.T
}

// boot starts a guest; the test's end kills it where it is still there.
func boot(t *testing.T, o Options) *machine {
	t.Helper()
	vm, err := openLab(t).Boot(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(vm.Console())
		}
		vm.Kill()
	})
	return &machine{VM: vm, t: t}
}

// ask runs a scenario that has to succeed.
func (m *machine) ask(t *testing.T, name string, args, result any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	if err := m.Ask(ctx, name, args, result); err != nil {
		t.Fatal(err)
	}
}

// quiet fails the test where the guest's kernel has complained.
func (m *machine) quiet(t *testing.T) {
	t.Helper()
	var got scenario.Trouble
	m.ask(t, scenario.Kernel, struct{}{}, &got)
	for _, line := range got.Lines {
		t.Errorf("the guest's kernel: %s", line)
	}
}

// off ends the guest in the ordinary way.
func (m *machine) off(t *testing.T) {
	t.Helper()
	if err := m.PowerOff(context.Background()); err != nil {
		t.Error(err)
	}
}

// disk is one disk of a guest under test.
type disk struct {
	*machine
	server *server
	Disk
	device string
}

// exercise does to a writable disk what people do, and checks it from both
// sides.
func (d disk) exercise(t *testing.T) {
	t.Run("identity", d.identity)
	t.Run("places", d.places)
	t.Run("files", d.files)
	if !d.server.through {
		t.Run("cache", d.cache)
	}
	t.Run("discard", d.discard)
	t.Run("resize", d.resize)
	d.quiet(t)
}

// bits of virtio, section 6 and section 5.2.3.
const (
	featureReadOnly    = 5
	featureFlush       = 9
	featureDiscard     = 13
	featureWriteZeroes = 14
	featurePacked      = 34
)

func (d disk) identity(t *testing.T) {
	var got scenario.Identify
	d.ask(t, scenario.Identity, scenario.Device{Device: d.device}, &got)
	want := d.server.target
	cache := "write back"
	if want.through {
		cache = "write through"
	}
	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"size", got.Size, want.size},
		{"logical block size", got.Logical, want.sector},
		{"queues", got.Queues, want.queues},
		{"serial number, by GET_ID", got.Serial, want.serial},
		{"read-only", got.ReadOnly, want.readOnly},
		{"write cache", got.WriteCache, cache},
		{"packed ring", got.Feature(featurePacked), d.Packed},
		{"feature RO", got.Feature(featureReadOnly), want.readOnly},
		{"discard", got.DiscardMax > 0, !want.readOnly},
		{"feature DISCARD", got.Feature(featureDiscard), !want.readOnly},
		{"write zeroes", got.ZeroesMax > 0, !want.readOnly},
		{"feature WRITE_ZEROES", got.Feature(featureWriteZeroes), !want.readOnly},
	} {
		if c.got != c.want {
			t.Errorf("%s: the guest says %v, want %v", c.what, c.got, c.want)
		}
	}
	if got.Physical < got.Logical || got.SegmentsMax < 2 {
		t.Errorf("the guest says: %+v", got)
	}
}

// places are ranges at every kind of boundary, in sectors of a disk: odd ones,
// one request, several, the very last.
func places(sectors, sector int64) [][2]int64 {
	return [][2]int64{
		{0, 1}, {1, 7}, {sectors / 3, 1}, {sectors/2 + 1, 129}, {sectors - 1, 1}, {3*sectors/4 - 5, (1 << 20) / sector},
	}
}

// places checks that what the guest writes lies where it should in the image,
// and that the guest reads what lies there.
func (d disk) places(t *testing.T) {
	image, err := os.OpenFile(d.server.path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	sector := int64(d.server.sector)
	for i, p := range places(d.server.size/sector, sector) {
		w := scenario.Transfer{Device: d.device, Off: p[0] * sector, N: p[1] * sector, Step: 128 << 10, Seed: uint64(i) + 1, Sync: true}
		var wrote, read scenario.Sum
		d.ask(t, scenario.Write, w, &wrote)
		want := make([]byte, w.N)
		scenario.Fill(want, w.Seed, w.Off)
		got := make([]byte, w.N)
		if _, err := image.ReadAt(got, w.Off); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%d bytes that the guest wrote at %d are not what the image holds there", w.N, w.Off)
		}
		scenario.Fill(want, w.Seed+100, w.Off)
		if _, err := image.WriteAt(want, w.Off); err != nil {
			t.Fatal(err)
		}
		if err := image.Sync(); err != nil {
			t.Fatal(err)
		}
		w.Sync, w.Step = false, int(sector)*3
		d.ask(t, scenario.Read, w, &read)
		if read.SHA256 != sum(want) {
			t.Errorf("%d bytes at %d of the image are not what the guest reads", w.N, w.Off)
		}
	}
}

func sum(p []byte) string {
	s := sha256.Sum256(p)
	return hex.EncodeToString(s[:])
}

func (d disk) files(t *testing.T) {
	work := scenario.FileWork{Device: d.device, Seed: 7, Files: 4, Bytes: 2 << 20}
	var got scenario.FileResult
	d.ask(t, scenario.Files, work, &got)
	if got.Readers != work.Files || len(got.ReadSums) != work.Files {
		t.Fatalf("%d files: %d readers and %d sums", work.Files, got.Readers, len(got.ReadSums))
	}
	content := make([]byte, work.Bytes)
	for i, s := range got.ReadSums {
		scenario.Fill(content, work.Seed+uint64(i), 0)
		if s != sum(content) {
			t.Errorf("file %d changed between two mounts", i)
		}
	}
	if got.Trimmed < int64(work.Files)*work.Bytes {
		t.Errorf("fstrim gave back %d bytes; as much as %d had been removed", got.Trimmed, int64(work.Files)*work.Bytes)
	}
}

// cache lets the guest choose write through and back again; it writes under
// both.
func (d disk) cache(t *testing.T) {
	for i, mode := range []string{"write through", "write back"} {
		var got scenario.Cache
		d.ask(t, scenario.SetCache, scenario.Cache{Device: d.device, Mode: mode}, &got)
		if got.Mode != mode {
			t.Errorf("the guest asked for %s and has %s", mode, got.Mode)
		}
		w := scenario.Transfer{Device: d.device, Off: 1 << 20, N: 1 << 20, Step: 64 << 10, Seed: uint64(i), Sync: true}
		d.ask(t, scenario.Write, w, nil)
		content := make([]byte, w.N)
		scenario.Fill(content, w.Seed, w.Off)
		var read scenario.Sum
		d.ask(t, scenario.Read, w, &read)
		if read.SHA256 != sum(content) {
			t.Errorf("%s: the guest does not read what it wrote", mode)
		}
	}
}

// discard checks that blkdiscard gives the image's space back.
func (d disk) discard(t *testing.T) {
	before := allocated(t, d.server.path)
	d.ask(t, scenario.Discard, scenario.Device{Device: d.device}, nil)
	if after := allocated(t, d.server.path); before == 0 || after > before/4 {
		t.Errorf("the image had %d bytes allocated before blkdiscard, and has %d after it", before, after)
	}
}

func allocated(t *testing.T, path string) int64 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// resize lets the disk grow under the guest, which sees it and can use it.
func (d disk) resize(t *testing.T) {
	size := d.server.size + 8<<20
	d.server.resize(t, d.server, size)
	d.ask(t, scenario.AwaitSize, scenario.Size{Device: d.device, Bytes: size}, nil)
	end := scenario.Transfer{Device: d.device, Off: size - 64<<10, N: 64 << 10, Step: 64 << 10, Seed: 99, Sync: true}
	d.ask(t, scenario.Write, end, nil)
	got, want := make([]byte, end.N), make([]byte, end.N)
	scenario.Fill(want, end.Seed, end.Off)
	image, err := os.Open(d.server.path)
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	if _, err := image.ReadAt(got, end.Off); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the end of the grown disk is not what the guest wrote there: %v", err)
	}
}

// fio verifies a random load of its own.
func (d disk) fio(t *testing.T, engine string) {
	work := scenario.FioWork{Device: d.device, Bytes: 8 << 20, Depth: 32, Engine: engine}
	var got scenario.FioResult
	d.ask(t, scenario.FioVerify, work, &got)
	if got.Errors != 0 || got.Written != work.Bytes || got.Read != work.Bytes {
		t.Errorf("fio wrote %d and verified %d bytes of %d, with %d errors", got.Written, got.Read, work.Bytes, got.Errors)
	}
}

// looksOnly checks a disk that may only be read.
func (d disk) looksOnly(t *testing.T) {
	d.identity(t)
	want := make([]byte, 1<<20)
	image, err := os.Open(d.server.path)
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	if _, err := image.ReadAt(want, 4096); err != nil {
		t.Fatal(err)
	}
	r := scenario.Transfer{Device: d.device, Off: 4096, N: 1 << 20, Step: 128 << 10, Seed: 1}
	var got scenario.Sum
	d.ask(t, scenario.Read, r, &got)
	if got.SHA256 != sum(want) {
		t.Error("the guest reads something else than the image holds")
	}
	if err := d.Ask(context.Background(), scenario.Write, r, nil); err == nil {
		t.Error("the guest could write to a read-only disk")
	}
	d.quiet(t)
}

const diskSize = 64 << 20

// TestDisks boots one guest with a disk of each kind and does to each what
// people do with disks.
func TestDisks(t *testing.T) {
	kinds := []struct {
		name  string
		disk  Disk
		setup func(*target)
		test  func(disk, *testing.T)
	}{
		{"split", Disk{}, func(*target) {}, disk.exercise},
		{"packed", Disk{Packed: true}, func(*target) {}, disk.exercise},
		{"split-4-queues-writethrough", Disk{}, func(d *target) { d.queues, d.through = 4, true }, disk.exercise},
		{"packed-4-queues-4096", Disk{Packed: true}, func(d *target) { d.queues, d.sector = 4, 4096 }, disk.exercise},
		{"read-only", Disk{}, func(d *target) { d.readOnly = true }, disk.looksOnly},
	}
	o := Options{CPUs: 4, Parts: []Part{Fio}}
	disks := make([]disk, len(kinds))
	for i, k := range kinds {
		d := newTarget(t, diskSize)
		k.setup(&d)
		if d.readOnly {
			content := make([]byte, 2<<20)
			scenario.Fill(content, 5, 0)
			if err := os.WriteFile(d.path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(d.path, d.size); err != nil {
				t.Fatal(err)
			}
		}
		k.disk.Socket, k.disk.Queues = d.socket, d.queues
		o.Disks = append(o.Disks, k.disk)
		disks[i] = disk{server: start(t, chosen(), d), Disk: k.disk, device: fmt.Sprintf("vd%c", 'a'+i)}
	}
	m := boot(t, o)
	for i, k := range kinds {
		disks[i].machine = m
		t.Run(k.name, func(t *testing.T) { k.test(disks[i], t) })
	}
	t.Run("fio", func(t *testing.T) {
		disks[0].fio(t, "libaio")
		disks[1].fio(t, "io_uring")
		m.quiet(t)
	})
	m.off(t)
}

// TestReferenceDisk runs the laboratory against a server and a device of other
// people, so that a fault of its own is not taken for one of Platter.
func TestReferenceDisk(t *testing.T) {
	served := newTarget(t, diskSize)
	s := start(t, reference{}, served)
	plain := newTarget(t, diskSize)
	monitor := plain.socket
	m := boot(t, Options{
		CPUs: 2, Disks: []Disk{{Socket: served.socket}, {File: plain.path, Serial: "emulated"}},
		Extra: []string{"-qmp", "unix:" + monitor + ",server=on,wait=off"},
	})
	d := disk{machine: m, server: s, device: "vda"}
	t.Run("places", d.places)
	t.Run("files", d.files)
	var got scenario.Identify
	m.ask(t, scenario.Identity, scenario.Device{Device: "vdb"}, &got)
	if got.Size != diskSize || got.Serial != "emulated" || got.WriteCache != "write back" || got.ReadOnly {
		t.Errorf("the emulator's own disk is seen as %+v", got)
	}
	qmp(t, monitor, fmt.Sprintf(`{"execute":"block_resize","arguments":{"node-name":"f1","size":%d}}`, 2*diskSize))
	m.ask(t, scenario.AwaitSize, scenario.Size{Device: "vdb", Bytes: 2 * diskSize}, nil)
	m.quiet(t)
	m.off(t)
}
