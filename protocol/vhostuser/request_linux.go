package vhostuser

import (
	"encoding/binary"
	"runtime/debug"
	"syscall"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/rawio"
	"github.com/platter-storage/platter/virtio"
)

// Causes of failed requests.
var (
	errIO          = block.Errorf(syscall.EIO, "the server reports that its storage failed; its log says more")
	errUnsupported = block.Errorf(syscall.ENOTSUP, "the server does not do this")
	errNoStatus    = block.Errorf(syscall.EIO, "the server gave the request back without a status")
	errFault       = block.Errorf(syscall.EFAULT, "memory of the request is gone")
	errShort       = block.Errorf(syscall.EIO, "the server calls a read done of which it wrote a part")
)

// noStatus is in a request's place until the server says what became of it.
const noStatus = 0xff

// request is one on its way. It is made once and used again; vec is the
// caller's, and stays with him, until done.
//
// Its life: submit finds it a place and chunks, or lets it wait for them; fill
// copies what it writes; launch shows it to the server; reap hears that the
// server is done; drain copies what it has read, and gives place and chunks on.
// If the connection is lost it is filled and launched anew on the next.
type request struct {
	next *request // in a list
	op   virtio.BlkOp
	off  int64
	n    int64
	vec  block.Vec // of a read or write
	fl   uint32    // of a range (5.2.6)

	seq    uint64   // order in which it got its place
	count  int      // descriptors of the ring
	place  uint16   //
	chunks []uint16 // it keeps its capacity
	err    error

	io   *block.IO     // of the fast lane, else
	done chan struct{} // which has room for one
}

// requests is a list, first in first out.
type requests struct{ first, last *request }

func (l *requests) push(r *request) {
	r.next = nil
	if l.first == nil {
		l.first = r
	} else {
		l.last.next = r
	}
	l.last = r
}

func (l *requests) pop() *request {
	r := l.first
	if r != nil {
		l.first, r.next = r.next, nil
	}
	return r
}

// get is a request that nobody uses.
func (n *node) get() *request {
	n.spareMu.Lock()
	r := n.spare.pop()
	n.spareMu.Unlock()
	if r == nil {
		r = &request{done: make(chan struct{}, 1)}
	}
	return r
}

func (n *node) put(r *request) {
	r.vec, r.io = nil, nil
	n.spareMu.Lock()
	n.spare.push(r)
	n.spareMu.Unlock()
}

// do runs a request and waits for its end.
func (n *node) do(op virtio.BlkOp, off, length int64, v block.Vec, fl uint32) error {
	r := n.get()
	r.op, r.off, r.n, r.vec, r.fl, r.err = op, off, length, v, fl, nil
	q := n.queue()
	q.submit(r)
	if n.cfg.pollNs == 0 {
		<-r.done
	} else {
		q.await(r)
	}
	q.finish(r)
	err := r.err
	n.put(r)
	return err
}

// leaf is the fast lane's way to the server.
type leaf struct{ n *node }

// Submit sends a batch to one queue, and tells the server once.
func (l *leaf) Submit(ios []*block.IO) {
	q := l.n.queue()
	var batch requests
	for _, io := range ios {
		r := l.n.get()
		r.op, r.off, r.vec, r.fl, r.err, r.io = virtio.BlkIn, io.Off, io.Vec, 0, nil, io
		if io.Kind == rawio.Write {
			r.op = virtio.BlkOut
		}
		r.n = r.vec.Len()
		batch.push(r)
	}
	q.submitAll(batch)
}

// end tells the submitter of a request of the fast lane.
func (n *node) end(r *request) {
	io := r.io
	io.N, io.Err = int(r.n), nil
	if r.err != nil {
		io.N, io.Err = 0, block.Errno(r.err)
	}
	n.put(r)
	io.Done(io)
}

// moves reports whether the request carries data.
func (r *request) moves() bool { return r.op == virtio.BlkIn || r.op == virtio.BlkOut }

// fill writes the request into its place, and its data into its chunks.
// (5.2.6)
func (r *request) fill(q *queue) {
	p := q.place(r.place)
	binary.LittleEndian.PutUint32(p, uint32(r.op))
	binary.LittleEndian.PutUint32(p[4:], 0)
	sector := uint64(0)
	if r.moves() {
		sector = uint64(r.off) / virtio.SectorSize
	}
	binary.LittleEndian.PutUint64(p[8:], sector)
	p[statusAt] = noStatus
	switch r.op {
	case virtio.BlkOut:
		r.err = r.copy(q)
	case virtio.BlkDiscard, virtio.BlkWriteZeroes:
		binary.LittleEndian.PutUint64(p[rangeAt:], uint64(r.off)/virtio.SectorSize)
		binary.LittleEndian.PutUint32(p[rangeAt+8:], uint32(r.n/virtio.SectorSize))
		binary.LittleEndian.PutUint32(p[rangeAt+12:], r.fl)
	}
}

// copy moves data between the caller's memory and the chunks. The caller's may
// be a guest's that is gone: then touching it is a fault, and an error here.
func (r *request) copy(q *queue) (err error) {
	defer recoverFault(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for i, c := range r.chunks {
		at := int64(i) * int64(q.unit)
		b := q.chunk(c)[:min(r.n-at, int64(q.unit))]
		if r.op == virtio.BlkOut {
			r.vec.CopyOut(b, at)
		} else {
			r.vec.CopyIn(b, at)
		}
	}
	return nil
}

// recoverFault turns a fault into an error. Anything else goes on.
func recoverFault(err *error) {
	switch x := recover().(type) {
	case nil:
	case interface{ Addr() uintptr }: // runtime.Error of SetPanicOnFault
		*err = errFault
	default:
		panic(x)
	}
}

// judge reads what became of the request: written is how many bytes the server
// says it wrote, one of which is the status.
func (r *request) judge(status byte, written uint32) {
	switch {
	case status == virtio.BlkOK && r.op == virtio.BlkIn && int64(written) < r.n+1:
		r.err = errShort
	case status == virtio.BlkOK:
		r.err = nil
	case status == virtio.BlkUnsupported:
		r.err = errUnsupported
	case status == noStatus:
		r.err = errNoStatus
	default:
		r.err = errIO
	}
}
