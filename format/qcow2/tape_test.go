package qcow2

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/race"
)

// tape is a file in memory that remembers every change in order, so that tests
// can have the file as a power cut would leave it.
type tape struct {
	info block.Info
	mu   sync.Mutex
	b    []byte
	base []byte
	ops  []tapeOp
}

// maxTape is how large it may become.
const maxTape = 256 << 20

var blank [4096]byte

// tapeOp is a write, a change of the size, or a flush.
type tapeOp struct {
	off   int64
	b     []byte
	size  int64 // of the file, where it changed; else -1
	flush bool
}

func newTape(b []byte) *tape {
	x := &tape{b: append([]byte(nil), b...), base: append([]byte(nil), b...)}
	x.info = block.Info{Driver: "tape", Filename: "tape"}
	x.info.SetSize(int64(len(b)))
	x.info.SetLimits(block.ByteLimits())
	return x
}

func (x *tape) Info() *block.Info { return &x.info }

func (x *tape) Preadv(_ *block.Req, off int64, v block.Vec, _ block.Flags) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	v.CopyIn(x.b[off:off+v.Len()], 0)
	return nil
}

func (x *tape) Pwritev(_ *block.Req, off int64, v block.Vec, _ block.Flags) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	v.CopyOut(x.b[off:off+v.Len()], 0)
	x.ops = append(x.ops, tapeOp{off: off, b: append([]byte(nil), x.b[off:off+v.Len()]...), size: -1})
	return nil
}

func (x *tape) WriteZeroes(*block.Req, int64, int64, block.Flags) error {
	return block.ErrNotSupported
}

func (x *tape) Discard(*block.Req, int64, int64) error { return block.ErrNotSupported }

func (x *tape) Flush(*block.Req) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ops = append(x.ops, tapeOp{size: -1, flush: true})
	return nil
}

func (x *tape) BlockStatus(_ *block.Req, off, n int64) (block.Extent, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for b := x.b[off : off+n]; len(b) > 0; b = b[min(len(blank), len(b)):] {
		if k := min(len(blank), len(b)); !bytes.Equal(b[:k], blank[:k]) {
			return block.Extent{Len: n, Data: true, Allocated: true, Host: -1}, nil
		}
	}
	return block.Extent{Len: n, Zero: true, Allocated: true, Host: -1}, nil
}

func (x *tape) Truncate(_ *block.Req, size int64, _ block.Prealloc) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if size > maxTape {
		return syscall.ENOSPC
	}
	x.b = resize(x.b, size)
	x.ops = append(x.ops, tapeOp{size: size})
	x.info.SetSize(size)
	return nil
}

func (x *tape) Close() error { return nil }

func resize(b []byte, n int64) []byte {
	if n <= int64(len(b)) {
		return b[:n:n]
	}
	return append(b, make([]byte, n-int64(len(b)))...)
}

// cut is the file after a power cut during operation n: what came before the
// last flush is there, of what came after it what keep says.
func (x *tape) cut(n int, keep func() bool) []byte {
	b := append([]byte(nil), x.base...)
	flushed := 0
	for i, op := range x.ops[:n] {
		if op.flush {
			flushed = i
		}
	}
	for i, op := range x.ops[:n] {
		if op.flush || i > flushed && !keep() && op.size < 0 {
			continue
		}
		if op.size >= 0 {
			b = resize(b, op.size)
			continue
		}
		if end := op.off + int64(len(op.b)); end > int64(len(b)) {
			b = resize(b, end)
		}
		copy(b[op.off:], op.b)
	}
	return b
}

// cuts calls f with states that a power cut can leave: after each operation all
// of it, and more with a part of what was not flushed.
func (x *tape) cuts(seed uint64, f func(n int, b []byte)) {
	r := rand.New(rand.NewPCG(seed, 1))
	step := 1
	if race.Enabled {
		step = 7 // editing is one goroutine's work
	}
	for n := 0; n <= len(x.ops); n += step {
		f(n, x.cut(n, func() bool { return true }))
		f(n, x.cut(n, func() bool { return r.IntN(2) == 0 }))
	}
}

// load makes a tape of a file.
func load(t testing.TB, path string) *tape {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return newTape(b)
}

// save writes the tape's content to a file.
func save(t testing.TB, x []byte, path string) {
	t.Helper()
	if err := os.WriteFile(path, x, 0o600); err != nil {
		t.Fatal(err)
	}
}

// with calls f with an edge to the tape and a request.
func (x *tape) with(t testing.TB, f func(rq *block.Req, file *block.Child) error) error {
	t.Helper()
	return withNode(t, x, f)
}

// withNode calls f with an edge to the node and a request.
func withNode(t testing.TB, x block.Node, f func(rq *block.Req, file *block.Child) error) error {
	t.Helper()
	env := bt.NewEnv(t)
	in := block.NewInstance(x, "tape", env)
	c, err := in.NewChild("test", block.RoleData, block.PermAll, block.PermAll)
	if err != nil {
		t.Fatal(err)
	}
	q := block.NewQueue(env, block.NewQueueGroup())
	defer q.Close()
	rq := q.Begin()
	err = f(rq, c)
	q.End(rq, block.OpFlush, 0, err)
	c.Close()
	return err
}

// check runs a check of the tape and collects what it tells.
func (x *tape) check(t testing.TB, fix block.Fix) (res block.CheckResult, told []string, err error) {
	t.Helper()
	err = x.with(t, func(rq *block.Req, file *block.Child) (err error) {
		res, err = check(rq, file, block.CheckOptions{Fix: fix, Report: func(l string) { told = append(told, l) }})
		return err
	})
	return res, told, err
}

// content is what each cluster of a disk or snapshot reads as, by its number:
// data with the bits that say how it is to be read. Clusters of blank are left
// out, whatever makes them so.
func content(t testing.TB, b []byte, l1Off uint64, entries uint32) map[int64]string {
	t.Helper()
	l, err := parseLayout(b)
	if err != nil {
		t.Fatal(err)
	}
	part := func(off, n int64) []byte {
		x := make([]byte, n)
		if off < int64(len(b)) {
			copy(x, b[off:])
		}
		return x
	}
	u64 := binary.BigEndian.Uint64
	all := map[int64]string{}
	per := l.clusterSize() / l.entryLen()
	for i := range int64(entries) {
		off := u64(part(int64(l1Off)+i*8, 8)) & entryOffset
		if off == 0 {
			continue
		}
		table := part(int64(off), l.clusterSize())
		for k := range per {
			x := u64(table[k*l.entryLen():])
			sub := ""
			if l.entryLen() == 16 {
				sub = string(table[k*16+8 : k*16+16])
			}
			switch {
			case x&entryCompressed != 0:
				at, n := l.compressedAt(x)
				all[i*per+k] = "compressed" + string(part(int64(at), n))
			case x&entryOffset != 0 && x&entryZero == 0:
				all[i*per+k] = sub + string(part(int64(x&entryOffset), l.clusterSize()))
			}
		}
	}
	return all
}

// disk is the content of the disk itself.
func disk(t testing.TB, b []byte) map[int64]string {
	t.Helper()
	l, err := parseLayout(b)
	if err != nil {
		t.Fatal(err)
	}
	return content(t, b, l.l1Off, l.l1Entries)
}

// patient is an image whose metadata a test harms.
type patient struct {
	b []byte
	l layout
}

func (p *patient) get(at uint64) uint64    { return binary.BigEndian.Uint64(p.b[at:]) }
func (p *patient) put(at uint64, x uint64) { binary.BigEndian.PutUint64(p.b[at:], x) }

// l2 is where entry i of the first L2 table lies.
func (p *patient) l2(i uint64) uint64 {
	return p.get(p.l.l1Off)&entryOffset + i*uint64(p.l.entryLen())
}

// refcounts is where the first refcount block lies.
func (p *patient) refcounts() uint64 { return p.get(p.l.tableOff) }

// setRef sets a refcount.
func (p *patient) setRef(cluster int64, n uint64) {
	setRefAt(p.b[p.refcounts():], p.l.order, cluster, n)
}

// data is the host cluster of entry i of the first L2 table.
func (p *patient) data(i uint64) int64 {
	return int64(p.get(p.l2(i)) & entryOffset >> p.l.clusterBits)
}

// edit runs f with an editor of the tape.
func (x *tape) edit(t testing.TB, f func(e *editor) error) error {
	t.Helper()
	return x.with(t, func(rq *block.Req, file *block.Child) error {
		e, err := edit(rq, file)
		if err != nil {
			return err
		}
		return f(e)
	})
}

// must is edit for what has to succeed.
func (x *tape) must(t testing.TB, f func(e *editor) error) {
	t.Helper()
	if err := x.edit(t, f); err != nil {
		t.Fatal(err)
	}
}

// opened runs f with the image in x open, and closes it.
func opened(t *testing.T, x *tape, vals block.Values, readOnly bool, f func(t *testing.T, c *bt.Client)) {
	t.Helper()
	t.Run("open", func(t *testing.T) {
		env := bt.NewEnv(t)
		all := block.Values{"driver": "qcow2"}
		for k, v := range vals {
			all[k] = v
		}
		in, err := bt.TryOpen(t, env, all, map[string]*block.Instance{"file": bt.Attach(t, env, x, "file")}, readOnly)
		if err != nil {
			t.Fatal(err)
		}
		f(t, bt.NewClient(t, bt.Edge(t, in)))
	})
}

// alone runs f on the abilities.
func alone(t testing.TB, c *bt.Client, perm block.Perm, f func(rq *block.Req, a *block.Abilities) error) {
	t.Helper()
	err := c.Do(block.OpFlush, func(rq *block.Req) error {
		return c.Child.Exclusive(rq, perm, func(a *block.Abilities) error { return f(rq, a) })
	})
	if err != nil {
		t.Error(err)
	}
}

func fill(t testing.TB, c *bt.Client, off, n int64, with byte) {
	t.Helper()
	if err := c.Write(off, 0, bytes.Repeat([]byte{with}, int(n))); err != nil {
		t.Error(err)
	}
}

func reads(t testing.TB, c *bt.Client, off, n int64, want byte) {
	t.Helper()
	b := make([]byte, n)
	if err := c.Read(off, b); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(b, bytes.Repeat([]byte{want}, int(n))) {
		t.Errorf("%d bytes at %d are not all %d", n, off, want)
	}
}
