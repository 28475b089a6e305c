package serve_test

import (
	"strings"
	"testing"
	"time"
)

// Limits hold for a disk however many clients it has, are said of the disk when
// it starts, and a wrong one is refused with its name.
func TestThrottle(t *testing.T) {
	dir := folder(t)
	p := launch(t, nil, "--listen", "unix:"+dir+"/s", "--throttle", "iops-total=40,group=both", "mem:1M")
	ready := p.ready()
	if said := ready.Disks[0].Throttle; said != `iops-total=40, shared by the group "both"` {
		t.Errorf("of the disk's limits is said: %s", said)
	}
	a, b := dial(t, ready.Disks[0].Exports[0].URIs[0]), dial(t, ready.Disks[0].Exports[0].URIs[0])
	start := time.Now()
	for range 12 {
		if err := a.Pwrite(make([]byte, 512), 512, 0); err != nil {
			t.Fatal(err)
		}
		if err := b.Pread(make([]byte, 512), 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	if took, least := time.Since(start), 19*time.Second/40; took < least { // 4 may come at once, and one before its time
		t.Errorf("24 requests of two clients took %v, %v is the least under 40 a second", took, least)
	}
	for text, want := range map[string]string{
		"iops=5":                   "no option \"iops\"; it has: group, iops-size, iops-total",
		"iops-total=5,iops-read=5": "iops-total excludes",
		"bps-read=fast":            "not a size",
	} {
		code, _, stderr := run(t, "serve", "--throttle", text, "mem:1M")
		if code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("--throttle %s: exit %d, %s", text, code, stderr)
		}
	}
}
