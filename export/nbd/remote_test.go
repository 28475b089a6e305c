package nbd

import (
	"bytes"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/inject"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// remote is a node whose content is behind the socket, so that the conformance
// suite and the model see a disk through the server and the client.
type remote struct {
	info block.Info
	c    *wire.Client
}

func (r *rig) remote(cfg wire.ClientConfig) *block.Child {
	n := &remote{c: r.dial(cfg, wire.ClientOptions{})}
	s := n.c.Session()
	n.info = block.Info{
		Driver: "remote", Filename: r.addr, ReadOnly: s.Flags&wire.FlagReadOnly != 0,
		WriteFlags: block.FUA, ZeroFlags: block.FUA | block.MayUnmap, MultiConn: s.Flags&wire.FlagCanMultiConn != 0,
	}
	l := block.ByteLimits()
	l.MaxTransfer = s.MaxPayload
	l.MaxZero, l.MaxDiscard = 1<<30, 1<<30
	n.info.SetLimits(l)
	n.info.SetSize(int64(n.c.Size()))
	return blocktest.Edge(r.t, blocktest.Attach(r.t, r.env, n, "remote"))
}

func cmdFlags(fl block.Flags) (out wire.CmdFlags) {
	if fl&block.FUA != 0 {
		out |= wire.CmdFlagFUA
	}
	return out
}

func (n *remote) Info() *block.Info { return &n.info }

func (n *remote) Preadv(_ *block.Req, off int64, v block.Vec, _ block.Flags) error {
	return n.c.Preadv(v, uint64(off), 0)
}

func (n *remote) Pwritev(_ *block.Req, off int64, v block.Vec, fl block.Flags) error {
	return n.c.Pwritev(v, uint64(off), cmdFlags(fl))
}

func (n *remote) WriteZeroes(_ *block.Req, off, length int64, fl block.Flags) error {
	f := cmdFlags(fl)
	if fl&block.MayUnmap == 0 {
		f |= wire.CmdFlagNoHole
	}
	if fl&block.NoFallback != 0 {
		f |= wire.CmdFlagFastZero
	}
	return n.c.WriteZeroes(uint64(off), uint64(length), f)
}

func (n *remote) Discard(_ *block.Req, off, length int64) error {
	return n.c.Trim(uint64(off), uint64(length), 0)
}

func (n *remote) Flush(*block.Req) error { return n.c.Flush() }

func (n *remote) BlockStatus(_ *block.Req, off, length int64) (block.Extent, error) {
	all := block.Extent{Len: length, Data: true, Allocated: true, Host: -1, EOF: off+length == n.info.Size()}
	if len(n.c.Session().Contexts) == 0 {
		return all, nil
	}
	st, err := n.c.BlockStatus(uint64(off), uint64(length), wire.CmdFlagReqOne)
	if err != nil {
		return all, err
	}
	e := st[0].Extents[0]
	return block.Extent{
		Len: int64(e.Length), Data: e.Flags&wire.StateHole == 0, Zero: e.Flags&wire.StateZero != 0,
		Allocated: true, Host: -1, EOF: off+int64(e.Length) == n.info.Size(),
	}, nil
}

func (n *remote) Truncate(*block.Req, int64, block.Prealloc) error { return block.ErrNotSupported }

func (n *remote) Close() error { return n.c.Close() }

// disks for the model: how they are made, and what is special about them.
var modelDisks = []struct {
	name string
	open func(t testing.TB, env *block.Env) *block.Child
}{
	{"mem", func(t testing.TB, env *block.Env) *block.Child { return disk(t, env, "mem", mib) }},
	{"cached", func(t testing.TB, env *block.Env) *block.Child { return disk(t, env, "file", mib) }},
	{"direct", func(t testing.TB, env *block.Env) *block.Child { return directFile(t, env, mib) }},
	{"emulator", func(t testing.TB, env *block.Env) *block.Child {
		_, c := emulated(t, env, blocktest.EmulatorConfig{Size: mib, Limits: alignedTo(4096), Fast: true})
		return c
	}},
	{"emulator, slow lane", func(t testing.TB, env *block.Env) *block.Child {
		_, c := emulated(t, env, blocktest.EmulatorConfig{Size: mib, NoZero: true, NoDiscard: true})
		return c
	}},
}

// directFile is a file opened past the page cache.
func directFile(t testing.TB, env *block.Env, size int64) *block.Child {
	vals := block.Values{"driver": "file", "filename": sparseFile(t, size), "cache": "none"}
	return blocktest.Edge(t, blocktest.Open(t, env, vals, nil))
}

// The contract of a disk holds through the socket.
func TestConformanceThroughTheSocket(t *testing.T) {
	for _, d := range modelDisks[:3] {
		t.Run(d.name, func(t *testing.T) {
			blocktest.Run(t, func(t testing.TB) *block.Child {
				env := blocktest.NewEnv(t)
				r := newRig(t, env, Config{}, Export{Child: d.open(t, env)})
				return r.remote(wire.ClientConfig{WantExtended: true, Contexts: []string{wire.ContextAllocation}})
			}, blocktest.Options{AnyAfterDiscard: true})
		})
	}
}

// Random requests of several clients, in every mode of replies at once, some of
// them declined by the fast lane, against a model of what may be seen.
func TestModelThroughTheSocket(t *testing.T) {
	for _, d := range modelDisks {
		t.Run(d.name, func(t *testing.T) {
			blocktest.Model(t, func(t testing.TB) []*block.Child {
				env := blocktest.NewEnv(t)
				var n atomic.Uint64
				env.FastLane = func() bool { return n.Add(1)%5 != 0 }
				r := newRig(t, env, Config{MaxInFlight: 16, Memory: MinMemory}, Export{Child: d.open(t, env)})
				return []*block.Child{r.remote(modes[0].cfg), r.remote(modes[1].cfg), r.remote(modes[2].cfg)}
			}, blocktest.ModelConfig{Ops: 1200, Workers: 6, MaxLen: 300 << 10, Area: mib, AnyAfterDiscard: true})
		})
	}
}

// The same with storage that fails now and then, also short in the fast lane.
func TestModelWithFaults(t *testing.T) {
	blocktest.Model(t, func(t testing.TB) []*block.Child {
		env := blocktest.NewEnv(t)
		em, child := emulated(t, env, blocktest.EmulatorConfig{Size: mib, Fast: true, Seed: rand.Uint64()})
		moves := blocktest.OpBit(block.OpRead) | blocktest.OpBit(block.OpWrite)
		em.Inject(&blocktest.Fault{Rule: inject.Rule{Ops: moves, Chance: 0.05}, Err: syscall.EIO})
		em.Inject(&blocktest.Fault{Rule: inject.Rule{Ops: moves, Chance: 0.1}, DelayNs: 200_000})
		r := newRig(t, env, Config{}, Export{Child: child})
		return []*block.Child{r.remote(modes[0].cfg), r.remote(modes[2].cfg)}
	}, blocktest.ModelConfig{Ops: 800, Workers: 6, Area: mib, AnyAfterDiscard: true, Faults: true})
}

// Several clients on one disk: what one completed, the others see.
func TestSeveralConnectionsSeeOneDisk(t *testing.T) {
	for _, d := range modelDisks {
		t.Run(d.name, func(t *testing.T) {
			env := blocktest.NewEnv(t)
			r := newRig(t, env, Config{}, Export{Child: d.open(t, env)})
			var cs []*wire.Client
			for i := range 4 {
				cs = append(cs, r.dial(modes[i%3].cfg, wire.ClientOptions{}))
			}
			b := make([]byte, 70000)
			for i := range 40 {
				p := pattern(len(b), byte(i))
				if err := cs[i%4].Pwrite(p, uint64(i*513), 0); err != nil {
					t.Fatal(err)
				}
				if err := cs[(i+1)%4].Pread(b, uint64(i*513), 0); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(b, p) {
					t.Fatalf("round %d: another client sees other bytes", i)
				}
			}
		})
	}
}
