package blocktest

import (
	"syscall"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/rawio"
)

// Map is the emulator's fast lane: every request lies in its file.
func (e *Emulator) Map(_ *block.Req, _ block.Op, off int64, _ block.Vec, _ block.Flags) (block.Mapping, bool) {
	e.inFlight.Add(1)
	return block.Mapping{Kind: block.MapFile, Leaf: leaf{e}, Off: off, Cookie: uint64(off)}, true
}

// Done ends a mapped request.
func (e *Emulator) Done(block.Op, uint64, error) { e.end() }

// leaf is the emulator's file.
type leaf struct{ e *Emulator }

// Submit runs each request on a goroutine.
func (l leaf) Submit(ios []*rawio.IO) {
	for _, io := range ios {
		go l.run(io)
	}
}

func (l leaf) run(io *rawio.IO) {
	r := request{block.OpRead, io.Off, block.Vec(io.Vec).Len(), io.Vec, 0}
	move := l.e.load
	if io.Kind == rawio.Write {
		r.op, move = block.OpWrite, l.e.store
	}
	if io.Sync {
		r.fl = block.FUA
	}
	f, err := l.e.begin(r)
	l.e.end()
	io.N, io.Err = int(r.n), nil
	switch {
	case err != nil:
		io.N, io.Err = 0, syscall.EINVAL
	case f == nil:
		move(r)
	default:
		l.struck(io, r, f, move)
	}
	io.Done(io)
}

// struck runs a request that a fault strikes.
func (l leaf) struck(io *rawio.IO, r request, f *Fault, move func(request)) {
	if f.stall != nil {
		f.stall.hold()
	}
	if f.DelayNs != 0 {
		wait := make(chan struct{})
		timer(f.DelayNs, func() { close(wait) })
		<-wait
	}
	if f.Err == nil && f.Torn == 0 {
		move(r)
		return
	}
	io.N, io.Err = 0, f.Err
	if f.Torn > 0 {
		io.N = int(min(f.Torn, r.n))
		move(r.head(int64(io.N)))
	}
}
