package block

import (
	"errors"
	"syscall"
)

// Map asks where the whole request lies, for an export that then moves the
// bytes itself. It declines whatever needs more than moving them: then the
// request goes through Preadv or Pwritev. A request that Map answered is in
// flight at every node on its way until Finish, which must follow.
//
// Map neither waits nor allocates. rq must be fresh from Begin, or from a
// Map that declined.
func (c *Child) Map(rq *Req, op Op, off int64, v Vec, fl Flags) (Mapping, bool) {
	if c.mapper == nil || !c.mappable(op, off, v, fl) {
		return Mapping{}, false
	}
	n := v.Len()
	ch := c.lineChoose(rq, op, v, n)
	if ch.linear {
		rq.choice = ch // copying is for the slow lane
		return Mapping{}, false
	}
	f := rq.push()
	if c.in.track.tryEnter(f, off, off+n) {
		// The size again: it may have shrunk before the entry was there.
		if off <= c.info.Size()-n {
			if m, ok := c.mapper.Map(rq, op, off, v, fl); ok {
				f.child, f.op, f.fl, f.cookie, f.choice = c, op, fl, m.Cookie, ch
				return m, true
			}
		}
		c.in.track.leave(f)
	}
	rq.pop()
	return Mapping{}, false
}

// mappable reports whether the request could be handed to the node as it
// stands, in one piece, with nothing to do before or after.
func (c *Child) mappable(op Op, off int64, v Vec, fl Flags) bool {
	l, size, n := c.info.Limits(), c.info.Size(), v.Len()
	align, perm, flags := l.ReadAlign, PermRead, Flags(0)
	if op == OpWrite {
		align, perm, flags = l.WriteAlign, PermWrite, c.info.WriteFlags&FUA
	} else if op != OpRead {
		return false
	}
	switch {
	case n == 0 || n > MaxRequest || off < 0 || off > size-n:
		return false // the slow lane has the error
	case perm&^c.perm != 0 || op == OpWrite && c.info.ReadOnly:
		return false
	case fl&^flags != 0 || fl&FUA != 0 && c.in.flushLost.Load():
		return false
	case (off|n)&int64(align-1) != 0:
		return false
	case l.misfit(v, off+n, size) != 0 || !l.fitsOnce(v, n):
		return false
	}
	return c.in.env.FastLane == nil || c.in.env.FastLane()
}

// Finish ends a mapped request: n bytes were moved, or err says why not. The
// nodes hear of it, innermost first. Where again is true the result was not
// final (short, or refused for a reason that the slow lane can mend): the
// caller goes on with Preadv or Pwritev for the whole request, with the same
// rq, and on a goroutine that may wait.
func (c *Child) Finish(rq *Req, want, n int64, err error) (result error, again bool) {
	again = err == nil && n != want || err != nil && mendable(err)
	if inner := rq.frames[rq.depth-1]; err != nil && inner.op == OpWrite && inner.fl&FUA != 0 {
		// A repetition that succeeds would hide what the failure reported.
		again = again && Errno(err) != syscall.EIO
		inner.child.in.durableFailed(err)
	}
	if err == nil && again {
		err = syscall.EAGAIN // the nodes must not take it for done
	}
	off, op := int64(0), OpRead
	for rq.depth > 0 {
		f := rq.frames[rq.depth-1]
		f.child.mapper.Done(f.op, f.cookie, err)
		f.child.lineLearn(&f.choice, want, err)
		off, op = f.off, f.op
		f.child.in.track.leave(f)
		rq.pop()
	}
	switch {
	case again:
		rq.Took(PathShort)
		return nil, true
	case err != nil:
		return c.fail(rq, op, off, want, err), false
	}
	rq.Took(PathFast | PathDirect)
	return nil, false
}

// mendable reports whether the slow lane can do better than this error: by
// waiting, or by asking anew what the storage's limits are. A device whose
// sector size changes answers what is in flight with EIO, not EINVAL; a disk
// that fails fails once more there, and that error stands.
func mendable(err error) bool {
	return errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EINTR) || errors.Is(err, syscall.EIO)
}
