package virtio

import "testing"

// TestNoAllocation runs requests through all kinds of rings: pop, parse, push
// and publish, and the driver's side, allocate nothing.
func TestNoAllocation(t *testing.T) {
	eachKind(t, func(t *testing.T, features uint64) {
		for _, indirect := range []bool{false, true} {
			l := newLoop(t, features, 256, indirect)
			if n := testing.AllocsPerRun(100, func() {
				l.offer(t)
				l.ring.Disarm()
				l.serve(t)
				l.ring.Arm()
				l.reap(t)
			}); n != 0 {
				t.Errorf("indirect %v: %v allocations for 32 requests", indirect, n)
			}
		}
	})
}

// TestNoAllocationWithRecords is the same for a ring with in-flight records and
// a dirty log.
func TestNoAllocationWithRecords(t *testing.T) {
	eachKind(t, func(t *testing.T, features uint64) {
		l := newLoop(t, features, 256, false)
		f, err := NewInflight(make([]byte, InflightSize(256, l.l.packed())), 256, l.l.packed())
		if err != nil {
			t.Fatal(err)
		}
		log, err := NewLog(make([]byte, 64))
		if err != nil {
			t.Fatal(err)
		}
		l.startDevice(t, Options{Base: StartBase(features), Inflight: f})
		l.ring.SetLog(log, guestBase, guestBase)
		if n := testing.AllocsPerRun(100, func() {
			l.offer(t)
			l.serve(t)
			for i := range l.rq {
				log.MarkVector(l.m, l.rq[i].Data)
			}
			l.reap(t)
		}); n != 0 {
			t.Errorf("%v allocations for 32 requests", n)
		}
	})
}

// TestNoAllocationOnFaults: a driver that breaks rules for a living does not
// make garbage.
func TestNoAllocationOnFaults(t *testing.T) {
	g := newGuest(8, 0).start(t)
	g.raw(0, 0, 1, descNext, 1)
	g.raw(1, here, 1, descWrite, 0)
	var c Chain
	if n := testing.AllocsPerRun(100, func() {
		g.offer(0)
		if ok, err := g.ring.Pop(&c); !ok || err == nil {
			t.Fatal(ok, err)
		}
		g.fail(&c)
		g.ring.Publish()
	}); n != 0 {
		t.Errorf("%v allocations for a broken chain", n)
	}
}

// TestNoAllocationOfBlockRequests is for those that the rings' test has not.
func TestNoAllocationOfBlockRequests(t *testing.T) {
	out := append(header(BlkWriteZeroes, 0), ranges(0, 1, 1, 5, 6, 0)...)
	in := make([]byte, 21)
	var rq BlkRequest
	var c Chain
	fill := func(op BlkOp) {
		out[0] = byte(op)
		c.Out, c.In = append(c.Out[:0], out[:7], out[7:]), append(c.In[:0], in)
		c.OutBytes, c.InBytes = uint64(len(out)), uint64(len(in))
	}
	for _, op := range []BlkOp{BlkIn, BlkOut, BlkFlush, BlkGetID, BlkGetLifetime, BlkDiscard, BlkWriteZeroes, 77} {
		if n := testing.AllocsPerRun(100, func() {
			fill(op)
			testDisk.Parse(&c, &rq)
			if op == BlkGetID {
				rq.CopyID("serial")
			}
			rq.complete(in[20:], rq.Status)
		}); n != 0 {
			t.Errorf("%v: %v allocations", op, n)
		}
	}
}
