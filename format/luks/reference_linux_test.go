package luks

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/testutil"
)

// patterns are what both sides write: offset, length and byte.
var patterns = []struct {
	off, n int64
	x      byte
}{{0, 512, 0x11}, {4096, 65536, 0x22}, {100 << 10, 300, 0x33}, {1<<20 - 512, 512, 0x44}}

// reference runs commands of qemu-io on a LUKS image.
func reference(t testing.TB, path, password string, commands ...string) string {
	args := []string{"--object", "secret,id=s,file=" + password, "--image-opts", "driver=luks,key-secret=s,file.filename=" + path}
	for _, c := range commands {
		args = append(args, "-c", c)
	}
	return testutil.Run(t, "qemu-io", args...)
}

// What the reference makes and writes is read here, with the ciphers that both
// have; it reads what is written here into its image.
func TestImagesOfTheReference(t *testing.T) {
	password := passwordFile(t, secret)
	for name, o := range map[string]string{
		"default": "",
		"essiv":   "cipher-alg=aes-128,cipher-mode=cbc,ivgen-alg=essiv,ivgen-hash-alg=sha256,hash-alg=sha1",
		"plain":   "cipher-mode=cbc,ivgen-alg=plain,hash-alg=sha512",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "disk.luks")
			opts := "key-secret=s,iter-time=10"
			if o != "" {
				opts += "," + o
			}
			testutil.Run(t, "qemu-img", "create", "-q", "-f", "luks", "--object", "secret,id=s,file="+password, "-o", opts, path, "1M")
			var commands []string
			for _, p := range patterns {
				commands = append(commands, fmt.Sprintf("write -q -P %d %d %d", p.x, p.off, p.n))
			}
			reference(t, path, password, commands...)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			e, c, err := tryOpen(t, b, secret)
			if err != nil {
				t.Fatal(err)
			}
			if c.Child.Size() != 1<<20 {
				t.Errorf("the disk has %d bytes", c.Child.Size())
			}
			for _, p := range patterns {
				got := make([]byte, p.n)
				if err := c.Read(p.off, got); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{p.x}, int(p.n))) {
					t.Errorf("%d bytes at %d are not those that were written (%v)", p.n, p.off, err)
				}
			}
			if err := c.Write(5000, 0, bytes.Repeat([]byte{0x55}, 70000)); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, e.Content(), 0o600); err != nil {
				t.Fatal(err)
			}
			reads(t, path, password, "read -P 0x55 5000 70000", "read -P 0x22 4096 904", "read -P 0x33 102400 300")
		})
	}
}

// reads has the reference read patterns; qemu-io says in its output what differs.
func reads(t testing.TB, path, password string, commands ...string) {
	t.Helper()
	if out := reference(t, path, password, commands...); bytes.Contains([]byte(out), []byte("failed")) {
		t.Errorf("the reference reads something else:\n%s", out)
	}
}

// What is made here the reference opens, with every password, and reads.
func TestImagesForTheReference(t *testing.T) {
	password, second := passwordFile(t, secret), passwordFile(t, "another\n")
	for name, vals := range map[string]block.Values{
		"default": {},
		"essiv":   {"cipher-alg": "aes-128", "cipher-mode": "cbc", "ivgen-alg": "essiv", "hash-alg": "sha1"},
		"plain":   {"hash-alg": "sha512", "ivgen-alg": "plain"},
	} {
		t.Run(name, func(t *testing.T) {
			vals["password-file"], vals["iter-time"] = password, "1"
			b, err := createImage(t, 1<<20, vals)
			if err != nil {
				t.Fatal(err)
			}
			e, c, err := tryOpen(t, b, secret)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range patterns {
				if err := c.Write(p.off, 0, bytes.Repeat([]byte{p.x}, int(p.n))); err != nil {
					t.Fatal(err)
				}
			}
			add := block.Values{"state": "active", "new-password-file": second, "iter-time": "1"}
			if err := c.Do(block.OpWrite, func(rq *block.Req) error {
				return c.Child.Exclusive(rq, block.PermWrite, func(a *block.Abilities) error { return a.Amend.Amend(rq, add, nil) })
			}); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "disk.luks")
			if err := os.WriteFile(path, e.Content(), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, with := range []string{password, second} {
				for _, p := range patterns {
					reads(t, path, with, fmt.Sprintf("read -P %d %d %d", p.x, p.off, p.n))
				}
			}
		})
	}
}
