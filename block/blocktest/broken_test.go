package blocktest

import (
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/platter-storage/platter/block"
)

// broken is an emulator whose operations a test replaces by wrong ones.
type broken struct {
	*Emulator
	n      atomic.Int64
	write  func(b *broken, rq *block.Req, off int64, v block.Vec, fl block.Flags) error
	read   func(b *broken, rq *block.Req, off int64, v block.Vec) error
	zero   func(b *broken, rq *block.Req, off, n int64, fl block.Flags) error
	status func(b *broken, off, n int64) (block.Extent, error)
	flush  func() error
	mapped int64 // added to the offsets that Map answers
	mu     sync.Mutex
	cache  map[int64][]byte
}

func (b *broken) Pwritev(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	if b.write != nil {
		return b.write(b, rq, off, v, fl)
	}
	return b.Emulator.Pwritev(rq, off, v, fl)
}

func (b *broken) Preadv(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	if b.read != nil {
		return b.read(b, rq, off, v)
	}
	return b.Emulator.Preadv(rq, off, v, fl)
}

func (b *broken) WriteZeroes(rq *block.Req, off, n int64, fl block.Flags) error {
	if b.zero != nil {
		return b.zero(b, rq, off, n, fl)
	}
	return b.Emulator.WriteZeroes(rq, off, n, fl)
}

func (b *broken) BlockStatus(rq *block.Req, off, n int64) (block.Extent, error) {
	if b.status != nil {
		return b.status(b, off, n)
	}
	return b.Emulator.BlockStatus(rq, off, n)
}

func (b *broken) Flush(rq *block.Req) error {
	if b.flush != nil {
		return b.flush()
	}
	return b.Emulator.Flush(rq)
}

func (b *broken) Map(rq *block.Req, op block.Op, off int64, v block.Vec, fl block.Flags) (block.Mapping, bool) {
	m, ok := b.Emulator.Map(rq, op, off, v, fl)
	if op == block.OpWrite && off+b.mapped+v.Len() <= b.Info().Size() {
		m.Off += b.mapped
	}
	return m, ok
}

// every is true each n-th time.
func (b *broken) every(n int64) bool { return b.n.Add(1)%n == 0 }

var faults = map[string]struct {
	b          *broken
	durable    bool
	concurrent bool // only several requests at once show it
}{
	"drops a write": {b: &broken{write: func(b *broken, rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
		if b.every(16) {
			return nil
		}
		return b.Emulator.Pwritev(rq, off, v, fl)
	}}},
	"swaps neighbours": {b: &broken{write: func(b *broken, rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
		if n := v.Len(); n == 1024 {
			v = append(v.AppendRange(nil, 512, 512), v.AppendRange(nil, 0, 512)...)
		}
		return b.Emulator.Pwritev(rq, off, v, fl)
	}}},
	"writes a byte too few": {b: &broken{write: func(b *broken, rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
		return b.Emulator.Pwritev(rq, off, v.AppendRange(nil, 0, max(v.Len()-1, 1)), fl)
	}}},
	"loses one of two read-modify-writes": {concurrent: true, b: &broken{write: func(b *broken, rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
		from, to := off&^4095, min((off+v.Len()+4095)&^4095, b.Info().Size())
		buf := make([]byte, to-from)
		b.load(request{block.OpRead, from, to - from, block.Vec{buf}, 0})
		v.CopyOut(buf[off-from:][:v.Len()], 0)
		runtime.Gosched()
		b.store(request{block.OpWrite, from, to - from, block.Vec{buf}, fl})
		return nil
	}}},
	"reads from a cache that writes do not reach": {b: &broken{read: func(b *broken, rq *block.Req, off int64, v block.Vec) error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if old := b.cache[off]; off%4096 == 0 && int64(len(old)) >= v.Len() {
			v.CopyIn(old[:v.Len()], 0)
			return nil
		}
		err := b.Emulator.Preadv(rq, off, v, 0)
		got := make([]byte, v.Len())
		v.CopyOut(got, 0)
		b.cache[off] = got
		return err
	}}},
	"leaves the last element of a read alone": {b: &broken{read: func(b *broken, rq *block.Req, off int64, v block.Vec) error {
		if len(v) > 2 {
			v = v[:len(v)-1]
		}
		return b.Emulator.Preadv(rq, off, v, 0)
	}}},
	"says zeroes over data": {b: &broken{status: func(b *broken, off, n int64) (block.Extent, error) {
		return block.Extent{Len: n, Zero: true, Host: -1, EOF: off+n == b.Info().Size()}, nil
	}}},
	"zeroes a sector too much": {b: &broken{zero: func(b *broken, rq *block.Req, off, n int64, fl block.Flags) error {
		if off+n+512 <= b.Info().Size() {
			n += 512
		}
		return b.Emulator.WriteZeroes(rq, off, n, fl)
	}}},
	"refuses and zeroes all the same": {b: &broken{zero: func(b *broken, rq *block.Req, off, n int64, fl block.Flags) error {
		if n > 1 {
			_ = b.Emulator.WriteZeroes(rq, off, n/2, fl)
		}
		return nil
	}}},
	"maps to the wrong place": {b: &broken{mapped: 512}},
	"does not flush":          {durable: true, b: &broken{flush: func() error { return nil }}},
	"forgets that FUA was set": {durable: true, b: &broken{write: func(b *broken, rq *block.Req, off int64, v block.Vec, _ block.Flags) error {
		return b.Emulator.Pwritev(rq, off, v, 0)
	}}},
}

// The model test finds each of these nodes out, within a few seeds, shrinks
// what it found, and prints a test.
func TestModelFindsBrokenNodes(t *testing.T) {
	for name, x := range faults {
		t.Run(name, func(t *testing.T) {
			var e *Emulator
			open := func(t testing.TB) []*block.Child {
				e = NewEmulator(t, EmulatorConfig{Size: 256 << 10, Fast: x.b.mapped != 0, WriteFlags: block.FUA, ZeroFlags: block.FUA})
				b := &broken{Emulator: e, write: x.b.write, read: x.b.read, zero: x.b.zero, status: x.b.status, flush: x.b.flush, mapped: x.b.mapped, cache: map[int64][]byte{}}
				if x.b.mapped != 0 {
					e.info.Abilities.Mapper = b
				}
				return []*block.Child{Edge(t, Attach(t, NewEnv(t), b, "broken"))}
			}
			cfg := ModelConfig{Ops: 400, Area: 64 << 10}
			if x.durable {
				cfg.Durable = func() []byte { return e.Durable() }
			}
			cfg.setDefaults()
			var f *failure
			// A sequential fault may first be met where only several
			// goroutines show it: the next seed shows it alone.
			for cfg.Seed = 1; (f == nil || f.sequential == x.concurrent) && cfg.Seed <= 20; cfg.Seed++ {
				f = runSeed(t, open, cfg)
			}
			if f == nil {
				t.Fatal("not found")
			}
			report := f.report(t.Name())
			if f.sequential == x.concurrent || !strings.Contains(report, "blocktest.Replay(t, open, cfg, []blocktest.ModelOp{\n\t\t{Op: block.Op") {
				t.Errorf("the report is:\n%s", report)
			}
			if most := 16; len(f.ops) > most && !x.concurrent {
				t.Errorf("shrunk to %d operations, at most %d should do:\n%s", len(f.ops), most, report)
			}
		})
	}
}
