package file

import (
	"sync/atomic"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// spaceState remembers what the file system or device turned out not to have.
type spaceState struct {
	noZeroRange, noPunch, noDiscard atomic.Bool
	// slowZero: the kernel would write zeroes to this device itself.
	slowZero bool
}

// WriteZeroes makes a range read as zeroes, without writing them. It never
// makes the file longer.
func (n *node) WriteZeroes(rq *block.Req, off, length int64, fl block.Flags) error {
	err := n.zero(rq, off, length, fl)
	n.status.changed(off, off+length)
	if isMisaligned(err) {
		err = n.refusedRange(off, length, func(l *block.Limits) uint32 { return l.ZeroAlign })
	}
	if err == nil && n.durable(fl) {
		return n.Flush(rq)
	}
	return err
}

func (n *node) zero(rq *block.Req, off, length int64, fl block.Flags) error {
	s := &n.space
	if fl&block.MayUnmap != 0 && n.cfg.discard {
		err := n.attempt(rq, &s.noPunch, func() error { return n.sys.punch(off, length) })
		if !block.IsNotSupported(err) {
			return err
		}
	}
	if fl&block.NoFallback != 0 && s.slowZero {
		return block.ErrNotSupported
	}
	return n.attempt(rq, &s.noZeroRange, func() error { return n.sys.zeroRange(off, length) })
}

// Discard gives the space of a range back. On a file it then reads as zeroes.
func (n *node) Discard(rq *block.Req, off, length int64) error {
	if !n.cfg.discard {
		return nil
	}
	err := n.attempt(rq, &n.space.noDiscard, func() error { return n.sys.discard(off, length) })
	n.status.changed(off, off+length)
	if isMisaligned(err) {
		err = n.refusedRange(off, length, func(l *block.Limits) uint32 { return l.DiscardAlign })
	}
	return err
}

// attempt makes a call unless it is known not to be there, and remembers if it
// turns out so.
func (n *node) attempt(rq *block.Req, missing *atomic.Bool, call func() error) error {
	if missing.Load() {
		return block.ErrNotSupported
	}
	r := retry{rq: rq}
	for {
		err := notThere(call())
		switch {
		case block.IsNotSupported(err):
			missing.Store(true)
			return err
		case err == syscall.EPERM:
			// The profiles of containers forbid the call so, and files that
			// are immutable or append-only: there the write that follows
			// fails as well. Not remembered: the latter passes.
			return block.ErrNotSupported
		case err == nil || !r.again(err):
			return err
		}
	}
}

// notThere turns the several errnos for "no such operation" into one.
func notThere(err error) error {
	switch err {
	case syscall.ENOSYS, syscall.EOPNOTSUPP, syscall.ENOTTY, syscall.ENODEV:
		return block.ErrNotSupported
	}
	return err
}
