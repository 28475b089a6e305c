package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/platter-storage/platter/bench/content"
	"github.com/platter-storage/platter/bench/process"
	"github.com/platter-storage/platter/bench/sample"
	"github.com/platter-storage/platter/wire/nbd"
)

// workload is what a client asks of a server.
type workload struct {
	write  bool
	random bool // otherwise in order, from the start again at the end
	block  int  // bytes a request
	depth  int  // requests in flight, each connection
	conns  int
	pinned bool // client and server share one processor
}

// readBuffer is how much a connection takes in at once. It stays in the cache:
// payloads are looked at or dropped in place.
const readBuffer = 256 << 10

// dialTimeout is how long a connection and its handshake may take.
const dialTimeout = 10 * time.Second

// loader drives one connection from one thread, with as little work a request
// as it can: client and server share the processors. It waits in the kernel,
// as clients in C do: the runtime's poller would add wake-ups of its own, which
// at depth 1 cost more than any server.
type loader struct {
	conn *blocking
	w    workload
	size int64
	disk content.Content // nil: any bytes are written, and those read are not looked at
	rng  *rand.PCG
	next int64

	slots   []slot
	heads   []byte // of the batch to send
	payload []byte // what every write sends, if disk is nil
	pieces  [][]byte
	pending int // slots in the batch to send
	flying  int

	in   []byte
	have int
	rest int    // of a read's payload that has not come yet
	from int    // the slot it is for
	want []byte // what to compare with

	lat  sample.Latency
	done int64
}

// slot is a request that is in flight or about to be.
type slot struct {
	off  int64
	sent time.Time
	data []byte // of its write, unless the disk's content is nil
}

// dial connects to a server and does the handshake, without chunks
// and extensions: every server is to answer with simple replies.
func dial(s *server, w workload, seed uint64, disk content.Content) (*loader, error) {
	conn, err := net.DialTimeout("unix", s.Socket, dialTimeout)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(dialTimeout)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	session, err := nbd.ClientHandshake(conn, nbd.ClientConfig{Export: s.export})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("handshake with %s: %w", s.Name, err), conn.Close())
	}
	wait, err := toBlocking(conn.(*net.UnixConn))
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	l := &loader{
		conn: wait, w: w, size: int64(session.Export.Size), disk: disk,
		rng:     rand.NewPCG(seed, 1),
		slots:   make([]slot, w.depth),
		heads:   make([]byte, 0, w.depth*nbd.RequestLen),
		pieces:  make([][]byte, 0, 2*w.depth),
		payload: make([]byte, w.block),
		in:      make([]byte, readBuffer),
		want:    make([]byte, readBuffer),
	}
	content.Pattern(7)(l.payload, 0)
	if disk != nil && w.write {
		for i := range l.slots {
			l.slots[i].data = make([]byte, w.block)
		}
	}
	if l.size < int64(w.block) {
		return nil, errors.Join(fmt.Errorf("%s: the disk has %d bytes, fewer than one request of %d", s.Name, l.size, w.block), wait.Close())
	}
	return l, nil
}

// run keeps depth requests in flight until the time is over or total requests
// have been sent (0: no such limit), and then takes in what is left.
func (l *loader) run(until time.Time, total int64) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if l.w.pinned {
		undo, err := process.PinThread()
		if err != nil {
			return err
		}
		defer undo()
	}
	sent := int64(0)
	more := func(now time.Time) bool { return now.Before(until) && (total == 0 || sent < total) }
	now := time.Now()
	for i := range l.slots {
		if more(now) {
			l.queue(i, now)
			sent++
		}
	}
	for l.flying+l.pending > 0 {
		if err := l.send(); err != nil {
			return err
		}
		n, err := l.conn.Read(l.in[l.have:])
		if err != nil {
			return fmt.Errorf("with %d requests in flight: %w", l.flying, err)
		}
		l.have += n
		now = time.Now()
		err = l.replies(func(i int) {
			l.lat.Add(now.Sub(l.slots[i].sent))
			l.done++
			if more(now) {
				l.queue(i, now)
				sent++
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// queue adds slot i's next request to the batch.
func (l *loader) queue(i int, now time.Time) {
	s := &l.slots[i]
	s.off, s.sent = l.place(), now
	rq := nbd.Request{Type: nbd.CmdRead, Cookie: uint64(i), Offset: uint64(s.off), Length: uint64(l.w.block)}
	if l.w.write {
		rq.Type = nbd.CmdWrite
	}
	at := len(l.heads)
	l.heads = l.heads[:at+nbd.RequestLen]
	nbd.PutRequest(l.heads[at:], &rq, false)
	if l.w.write {
		data := l.payload
		if l.disk != nil {
			data = s.data
			l.disk(data, s.off)
		}
		l.pieces = append(l.pieces, l.heads[at:], data)
	}
	l.pending++
}

// place is where the next request goes: a multiple of its length.
func (l *loader) place() int64 {
	blocks := l.size / int64(l.w.block)
	if l.w.random {
		return int64(l.rng.Uint64()%uint64(blocks)) * int64(l.w.block)
	}
	at := l.next % blocks
	l.next++
	return at * int64(l.w.block)
}

func (l *loader) send() error {
	if l.pending == 0 {
		return nil
	}
	var err error
	if l.w.write {
		err = l.conn.writev(l.pieces)
		l.pieces = l.pieces[:0]
	} else {
		_, err = l.conn.Write(l.heads)
	}
	if err != nil {
		return fmt.Errorf("sending %d requests: %w", l.pending, err)
	}
	l.heads = l.heads[:0]
	l.flying += l.pending
	l.pending = 0
	return nil
}

// replies takes what has come in and calls finished for each slot whose reply
// is complete.
func (l *loader) replies(finished func(slot int)) error {
	b := l.in[:l.have]
	for len(b) > 0 {
		if l.rest > 0 {
			n := min(l.rest, len(b))
			if err := l.check(b[:n]); err != nil {
				return err
			}
			l.rest -= n
			b = b[n:]
			if l.rest == 0 {
				l.finish(finished)
			}
			continue
		}
		reply, n, err := nbd.ParseReply(b, false)
		if errors.Is(err, nbd.ErrShort) {
			break
		}
		if err := l.accept(&reply, err); err != nil {
			return err
		}
		b = b[n:]
		if l.w.write {
			l.finish(finished)
		} else {
			l.rest = l.w.block
		}
	}
	l.have = copy(l.in, b)
	return nil
}

// accept checks a reply's header and makes its slot the current one.
func (l *loader) accept(reply *nbd.Reply, err error) error {
	switch {
	case err != nil:
		return err
	case !reply.Simple:
		return fmt.Errorf("a chunk of type %s came: simple replies were negotiated", reply.Type)
	case reply.Cookie >= uint64(len(l.slots)):
		return fmt.Errorf("reply to request %d: %d are in flight", reply.Cookie, l.flying)
	}
	l.from = int(reply.Cookie)
	if reply.Errno != 0 {
		return fmt.Errorf("request of %d bytes at %d failed: %w", l.w.block, l.slots[l.from].off, reply.Errno)
	}
	return nil
}

func (l *loader) finish(finished func(slot int)) {
	l.flying--
	finished(l.from)
}

// check compares a part of the current read's payload with the disk's content.
func (l *loader) check(part []byte) error {
	if l.disk == nil {
		return nil
	}
	at := l.slots[l.from].off + int64(l.w.block-l.rest)
	want := l.want[:len(part)]
	l.disk(want, at)
	if !bytes.Equal(part, want) {
		for i := range part {
			if part[i] != want[i] {
				return fmt.Errorf("read at %d: the byte at %d is %#x, want %#x", l.slots[l.from].off, at+int64(i), part[i], want[i])
			}
		}
	}
	return nil
}

// leave ends the session as a client should.
func (l *loader) leave() error {
	var head [nbd.RequestLen]byte
	nbd.PutRequest(head[:], &nbd.Request{Type: nbd.CmdDisc}, false)
	_, err := l.conn.Write(head[:])
	return errors.Join(err, l.conn.Close())
}

// load is one run of a workload.
type load struct {
	ops  int64
	took time.Duration
	lat  sample.Latency
}

// fleet is the connections of one run.
type fleet []*loader

func dialAll(s *server, w workload, disk content.Content) (fleet, error) {
	var f fleet
	for i := range w.conns {
		l, err := dial(s, w, uint64(i)+1, disk)
		if err != nil {
			return nil, errors.Join(err, f.leave())
		}
		f = append(f, l)
	}
	return f, nil
}

// run drives every connection for d, or for total requests each.
func (f fleet) run(d time.Duration, total int64) (load, error) {
	start := time.Now()
	errs := make([]error, len(f))
	var wg sync.WaitGroup
	for i, l := range f {
		wg.Go(func() { errs[i] = l.run(start.Add(d), total) })
	}
	wg.Wait()
	out := load{took: time.Since(start)}
	for _, l := range f {
		out.ops += l.done
		out.lat.Merge(&l.lat)
	}
	return out, errors.Join(errs...)
}

func (f fleet) leave() error {
	var errs []error
	for _, l := range f {
		errs = append(errs, l.leave())
	}
	return errors.Join(errs...)
}
