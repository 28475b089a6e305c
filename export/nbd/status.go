package nbd

import (
	"math/bits"

	"github.com/platter-storage/platter/block"
	wire "github.com/platter-storage/platter/wire/nbd"
)

const (
	// maxStatusBody bounds one reply to a block status in bytes, and with it
	// the extents; the client asks again from where it ends.
	maxStatusBody = 64 << 10
	// maxStatusCalls bounds how often the disk is asked for one reply.
	maxStatusCalls = 16 << 10
	// maxStatusContexts is how many contexts one session can have.
	maxStatusContexts = 2
	// maxScratch is how many lists of extents are kept for the next request.
	maxScratch = 8
)

// extents are the lists that one block status fills, by context.
type extents [maxStatusContexts][]wire.Extent

// startStatus finds out which contexts are asked for, and gets memory for the
// reply. An errno is the answer to a request that asks for nonsense.
func (c *conn) startStatus(s *slot, rq *wire.Request) (wire.Errno, error) {
	wanted := uint64(1)<<len(c.sess.Contexts) - 1
	asked := *rq
	if rq.Flags&wire.CmdFlagPayloadLen != 0 && c.ext {
		e, err := c.receiveStatusPayload(s, &asked, &wanted)
		if e != 0 || err != nil {
			return e, err
		}
	}
	if rq.Flags&wire.CmdFlagReqOne == 0 {
		c.hold(s, maxStatusBody, true)
	}
	c.start(s, &asked, block.OpStatus)
	s.wanted = wanted
	return 0, nil
}

// receiveStatusPayload reads the range's length and the contexts' ids from the
// payload.
func (c *conn) receiveStatusPayload(s *slot, rq *wire.Request, wanted *uint64) (wire.Errno, error) {
	var ids [maxStatusContexts]uint32
	n := rq.Length
	if n > uint64(len(s.small)) { // more ids than there are contexts
		return wire.EINVAL, c.skip(n)
	}
	if err := c.receive(s.small[:n]); err != nil {
		return 0, err
	}
	length, list, err := wire.ParseBlockStatusPayload(s.small[:n], ids[:0])
	if err != nil {
		return wire.EINVAL, nil
	}
	*wanted = 0
	for _, id := range list {
		bit := c.contextBit(id)
		if bit == 0 || *wanted&bit != 0 {
			return wire.EINVAL, nil
		}
		*wanted |= bit
	}
	rq.Length = length
	if *wanted == 0 {
		return wire.EINVAL, nil
	}
	return c.sess.CheckRange(rq.Type, rq.Offset, rq.Length), nil
}

// contextBit is the place of a context in the session, as a bit; 0 if it was
// not negotiated.
func (c *conn) contextBit(id uint32) uint64 {
	for i, m := range c.sess.Contexts {
		if m.ID == id {
			return 1 << i
		}
	}
	return 0
}

// blockStatus asks the disk and builds the reply. What has been found when the
// disk fails is an answer; if nothing has, its error is.
func (c *conn) blockStatus(s *slot) error {
	wanted := s.wanted
	body, most := s.small[:], 1
	if len(s.vec) > 0 {
		body = s.vec[0]
		most = len(body)/bits.OnesCount64(wanted)/c.extentLen() - 3 // the head of a chunk is smaller than three extents
	}
	x := c.srv.takeExtents()
	defer c.srv.giveExtents(x)
	if err := c.collect(s, x, wanted, most); err != nil {
		return err
	}
	n := 0
	for w := wanted; w != 0; w &= w - 1 {
		i := bits.TrailingZeros64(w)
		fl := wire.ReplyFlags(0)
		if w&(w-1) == 0 {
			fl = wire.ReplyFlagDone
		}
		n += wire.PutChunkBlockStatus(body[n:], &s.rq, c.ext, fl, c.sess.Contexts[i].ID, x[i])
	}
	s.body = body[:n]
	return nil
}

// extentLen is the length of an extent on the wire.
func (c *conn) extentLen() int { return wire.BlockStatusLen(c.ext, 1) - wire.BlockStatusLen(c.ext, 0) }

// collect asks the disk until the range is covered or a list of most extents
// is full.
func (c *conn) collect(s *slot, x *extents, wanted uint64, most int) error {
	off, end := int64(s.rq.Offset), int64(s.rq.Offset+s.rq.Length)
	for calls := 0; off < end && calls < maxStatusCalls; calls++ {
		e, err := c.child.BlockStatus(s.req, off, end-off)
		if err != nil && calls == 0 {
			return err
		}
		if err != nil || !c.addExtent(x, wanted, e, most) {
			break
		}
		off += e.Len
	}
	return nil
}

// addExtent adds e to all lists wanted, or to none if one is full.
func (c *conn) addExtent(x *extents, wanted uint64, e block.Extent, most int) bool {
	for w := wanted; w != 0; w &= w - 1 {
		i := bits.TrailingZeros64(w)
		if l := x[i]; len(l) == most && l[most-1].Flags != c.state(i, e) {
			return false
		}
	}
	for w := wanted; w != 0; w &= w - 1 {
		i := bits.TrailingZeros64(w)
		fl, last := c.state(i, e), len(x[i])-1
		if last >= 0 && x[i][last].Flags == fl {
			x[i][last].Length += uint64(e.Len)
		} else {
			x[i] = append(x[i], wire.Extent{Length: uint64(e.Len), Flags: fl})
		}
	}
	return true
}

// state is what the session's context i says of an extent.
func (c *conn) state(i int, e block.Extent) uint64 {
	if c.exp.contexts[c.sess.Contexts[i].ID] == contextDepth {
		return depthState(e)
	}
	var fl uint64
	if !e.Data {
		fl |= wire.StateHole
	}
	if e.Zero {
		fl |= wire.StateZero
	}
	return fl
}

// depthState is 0 where no layer has the extent, 1 where the export's own has
// it, 2 where the next one has it, and so on.
func depthState(e block.Extent) uint64 {
	if !e.Allocated && e.Depth == 0 {
		return 0
	}
	return uint64(e.Depth) + 1
}

func (s *Server) takeExtents() *extents {
	select {
	case x := <-s.scratch:
		return x
	default:
		return new(extents)
	}
}

func (s *Server) giveExtents(x *extents) {
	for i := range x {
		x[i] = x[i][:0]
	}
	select {
	case s.scratch <- x:
	default:
	}
}
