package qcow2

import (
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/race"
)

// filled opens an image whose first MiB is written.
func filled(t testing.TB, vals block.Values) (*bt.Emulator, *node, *block.Child) {
	env := bt.NewEnv(t)
	e, file := newImage(t, env, 8<<20, vals, nil)
	in := bt.Open(t, env, block.Values{"driver": "qcow2"}, map[string]*block.Instance{"file": file})
	c := bt.Edge(t, in)
	if err := bt.NewClient(t, c).Write(0, 0, bt.Pattern(make([]byte, 1<<20), 1)); err != nil {
		t.Fatal(err)
	}
	return e, nodeOf(in), c
}

// nodeOf is the node of an instance.
func nodeOf(in *block.Instance) *node { return in.Info().Abilities.Mapper.(*node) }

// Mapping a request that lies in one piece allocates nothing.
func TestMapAllocatesNothing(t *testing.T) {
	for _, vals := range []block.Values{{}, {"extended_l2": "on"}, {"cluster_size": "4K"}} {
		_, n, _ := filled(t, vals)
		q := block.NewQueue(n.env, block.NewQueueGroup())
		rq := q.Begin()
		v := block.Vec{make([]byte, 4096)}
		if a := testing.AllocsPerRun(1000, func() {
			for _, op := range []block.Op{block.OpRead, block.OpWrite} {
				m, ok := n.mapPinned(rq, op, 8192, v, 0)
				if !ok || m.Kind != block.MapFile {
					t.Fatalf("%v: %+v, %v", vals, m, ok)
				}
				if _, again := n.file.Finish(rq, 4096, 4096, nil); again {
					t.Fatal("it was not final")
				}
			}
		}); a != 0 && !race.Enabled {
			t.Errorf("%v: %v allocations for a read and a write", vals, a)
		}
		q.End(rq, block.OpRead, 0, nil)
	}
}

// What the fast lane answers and what it leaves to the slow one.
func TestMap(t *testing.T) {
	_, n, c := filled(t, block.Values{"cluster_size": "4K"})
	client := bt.NewClient(t, c)
	ask := func(op block.Op, off, length int64, fl block.Flags) (kind block.MapKind) {
		q := block.NewQueue(n.env, block.NewQueueGroup())
		rq := q.Begin()
		defer q.End(rq, op, 0, nil)
		if m, ok := c.Map(rq, op, off, block.Vec{make([]byte, length)}, fl); ok {
			kind = m.Kind
			c.Finish(rq, length, length, nil)
		}
		return kind
	}
	if err := client.Read(4<<20, make([]byte, 512)); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		what     string
		op       block.Op
		off, len int64
		fl       block.Flags
		want     block.MapKind
	}{
		{"a read", block.OpRead, 4096, 8192, 0, block.MapFile},
		{"a write in place", block.OpWrite, 512, 1024, 0, block.MapFile},
		{"a read of nothing", block.OpRead, 4 << 20, 65536, 0, block.MapZero},
		{"a write that allocates", block.OpWrite, 4 << 20, 512, 0, 0},
		{"a durable write whose mapping is not", block.OpWrite, 4096, 512, block.FUA, 0},
		{"half data, half nothing", block.OpRead, 1<<20 - 512, 1024, 0, 0},
	} {
		if got := ask(x.op, x.off, x.len, x.fl); got != x.want {
			t.Errorf("%s: kind %d, want %d", x.what, got, x.want)
		}
	}
	if err := client.Flush(); err != nil {
		t.Fatal(err)
	}
	if got := ask(block.OpWrite, 4096, 512, block.FUA); got != block.MapFile {
		t.Errorf("a durable write whose mapping is durable: kind %d", got)
	}
}

// A cluster that a request in the fast lane has looked up is not given to another
// before that request is done, however many flushes go by.
func TestPinnedClustersAreNotReused(t *testing.T) {
	_, n, c := filled(t, block.Values{"cluster_size": "4K"})
	client := bt.NewClient(t, c)
	// As Map does, but not in flight at the file, which must grow meanwhile.
	pin := n.pins.pin(0)
	held, err := client.Status(0, 4096)
	if err != nil || held.Host < 0 {
		t.Fatalf("%+v, %v", held, err)
	}
	if err := client.Discard(0, 4096); err != nil {
		t.Fatal(err)
	}
	use := func(at int64) (used bool) {
		for i := range int64(4) {
			if err := client.Flush(); err != nil {
				t.Fatal(err)
			}
			if err := client.Write(at+i*4096, 0, make([]byte, 4096)); err != nil {
				t.Fatal(err)
			}
			x, err := client.Status(at+i*4096, 4096)
			if err != nil {
				t.Fatal(err)
			}
			used = used || x.Host == held.Host
		}
		return used
	}
	if use(4 << 20) {
		t.Error("the cluster became another's while a request had it")
	}
	n.Done(block.OpRead, pin, nil)
	if !use(5 << 20) {
		t.Error("the cluster was not used again afterwards")
	}
}

func BenchmarkMap(b *testing.B) {
	for name, vals := range map[string]block.Values{"standard": {}, "extended": {"extended_l2": "on"}} {
		b.Run(name, func(b *testing.B) {
			_, n, _ := filled(b, vals)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				off := int64(i) << 12 & (1<<20 - 1)
				pin := n.pins.pin(off >> n.clusterBits)
				s := n.find(off)
				if r := n.runIn(s, off, 4096); r.kind != stored {
					b.Fatal(r)
				}
				touch(s)
				n.pins.unpin(pin)
			}
		})
	}
}
