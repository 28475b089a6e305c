package virtio

import (
	"encoding/binary"
	"testing"
)

// BenchmarkRequest is what the rings cost a request, without the request: pop,
// parse, push and publish of the device, at 32 in flight. The driver's side is
// in it, too, except for "device", which puts the driver's work back in place
// instead of doing it.
func BenchmarkRequest(b *testing.B) {
	for _, k := range kinds {
		for _, indirect := range []bool{false, true} {
			name := k.name + ",direct"
			if indirect {
				name = k.name + ",indirect"
			}
			b.Run("both,"+name, func(b *testing.B) {
				l := newLoop(b, k.features|FeatureVersion1|FeatureIndirectDesc, 256, indirect)
				b.ReportAllocs()
				for n := 0; n < b.N; n += 32 {
					l.offer(b)
					l.serve(b)
					l.reap(b)
				}
			})
			b.Run("device,"+name, func(b *testing.B) { benchDevice(b, k.features, indirect) })
		}
	}
}

// BenchmarkRecords is BenchmarkRequest for a ring that keeps in-flight records.
func BenchmarkRecords(b *testing.B) {
	for _, k := range kinds {
		b.Run(k.name, func(b *testing.B) {
			l := newLoop(b, k.features|FeatureVersion1|FeatureIndirectDesc, 256, false)
			packed := l.l.packed()
			f, err := NewInflight(make([]byte, InflightSize(256, packed)), 256, packed)
			if err != nil {
				b.Fatal(err)
			}
			l.startDevice(b, Options{Base: StartBase(l.l.Features), Inflight: f})
			b.ReportAllocs()
			b.ResetTimer()
			for n := 0; n < b.N; n += 32 {
				l.offer(b)
				l.serve(b)
				l.reap(b)
			}
		})
	}
}

// benchDevice times the device alone. The driver works while the clock stands,
// so it does much at a time.
func benchDevice(b *testing.B, features uint64, indirect bool) {
	l := newLoop(b, features|FeatureVersion1|FeatureIndirectDesc, 256, indirect)
	l.offer(b)
	l.serve(b)
	l.reap(b)
	// A ring as it is while 32 requests are on offer at its beginning; the
	// device begins anew each time.
	g := newGuest(256, features|FeatureVersion1|FeatureIndirectDesc)
	l = newLoopOn(b, g, indirect)
	l.offer(b)
	saved := append([]byte(nil), g.l.Desc[:96*descSize]...)
	start := *g.ring
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n += 32 {
		again := g.ring
		used := again.fifo
		*again = start
		again.fifo = used
		if again.packed {
			copy(g.l.Desc, saved)
		}
		l.serve(b)
	}
}

// loop is 32 requests of 4096 bytes, in three descriptors or one with a table.
type loop struct {
	*guest
	disk     BlkDisk
	chain    Chain
	rq       [32]BlkRequest
	done     [32]Handle
	status   [32][]byte
	out, in  [32][]Seg
	indirect bool
	calls    int
}

func newLoop(tb testing.TB, features uint64, size uint16, indirect bool) *loop {
	return newLoopOn(tb, newGuest(size, features), indirect)
}

func newLoopOn(tb testing.TB, g *guest, indirect bool) *loop {
	g.start(tb)
	l := &loop{guest: g, indirect: indirect, disk: BlkDisk{Capacity: 1 << 30}}
	l.chain.Out, l.chain.In = make([][]byte, 0, 128), make([][]byte, 0, 128)
	for i := range l.out {
		gpa := uint64(guestBase + guestData + i*0x2000)
		l.out[i] = segs(gpa, 16)
		l.in[i] = []Seg{{gpa + 0x1000, 4096}, {gpa + 16, 1}}
		binary.LittleEndian.PutUint64(g.at(gpa+8), uint64(i*8))
	}
	return l
}

func (l *loop) offer(tb testing.TB) {
	for i := range l.out {
		if _, ok := l.driver.Add(l.out[i], l.in[i], l.indirect); !ok {
			tb.Fatal("the ring is full")
		}
	}
	l.driver.Kick()
}

func (l *loop) serve(tb testing.TB) {
	n := 0
	for {
		ok, err := l.ring.Pop(&l.chain)
		if err != nil {
			tb.Fatal(err)
		}
		if !ok {
			break
		}
		rq := &l.rq[n]
		l.status[n] = l.chain.StatusByte()
		if !l.disk.Parse(&l.chain, rq) || rq.Status != BlkOK {
			tb.Fatal(rq.Why)
		}
		l.done[n] = l.chain.Handle
		n++
	}
	for i := range n {
		l.ring.Push(l.done[i], l.rq[i].complete(l.status[i], BlkOK))
	}
	if l.ring.Publish() {
		l.calls++
	}
	if n != len(l.rq) {
		tb.Fatalf("%d requests were served", n)
	}
}

func (l *loop) reap(tb testing.TB) {
	for n := range l.rq {
		_, written, ok, err := l.driver.Next()
		if err != nil || !ok || written != 4097 {
			tb.Fatal(n, written, ok, err)
		}
	}
	l.driver.Arm()
}
