package nbd

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// chunks reads the structured reply to one read and returns its shape, and the
// bytes it gives.
func (c *raw) chunks(off uint64, n int) (shape string, data []byte) {
	c.t.Helper()
	data = bytes.Repeat([]byte{0xAA}, n)
	for {
		rep, _, err := wire.ParseReply(c.recv(wire.ChunkLen), false)
		if err != nil {
			c.t.Fatal(err)
		}
		b := c.recv(int(rep.Length))
		switch rep.Type {
		case wire.ReplyOffsetData:
			at := binary.BigEndian.Uint64(b) - off
			copy(data[at:], b[8:])
			shape += fmt.Sprintf("data %d+%d ", at, len(b)-8)
		case wire.ReplyOffsetHole:
			o, k, err := wire.ParseChunkHole(b)
			if err != nil {
				c.t.Fatal(err)
			}
			clear(data[o-off : o-off+uint64(k)])
			shape += fmt.Sprintf("hole %d+%d ", o-off, k)
		default:
			shape += rep.Type.String() + " "
		}
		if rep.Done() {
			return shape, data
		}
	}
}

// Zeroes in a read are sent as holes where they are long enough, a read with DF
// and a short one come in one piece, and a long one comes in pieces.
func TestReadShapes(t *testing.T) {
	const k = 1 << 10
	tests := []struct {
		off    uint64
		n      int
		fl     wire.CmdFlags
		mem    string
		direct string
	}{
		{0, 4 * k, 0, "data 0+4096 ", "data 0+4096 "},
		{mib, 4 * k, 0, "hole 0+4096 ", "data 0+4096 "},
		{mib, 4 * k, wire.CmdFlagDF, "data 0+4096 ", "data 0+4096 "},
		{mib, 64 * k, 0, "hole 0+65536 ", "hole 0+65536 "},
		{mib, 64 * k, wire.CmdFlagDF, "data 0+65536 ", "data 0+65536 "},
		{mib, mib, wire.CmdFlagDF, "data 0+1048576 ", "data 0+1048576 "},
		{0, 256 * k, 0, "data 0+262144 ", "data 0+65536 hole 65536+65536 data 131072+65536 hole 196608+65536 "},
		{32 * k, 128 * k, 0, "data 0+131072 ", "data 0+131072 "},
	}
	for _, kind := range []string{"mem", "direct"} {
		t.Run(kind, func(t *testing.T) {
			env := blocktest.NewEnv(t)
			child := disk(t, env, "mem", 8*mib)
			if kind == "direct" {
				child = directFile(t, env, 8*mib)
			}
			r := newRig(t, env, Config{}, Export{Child: child})
			c := r.raw(wire.ClientConfig{WantStructured: true})
			want := make([]byte, 8*mib)
			for _, at := range []int{0, 128 * k} {
				copy(want[at:], pattern(64*k, 7))
			}
			w := r.dial(wire.ClientConfig{}, wire.ClientOptions{})
			if err := w.Pwrite(want[:256*k], 0, 0); err != nil {
				t.Fatal(err)
			}
			if err := w.WriteZeroes(64*k, 64*k, wire.CmdFlagNoHole); err != nil {
				t.Fatal(err)
			}
			for _, tc := range tests {
				c.send(request(wire.CmdRead, tc.fl, 1, tc.off, uint64(tc.n)))
				shape, data := c.chunks(tc.off, tc.n)
				if !bytes.Equal(data, want[tc.off:tc.off+uint64(tc.n)]) {
					t.Errorf("read of %d at %d, flags %d: other bytes", tc.n, tc.off, tc.fl)
				}
				if exp := map[string]string{"mem": tc.mem, "direct": tc.direct}[kind]; shape != exp {
					t.Errorf("read of %d at %d, flags %d: %s, want %s", tc.n, tc.off, tc.fl, shape, exp)
				}
			}
			c.send(request(wire.CmdRead, 0, 1, 512, 3*mib))
			if _, data := c.chunks(512, 3*mib); !bytes.Equal(data, want[512:512+3*mib]) {
				t.Error("a long read has other bytes")
			}
		})
	}
}

// stripes is a disk whose status alternates between data and hole.
type stripes struct {
	*blocktest.Emulator
	unit int64
}

func (s *stripes) BlockStatus(_ *block.Req, off, n int64) (block.Extent, error) {
	left := min(s.unit-off%s.unit, n)
	data := off/s.unit%2 == 0
	return block.Extent{
		Len: left, Data: data, Zero: !data, Allocated: data || off/s.unit%4 == 1, Depth: int(off / s.unit % 3),
		Host: -1, EOF: off+left == s.Info().Size(),
	}, nil
}

// The reply to a block status is bounded, also when the disk is in crumbs, and
// what it leaves out can be asked for.
func TestStatusOfCrumbs(t *testing.T) {
	for _, m := range modes[1:] {
		t.Run(m.name, func(t *testing.T) {
			env := blocktest.NewEnv(t)
			d := &stripes{blocktest.NewEmulator(t, blocktest.EmulatorConfig{Size: 64 * mib}), 512}
			r := newRig(t, env, Config{}, Export{Child: blocktest.Edge(t, blocktest.Attach(t, env, d, "crumbs")), AllocationDepth: true})
			c := r.dial(m.cfg, wire.ClientOptions{})
			off, asked := uint64(0), 0
			for ; off < c.Size(); asked++ {
				sts, err := c.BlockStatus(off, c.Size()-off, 0)
				if err != nil {
					t.Fatal(err)
				}
				n := len(sts[0].Extents)
				if n < 1000 || n > maxStatusBody/8 {
					if off+uint64(n)*512 != c.Size() {
						t.Fatalf("%d extents in a reply", n)
					}
				}
				for i, e := range sts[0].Extents {
					want := uint64(0)
					if (int(off/512)+i)%2 == 1 {
						want = wire.StateHole | wire.StateZero
					}
					if e.Length != 512 || e.Flags != want {
						t.Fatalf("extent %d from %d: %+v", i, off, e)
					}
				}
				off += uint64(n) * 512
			}
			if asked < 10 {
				t.Errorf("the status of all came in %d replies", asked)
			}
		})
	}
}

// Extents that the disk reports apart and that say the same are one, for as
// long as the disk is not asked too often.
func TestStatusMerges(t *testing.T) {
	env := blocktest.NewEnv(t)
	d := &stripes{blocktest.NewEmulator(t, blocktest.EmulatorConfig{Size: 64 * mib}), 1 << 40}
	crumbs := &capped{d, 1024}
	r := newRig(t, env, Config{}, Export{Child: blocktest.Edge(t, blocktest.Attach(t, env, crumbs, "crumbs"))})
	c := r.dial(modes[1].cfg, wire.ClientOptions{})
	sts, err := c.BlockStatus(0, 64*mib, 0)
	if err != nil {
		t.Fatal(err)
	}
	if e := sts[0].Extents; len(e) != 1 || e[0].Length != maxStatusCalls*1024 {
		t.Errorf("extents %+v, want one of %d", e, maxStatusCalls*1024)
	}
	if sts, err = c.BlockStatus(512, 100000, wire.CmdFlagReqOne); err != nil || sts[0].Extents[0].Length != 100000 {
		t.Errorf("status %+v, %v", sts, err)
	}
}

// capped is a disk that describes at most n bytes at a time.
type capped struct {
	*stripes
	n int64
}

func (c *capped) BlockStatus(rq *block.Req, off, n int64) (block.Extent, error) {
	return c.stripes.BlockStatus(rq, off, min(n, c.n))
}

// The payload of a block status picks contexts.
func TestStatusPayload(t *testing.T) {
	env := blocktest.NewEnv(t)
	d := &stripes{blocktest.NewEmulator(t, blocktest.EmulatorConfig{Size: mib}), 4096}
	r := newRig(t, env, Config{}, Export{Child: blocktest.Edge(t, blocktest.Attach(t, env, d, "d")), AllocationDepth: true})
	c := r.dial(modes[2].cfg, wire.ClientOptions{Unchecked: true})
	ids := map[string]uint32{}
	for _, m := range c.Session().Contexts {
		ids[m.Name] = m.ID
	}
	for _, name := range []string{wire.ContextAllocation, wire.ContextDepth} {
		sts, err := c.BlockStatus(4096, 16384, 0, ids[name])
		if err != nil {
			t.Fatal(err)
		}
		want := []wire.Extent{{Length: 4096, Flags: 3}, {Length: 4096}, {Length: 4096, Flags: 3}, {Length: 4096}}
		if name == wire.ContextDepth {
			want = []wire.Extent{{Length: 4096, Flags: 2}, {Length: 4096, Flags: 3}, {Length: 4096, Flags: 0}, {Length: 4096, Flags: 2}}
		}
		if len(sts) != 1 || sts[0].Context.Name != name || fmt.Sprint(sts[0].Extents) != fmt.Sprint(want) {
			t.Errorf("%s: %+v, want %+v", name, sts, want)
		}
	}
	if sts, err := c.BlockStatus(0, mib, 0, ids[wire.ContextDepth], ids[wire.ContextAllocation]); err != nil || len(sts) != 2 {
		t.Errorf("both: %+v, %v", sts, err)
	}
	for what, bad := range map[string][]uint32{
		"unknown": {99}, "twice": {0, 0}, "too many": make([]uint32, 200),
	} {
		_, err := c.BlockStatus(0, 4096, 0, bad...)
		t.Logf("%s: %v", what, err)
		wantErrno(t, err, wire.EINVAL)
	}
	_, err := c.BlockStatus(mib-512, 1024, 0, 0)
	wantErrno(t, err, wire.EINVAL)
	if err := c.Flush(); err != nil {
		t.Errorf("the connection does not go on: %v", err)
	}
}

// FUA and FAST_ZERO reach the disk as they are meant.
func TestFlagsReachTheDisk(t *testing.T) {
	env := blocktest.NewEnv(t)
	em, child := emulated(t, env, blocktest.EmulatorConfig{
		Size: 8 * mib, WriteFlags: block.FUA, ZeroFlags: block.FUA | block.MayUnmap | block.NoFallback,
	})
	r := newRig(t, env, Config{}, Export{Child: child})
	c := r.dial(wire.ClientConfig{}, wire.ClientOptions{})
	check := func(what string, err error, want ...blocktest.Call) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if got := em.Calls(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: calls %v, want %v", what, got, want)
		}
		em.ForgetCalls()
	}
	check("write", c.Pwrite(make([]byte, 512), 0, 0), blocktest.Call{Op: block.OpWrite, Len: 512, Segs: 1})
	check("FUA", c.Pwrite(make([]byte, 512), 0, wire.CmdFlagFUA), blocktest.Call{Op: block.OpWrite, Len: 512, Segs: 1, Flags: block.FUA})
	check("zero", c.WriteZeroes(0, 512, 0), blocktest.Call{Op: block.OpZero, Len: 512, Flags: block.MayUnmap})
	check("NO_HOLE", c.WriteZeroes(0, 512, wire.CmdFlagNoHole), blocktest.Call{Op: block.OpZero, Len: 512})
	check("FAST", c.WriteZeroes(0, 512, wire.CmdFlagFastZero|wire.CmdFlagFUA),
		blocktest.Call{Op: block.OpZero, Len: 512, Flags: block.MayUnmap | block.NoFallback | block.FUA})
	check("trim", c.Trim(0, 512, 0), blocktest.Call{Op: block.OpDiscard, Len: 512})
	check("trim FUA", c.Trim(0, 512, wire.CmdFlagFUA), blocktest.Call{Op: block.OpDiscard, Len: 512}, blocktest.Call{Op: block.OpFlush})
	check("cache", c.Cache(0, 512<<10), blocktest.Call{Op: block.OpRead, Len: 256 << 10, Segs: 1},
		blocktest.Call{Op: block.OpRead, Off: 256 << 10, Len: 256 << 10, Segs: 1})
}

// A disk that cannot zero quickly says so at once, and the log does not
// complain.
func TestFastZeroNotSupported(t *testing.T) {
	env := blocktest.NewEnv(t)
	_, child := emulated(t, env, blocktest.EmulatorConfig{Size: mib, NoZero: true})
	r := newRig(t, env, Config{}, Export{Child: child})
	for _, m := range modes {
		c := r.dial(m.cfg, wire.ClientOptions{})
		wantErrno(t, c.WriteZeroes(0, mib, wire.CmdFlagFastZero), wire.ENOTSUP)
		if err := c.WriteZeroes(0, mib, 0); err != nil {
			t.Error(err)
		}
	}
	if bytes.Contains([]byte(r.log.String()), []byte("request failed")) {
		t.Error("the log complains")
	}
}

// Ranges longer than a step are discarded and zeroed in steps, made durable
// once, and given up when the connection is cut.
func TestLongRangesInSteps(t *testing.T) {
	env := blocktest.NewEnv(t)
	d := newEndless(t, 10*maxStep)
	r := newRig(t, env, Config{}, Export{Child: blocktest.Edge(t, blocktest.Attach(t, env, d, "endless"))})
	c := r.dial(wire.ClientConfig{WantExtended: true}, wire.ClientOptions{})
	if err := c.Trim(100, 3*maxStep, wire.CmdFlagFUA); err != nil {
		t.Error(err)
	}
	if err := c.WriteZeroes(0, 10*maxStep, wire.CmdFlagFUA); err != nil {
		t.Error(err)
	}
	if d.discards.Load() != 4 || d.zeroes.Load() != 10 || d.flushes.Load() != 2 {
		t.Errorf("%d discards, %d zeroes, %d flushes: want 4, 10, 2", d.discards.Load(), d.zeroes.Load(), d.flushes.Load())
	}
	gate := make(chan struct{})
	d.gate.Store(&gate)
	result := make(chan error, 1)
	go func() { result <- c.Trim(0, 10*maxStep, 0) }()
	waitFor(t, "the first step", func() bool { return d.discards.Load() == 5 })
	for _, c := range r.connsOf() {
		c.cut()
	}
	close(gate)
	if err := <-result; err == nil {
		t.Error("the trim succeeded on a cut connection")
	}
	waitFor(t, "the connection to be gone", func() bool { return len(r.Connections()) == 0 })
	if n := d.discards.Load(); n != 5 {
		t.Errorf("%d steps after the connection was cut", n-5)
	}
}

// endless is a disk without content that counts what changes it.
type endless struct {
	*blocktest.Emulator
	info                      block.Info
	discards, zeroes, flushes atomic.Int64
	gate                      atomic.Pointer[chan struct{}] // where discards wait
}

func newEndless(t testing.TB, size int64) *endless {
	d := &endless{Emulator: blocktest.NewEmulator(t, blocktest.EmulatorConfig{})}
	d.info.SetLimits(block.ByteLimits())
	d.info.SetSize(size)
	return d
}

func (d *endless) Info() *block.Info { return &d.info }

func (d *endless) Discard(*block.Req, int64, int64) error {
	d.discards.Add(1)
	if g := d.gate.Load(); g != nil {
		<-*g
	}
	return nil
}

func (d *endless) WriteZeroes(*block.Req, int64, int64, block.Flags) error {
	d.zeroes.Add(1)
	return nil
}

func (d *endless) Flush(*block.Req) error {
	d.flushes.Add(1)
	return nil
}

// connsOf lists the connections themselves.
func (s *Server) connsOf() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connsLocked(func(*conn) bool { return true })
}
