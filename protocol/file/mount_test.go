package file

import (
	"strings"
	"testing"
)

const mountInfo = `22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
36 22 0:45 / /mnt/a rw,relatime - nfs4 127.0.0.1:/ rw,vers=4.2,rsize=1048576,wsize=524288,namlen=255,hard,proto=tcp,nconnect=4,timeo=600
37 22 0:46 / /mnt/b\040c rw - nfs 10.0.0.1:/x ro,vers=3,rsize=32768,wsize=32768,soft,proto=tcp
38 22 0:45 /sub /mnt/d rw - fuse.x y rw,rsize=1
`

func TestFindMount(t *testing.T) {
	for device, want := range map[string]Mount{
		"0:45": {Version: "4.2", ReadSize: 1 << 20, WriteSize: 512 << 10, Connections: 4},
		"0:46": {Version: "3", ReadSize: 32 << 10, WriteSize: 32 << 10, Soft: true, Connections: 1},
	} {
		if m, ok := findMount(mountInfo, device); !ok || m != want {
			t.Errorf("%s: %+v %v, want %+v", device, m, ok, want)
		}
	}
	for _, device := range []string{"254:0", "0:47", ""} {
		if m, ok := findMount(mountInfo, device); ok {
			t.Errorf("%q: found %+v", device, m)
		}
	}
	m, _ := findMount(mountInfo, "0:46")
	for _, word := range []string{"NFS 3", "32 KiB", "1 connection ", "soft"} {
		if !strings.Contains(m.String(), word) {
			t.Errorf("%q does not say %q", m.String(), word)
		}
	}
}

// Whatever the table holds, sizes are sane.
func FuzzFindMount(f *testing.F) {
	f.Add(mountInfo, "0:45")
	f.Add("1 2 0:1 / / rw - nfs x rsize=-1,wsize=99999999999,nconnect=0,vers=\n", "0:1")
	f.Add(" - ", "")
	f.Fuzz(func(t *testing.T, text, device string) {
		m, ok := findMount(text, device)
		if !ok && m != (Mount{}) {
			t.Errorf("found nothing, but %+v", m)
		}
		if ok && (m.ReadSize < 0 || m.ReadSize > maxNFSTransfer || m.WriteSize < 0 || m.WriteSize > maxNFSTransfer || m.Connections < 1) {
			t.Errorf("%+v", m)
		}
		_ = m.String()
	})
}

// Only direct I/O to storage that is not memory has a choice; the option says
// which. A mount's sizes predict, and other sizes make it forget (F4).
func TestLinearise(t *testing.T) {
	open := func(mode string, direct bool, mount *Mount) *node {
		t.Helper()
		env, _ := testEnv(t)
		f := newFake(needs{1, 1, 1, 1}, make([]byte, 1<<16))
		f.mount = mount
		n, err := openFake(env, f, config{path: "x", cacheName: "none", direct: direct, linearise: mode})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		return n
	}
	mount := &Mount{Version: "4.2", ReadSize: 1 << 20, WriteSize: 1 << 16, Connections: 1}
	n := open("auto", true, mount)
	if r, w := n.info.Linearise.Sizes(); r != 1<<20 || w != 1<<16 {
		t.Errorf("sizes %d and %d of the mount", r, w)
	}
	if text := strings.Join(n.explain(), "\n"); !strings.Contains(text, "NFS 4.2") || !strings.Contains(text, "linearise=auto") {
		t.Errorf("explained as\n%s", text)
	}
	mount.WriteSize = 1 << 20
	if err := n.refresh(); err != nil {
		t.Fatal(err)
	}
	if _, w := n.info.Linearise.Sizes(); w != 1<<20 {
		t.Errorf("after remounting: %d", w)
	}
	for mode, want := range lineModes {
		if got := open(mode, true, nil).info.Linearise.Mode(); got != want {
			t.Errorf("linearise=%s: mode %d", mode, got)
		}
	}
	if open("always", false, nil).info.Linearise != nil {
		t.Error("the page cache has a choice")
	}
}
