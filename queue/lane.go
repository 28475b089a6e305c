package queue

import (
	"fmt"
	"slices"
	"syscall"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/engine"
	"github.com/platter-storage/platter/internal/rawio"
	"github.com/platter-storage/platter/internal/sys"
)

// The fast lane: what the node can map goes to the engine, or is copied, on
// the loop's own thread.

// laneOf says who has a request.
const (
	laneLoop   = iota // the loop, or its engine
	laneWorker        // a worker, or the done list behind it
	laneLeaf          // an engine shared with others, or the done list behind it
)

// maxInPlace is the longest range that is zeroed or discarded on the loop's
// own thread, on a disk that never waits.
const maxInPlace = 1 << 20

// longCopy is the length of a copy after which the clock is read again.
const longCopy = 16 << 10

// transfer begins a read or write.
func (q *Queue) transfer(i int, s *slot) {
	r := &q.table.refs[i]
	v := q.table.vec(i)
	m, ok := q.child.Map(r.rq, block.Op(s.op), s.off, v, block.Flags(s.fl))
	switch {
	case !ok:
		q.slow(i, s)
	case m.Kind == block.MapFile:
		q.toFile(i, s, m, v)
	default:
		q.inMemory(i, s, m, v)
	}
}

// toFile adds a request to those of the batch that go down together.
func (q *Queue) toFile(i int, s *slot, m block.Mapping, v block.Vec) {
	if q.leaf != m.Leaf {
		q.follow(m.Leaf)
	}
	io := &q.table.refs[i].io
	io.Kind, io.Sync = rawio.Read, false
	if block.Op(s.op) == block.OpWrite {
		io.Kind, io.Sync = rawio.Write, s.fl&uint32(block.FUA) != 0
	}
	io.Off, io.Vec = m.Off, v
	if q.file != nil {
		io.Done, io.Sync = q.ioDone, io.Sync && q.sync
		if !q.eng.Prep(io, q.file) { // there is room for all slots; were there none, nothing is lost
			q.finishMapped(i, s, 0, syscall.EAGAIN)
		}
		return
	}
	s.lane = laneLeaf
	q.away++
	io.Done = q.leafIO
	q.gather = append(q.gather, io)
	q.counts.shared.Add(1)
}

// fileDone ends a request to the file. It runs within Reap.
func (q *Queue) fileDone(io *rawio.IO) {
	i := int(io.Owner)
	s := q.table.at(i)
	if io.Err == nil {
		q.poll.took(q.clock() - s.start)
	}
	q.finishMapped(i, s, int64(io.N), io.Err)
}

// leafDone hears of a request through an engine shared with others, on that
// engine's goroutine.
func (q *Queue) leafDone(io *rawio.IO) {
	q.done.add(int(io.Owner))
	q.wake()
}

// finishMapped ends a mapped request, or sends it the slow way if the result
// is not final.
func (q *Queue) finishMapped(i int, s *slot, n int64, err error) {
	r := &q.table.refs[i]
	err, again := q.child.Finish(r.rq, s.n, n, err)
	if again {
		q.toWorker(i, s)
		return
	}
	q.end(i, s, err)
}

// inMemory serves a request whose bytes are in memory, or nowhere.
func (q *Queue) inMemory(i int, s *slot, m block.Mapping, v block.Vec) {
	q.inPlace++
	n, err := s.n, copyMapped(block.Op(s.op), s.n, m, v)
	if n >= longCopy {
		q.at = 0 // that took its time
	}
	if err != nil {
		n = 0
		q.counts.faults.Add(1)
	}
	q.finishMapped(i, s, n, err)
}

// copyMapped moves the bytes. Guest memory that is gone is an error.
func copyMapped(op block.Op, n int64, m block.Mapping, v block.Vec) (err error) {
	defer recoverFault(&err)
	switch {
	case m.Kind == block.MapZero && op == block.OpRead:
		v.Zero(0, n)
	case m.Kind == block.MapZero:
	case op == block.OpRead:
		v.CopyIn(m.Mem, 0)
	default:
		v.CopyOut(m.Mem, 0)
	}
	return nil
}

// slow sends a request through the blocking methods: on the loop's own thread
// where the disk never waits and nothing of ours is in flight that the request
// could come to wait for, else to a worker.
func (q *Queue) slow(i int, s *slot) {
	if !q.child.Info().Inline || s.n > maxInPlace || q.eng.InFlight() > 0 || q.away > 0 {
		q.toWorker(i, s)
		return
	}
	q.inPlace++
	err := q.perform(i)
	q.at = 0
	q.end(i, s, err)
}

func (q *Queue) toWorker(i int, s *slot) {
	s.lane = laneWorker
	q.work.push(i)
}

// Reasons that do not depend on the queue. They are here because a disk with
// several leaves goes to and fro between them with each request, and nothing is
// allocated for one.
var (
	reasonQueue  = "requests go through the storage's own queue"
	reasonEngine = "requests go through the storage's own engine, which makes every write durable"
)

// follow makes leaf the place where mapped requests go. If it has a file that
// the queue's own engine can reach, that is what they go through. The first
// such file decides what engine that is; files that want another are reached
// through their leaf.
func (q *Queue) follow(leaf block.Leaf) {
	if len(q.gather) > 0 {
		q.submit() // what was gathered is for another
	}
	q.leaf, q.file = leaf, nil
	own, ok := leaf.(interface {
		EngineFile() *engine.File
		EngineKind() engine.Kind
		EngineSync() bool
	})
	if !ok {
		q.reason.Store(&reasonQueue)
		return
	}
	f, kind := own.EngineFile(), own.EngineKind()
	if f == nil {
		q.reason.Store(&reasonEngine)
		return
	}
	if !q.chosen {
		q.choose(kind)
	}
	if kind != q.kind {
		return
	}
	q.file, q.sync = f, own.EngineSync()
	if !slices.Contains(q.files, f) {
		q.files = append(q.files, f)
	}
}

// choose replaces the engine that the queue began with, to which nothing has
// been given yet, by one of the kind that its storage has chosen.
func (q *Queue) choose(kind engine.Kind) {
	q.chosen = true
	if kind == q.kind {
		q.explain(fmt.Sprintf("%v, as the disk itself; %s", kind, q.eng.Reason()))
		return
	}
	if err := q.open(kind, fmt.Sprintf("%v, as the disk itself", kind)); err != nil {
		q.log.Warn(fmt.Sprintf("%s: no engine of its own: %v; it shares the disk's, which costs more CPU", q.name, err))
		q.explain(fmt.Sprintf("requests go through the engine that the disk's other users share, because there is none of the queue's own: %v", err))
	}
}

// open makes an engine and puts it in the place of the one there is, in which
// nothing is in flight.
func (q *Queue) open(kind engine.Kind, why string) error {
	eng, err := engine.New(kind, engine.Config{Depth: q.table.depth(), Owner: engine.Locked})
	if err != nil {
		return err
	}
	if q.kickFd >= 0 {
		if err := eng.Watch(q.kickFd, kicked); err != nil {
			_ = eng.Close() // it has nothing in flight
			return err
		}
	}
	q.wakeMu.Lock()
	old := q.eng
	q.eng, q.kind = eng, kind
	q.wakeMu.Unlock()
	q.explain(why + "; " + eng.Reason())
	if old == nil {
		return nil
	}
	if err := old.Close(); err != nil { // the new one serves all the same
		q.log.Warn(fmt.Sprintf("%s: the engine that it had before has not closed cleanly: %v", q.name, err))
	}
	return nil
}

// kicked has nothing to do: that the engine's Wait returned is all.
func kicked() {}

func (q *Queue) explain(s string) { q.reason.Store(&s) }

// meetStorage finds out where reads go before the guest's first one, so that
// Reason has something to say and the first request need not wait for an
// engine to be made.
func (q *Queue) meetStorage() {
	bq := block.NewQueue(q.cfg.Env, block.NewQueueGroup()) // counts nowhere
	defer bq.Close()
	n := int64(q.child.Limits().ReadAlign)
	if n > q.child.Size() {
		return
	}
	b, mapping, err := sys.MapAligned(int(n), block.MaxAlign)
	if err != nil {
		return
	}
	defer sys.Unmap(mapping)
	rq := bq.Begin()
	defer bq.End(rq, block.OpRead, 0, nil)
	if m, ok := q.child.Map(rq, block.OpRead, 0, block.Vec{b}, 0); ok {
		if m.Kind == block.MapFile {
			q.follow(m.Leaf)
		}
		_, _ = q.child.Finish(rq, n, n, nil) // nothing was read, and nobody looks
	}
}

// clock is the time, read when it is first asked for and again after whatever
// takes some: a handful of times in a batch, not twice for each request.
func (q *Queue) clock() int64 {
	if q.at == 0 {
		q.at = q.now()
	}
	return q.at
}
