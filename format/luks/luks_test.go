package luks

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/luks"
	"github.com/platter-storage/platter/internal/race"
)

const secret = "correct horse"

// passwordFile is a file with a password.
func passwordFile(t testing.TB, password string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(name, []byte(password), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// imageBytes is an image of size bytes of disk, with as few iterations as can be.
func imageBytes(t testing.TB, mode string, keyBytes int, size int64) []byte {
	t.Helper()
	h, key, err := luks.New("aes", mode, "sha256", keyBytes, 1)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, int64(h.Payload)*luks.SectorSize+size)
	write := func(off int64, p []byte) error { copy(b[off:], p); return nil }
	if err := h.Seal(0, write, key, []byte(secret), 1); err != nil {
		t.Fatal(err)
	}
	copy(b, h.Bytes())
	return b
}

// storage is b on storage with limits.
func storage(t testing.TB, env *block.Env, b []byte, l *block.Limits) (*bt.Emulator, *block.Instance) {
	e := bt.NewEmulator(t, bt.EmulatorConfig{Size: int64(len(b)), Limits: l, WriteFlags: block.FUA, ZeroFlags: block.MayUnmap})
	e.KeepCalls(false)
	e.Fill(b)
	return e, bt.Attach(t, env, e, "file")
}

func kinds() map[string]*block.Limits {
	sectors, blocks := block.ByteLimits(), block.ByteLimits()
	sectors.ReadAlign, sectors.WriteAlign, sectors.SegmentAlign, sectors.MinMem = 512, 512, 512, 512
	blocks.ReadAlign, blocks.WriteAlign, blocks.SegmentAlign, blocks.MinMem = 4096, 4096, 4096, 4096
	blocks.MaxSegments, blocks.MaxTransfer = 16, 256<<10
	return map[string]*block.Limits{"bytes": block.ByteLimits(), "sectors": sectors, "blocks": blocks}
}

// The contract is kept by each mode, and over each kind of storage by one.
func TestConformance(t *testing.T) {
	modes := map[string]int{"xts-plain64": 64, "cbc-essiv:sha256": 32, "cbc-plain": 16}
	for mode, keyBytes := range modes {
		b := imageBytes(t, mode, keyBytes, 1<<20)
		password := passwordFile(t, secret)
		for name, l := range kinds() {
			if keyBytes != 64 && name != "sectors" {
				continue // the storage below makes no difference to a cipher
			}
			t.Run(mode+" on "+name, func(t *testing.T) {
				bt.Run(t, func(t testing.TB) *block.Child {
					env := bt.NewEnv(t)
					_, file := storage(t, env, b, l)
					vals := block.Values{"driver": "luks", "password-file": password}
					return bt.Edge(t, bt.Open(t, env, vals, map[string]*block.Instance{"file": file}))
				}, bt.Options{NoAllocations: !race.Enabled})
			})
		}
	}
}

func TestModel(t *testing.T) {
	b := imageBytes(t, "xts-plain64", 32, 1<<20)
	password := passwordFile(t, secret)
	bt.Model(t, func(t testing.TB) []*block.Child {
		env := bt.NewEnv(t)
		_, file := storage(t, env, b, kinds()["sectors"])
		in := bt.Open(t, env, block.Values{"driver": "luks", "password-file": password}, map[string]*block.Instance{"file": file})
		return []*block.Child{bt.Edge(t, in), bt.Edge(t, in)}
	}, bt.ModelConfig{})
}

// tryOpen opens an image with a password and gives a client of it.
func tryOpen(t testing.TB, b []byte, password string) (*bt.Emulator, *bt.Client, error) {
	env := bt.NewEnv(t)
	e, file := storage(t, env, b, nil)
	in, err := bt.TryOpen(t, env, block.Values{"driver": "luks", "password-file": passwordFile(t, password)}, map[string]*block.Instance{"file": file}, false)
	if err != nil {
		return e, nil, err
	}
	return e, bt.NewClient(t, bt.Edge(t, in)), nil
}

// Nothing of what is written is in the file, and another opening reads it.
func TestNothingIsPlain(t *testing.T) {
	e, c, err := tryOpen(t, imageBytes(t, "xts-plain64", 64, 64<<10), secret)
	if err != nil {
		t.Fatal(err)
	}
	text := bytes.Repeat([]byte("this is to be kept secret. \n"), 1000)
	for _, err := range []error{c.Write(777, 0, text), c.Flush()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if bytes.Contains(e.Content(), []byte("kept secret")) {
		t.Error("the file has the disk's text")
	}
	_, again, err := tryOpen(t, e.Content(), secret)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if err := again.Read(777, got); err != nil || !bytes.Equal(got, text) {
		t.Errorf("read again: %v", err)
	}
}

// What cannot be opened is refused with the reason, and what to do.
func TestRefused(t *testing.T) {
	good := imageBytes(t, "xts-plain64", 64, 64<<10)
	change := func(at int, b ...byte) []byte { c := bytes.Clone(good); copy(c[at:], b); return c }
	for _, c := range []struct {
		name     string
		b        []byte
		password string
		want     string
	}{
		{"wrong password", good, secret + "\n", "line feed"},
		{"version 2", change(7, 2), secret, "version 2"},
		{"other magic", change(0, 'X'), secret, "no LUKS image"},
		{"cut short", good[:600], secret, "cut short"},
		{"cut shorter", good[:100], secret, "592 are needed"},
		{"detached", change(104, 0, 0, 0, 0), secret, "detached"},
		{"cipher", change(8, []byte("serpent\x00")...), secret, `"serpent"`},
		{"long password", good, strings.Repeat("x", maxPassword+1), "at most"},
	} {
		if _, _, err := tryOpen(t, c.b, c.password); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	env := bt.NewEnv(t)
	_, file := storage(t, env, good, nil)
	if _, err := bt.TryOpen(t, env, block.Values{"driver": "luks"}, map[string]*block.Instance{"file": file}, true); err == nil || !strings.Contains(err.Error(), "password-file=") {
		t.Errorf("without a password: %v", err)
	}
}

// createImage makes an image by options.
func createImage(t testing.TB, size int64, vals block.Values) ([]byte, error) {
	env := bt.NewEnv(t)
	e := bt.NewEmulator(t, bt.EmulatorConfig{WriteFlags: block.FUA, ZeroFlags: block.MayUnmap})
	c, err := bt.Attach(t, env, e, "file").NewChild("create", block.RoleRoot, block.PermAll, block.PermAll)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d, err := block.FindDriver("luks")
	if err != nil {
		t.Fatal(err)
	}
	o, err := d.CheckCreate(vals)
	if err != nil {
		return nil, err
	}
	err = d.Create(context.Background(), &block.CreateArgs{Env: env, Options: o, Size: size, File: c})
	return e.Content(), err
}

func TestCreate(t *testing.T) {
	password := passwordFile(t, secret)
	for _, vals := range []block.Values{
		{},
		{"cipher-alg": "aes-128", "hash-alg": "sha1"},
		{"cipher-alg": "aes-192", "cipher-mode": "cbc", "ivgen-alg": "plain"},
		{"cipher-mode": "cbc", "ivgen-alg": "essiv", "hash-alg": "sha512"},
	} {
		vals["iter-time"], vals["password-file"] = "1", password
		b, err := createImage(t, 128<<10, vals)
		if err != nil {
			t.Fatalf("%v: %v", vals, err)
		}
		_, c, err := tryOpen(t, b, secret)
		if err != nil {
			t.Fatalf("%v: %v", vals, err)
		}
		if c.Child.Size() != 128<<10 {
			t.Errorf("%v: a disk of %d bytes", vals, c.Child.Size())
		}
		if err := c.Write(100, 0, []byte("hello")); err != nil {
			t.Errorf("%v: %v", vals, err)
		}
	}
	for _, vals := range []block.Values{{"cipher-alg": "aes-192"}, {"iter-time": "0"}, {"iter-time": "60001"}, {"cipher-mode": "cbc", "ivgen-alg": "essiv", "ivgen-hash-alg": "sha512"}} {
		vals["password-file"] = password
		if vals["iter-time"] == "" {
			vals["iter-time"] = "1"
		}
		if _, err := createImage(t, 64<<10, vals); err == nil {
			t.Errorf("%v: made", vals)
		}
	}
	if _, err := createImage(t, 1000, block.Values{"iter-time": "1", "password-file": password}); err == nil {
		t.Error("a disk that ends within a sector was made")
	}
}

// Passwords are added and removed; the last one stays.
func TestPasswords(t *testing.T) {
	e, c, err := tryOpen(t, imageBytes(t, "xts-plain64", 32, 64<<10), secret)
	if err != nil {
		t.Fatal(err)
	}
	old, second := passwordFile(t, secret), passwordFile(t, "battery staple")
	amend := func(vals block.Values) error {
		return c.Do(block.OpWrite, func(rq *block.Req) error {
			return c.Child.Exclusive(rq, block.PermWrite, func(a *block.Abilities) error { return a.Amend.Amend(rq, vals, nil) })
		})
	}
	opens := func(password string, want bool) {
		t.Helper()
		if _, _, err := tryOpen(t, e.Content(), password); (err == nil) != want {
			t.Errorf("password %q: %v", password, err)
		}
	}
	for _, s := range []struct {
		vals block.Values
		want string
	}{
		{block.Values{"state": "inactive", "old-password-file": old}, "last password"},
		{block.Values{"state": "active"}, "new-password-file"},
		{block.Values{"state": "active", "new-password-file": second, "keyslot": "8"}, "0 to 7"},
		{block.Values{"state": "active", "new-password-file": second, "keyslot": "0"}, "in use"},
		{block.Values{"state": "active", "new-password-file": second, "keyslot": "5", "iter-time": "1"}, ""},
	} {
		if err := amend(s.vals); s.want == "" && err != nil || s.want != "" && (err == nil || !strings.Contains(err.Error(), s.want)) {
			t.Errorf("%v: %v", s.vals, err)
		}
	}
	opens(secret, true)
	opens("battery staple", true)
	if err := amend(block.Values{"state": "inactive", "old-password-file": old}); err != nil {
		t.Fatal(err)
	}
	opens(secret, false)
	opens("battery staple", true)
	if err := amend(block.Values{"state": "inactive", "keyslot": "5"}); err == nil {
		t.Error("the last password was removed")
	}
	opens("battery staple", true)
}

// FuzzOpen opens whatever header over a small image, reads and writes.
func FuzzOpen(f *testing.F) {
	good := imageBytes(f, "xts-plain64", 32, 8<<10)
	f.Add(good[:luks.HeaderSize])
	f.Add(imageBytes(f, "cbc-essiv:sha256", 16, 512)[:luks.HeaderSize])
	password := passwordFile(f, secret)
	f.Fuzz(func(t *testing.T, head []byte) {
		if h, err := luks.Parse(head); err == nil {
			// What is bounded to a minute by design is more than a fuzzer has.
			most := h.DigestIterations
			for _, s := range h.Slots {
				if s.Active {
					most = max(most, s.Iterations)
				}
			}
			if most > 1000 {
				return
			}
		}
		b := bytes.Clone(good)
		copy(b, head[:min(len(head), luks.HeaderSize)])
		env := bt.NewEnv(t)
		_, file := storage(t, env, b, nil)
		in, err := bt.TryOpen(t, env, block.Values{"driver": "luks", "password-file": password}, map[string]*block.Instance{"file": file}, false)
		if err != nil {
			return
		}
		c := bt.NewClient(t, bt.Edge(t, in))
		if n := c.Child.Size(); n > 0 {
			if err := c.Write(n-1, 0, []byte{1}); err != nil {
				t.Errorf("a write of the last byte: %v", err)
			}
			if err := c.Read(0, make([]byte, n)); err != nil {
				t.Errorf("a read of all: %v", err)
			}
		}
	})
}
