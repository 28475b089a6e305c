package vhostuser

import "fmt"

// Message is one as it was read. On the channel of a back end's requests
// Request is a BackendRequest.
type Message struct {
	Request Request
	Flags   Flags
	Payload []byte // the connection's, until the next Read
	Fds     Fds    // the reader's: he closes what he does not take
}

// NeedReply reports whether the sender wants to know what became of it.
func (m *Message) NeedReply() bool { return m.Flags&FlagNeedReply != 0 }

// shape is what a message from the front end looks like.
type shape struct {
	size, most int // of the payload, in bytes: from, to
	fdMin, fds int // descriptors that it carries: from, to
	reply      bool
	needs      Protocol // feature without which it must not be sent
}

// shapes are the messages that a back end may be sent. What is not among them
// is unknown. ("Front-end message types")
var shapes = [numRequests]*shape{
	GetFeatures:         {reply: true},
	SetFeatures:         {size: sizeU64},
	SetOwner:            {},
	ResetOwner:          {},
	SetMemTable:         {size: sizeTable, most: sizeTable + MaxTableRegions*sizeRegion, fds: MaxTableRegions},
	SetLogBase:          {size: sizeU64, most: sizeLog, fds: 1},
	SetLogFd:            {most: sizeU64, fds: 1},
	SetVringNum:         {size: sizeState},
	SetVringAddr:        {size: sizeAddr},
	SetVringBase:        {size: sizeState},
	GetVringBase:        {size: sizeState, reply: true},
	SetVringKick:        {size: sizeU64, fds: 1},
	SetVringCall:        {size: sizeU64, fds: 1},
	SetVringErr:         {size: sizeU64, fds: 1},
	GetProtocolFeatures: {reply: true},
	SetProtocolFeatures: {size: sizeU64},
	GetQueueNum:         {reply: true, needs: ProtocolMQ},
	SetVringEnable:      {size: sizeState},
	SetBackendReqFd:     {most: sizeU64, fdMin: 1, fds: 1, needs: ProtocolBackendReq},
	GetConfig:           {size: sizeConfig, most: sizeConfig + MaxConfig, reply: true, needs: ProtocolConfig},
	SetConfig:           {size: sizeConfig, most: sizeConfig + MaxConfig, needs: ProtocolConfig},
	GetInflightFd:       {size: sizeInflight, most: sizeInflightPadded, reply: true, needs: ProtocolInflightShmfd},
	SetInflightFd:       {size: sizeInflight, most: sizeInflightPadded, fdMin: 1, fds: 1, needs: ProtocolInflightShmfd},
	ResetDevice:         {needs: ProtocolResetDevice},
	GetMaxMemSlots:      {reply: true, needs: ProtocolConfigureMemSlots},
	AddMemReg:           {size: sizeSingleRegion, fdMin: 1, fds: 1, needs: ProtocolConfigureMemSlots},
	RemMemReg:           {size: sizeSingleRegion, fds: 1, needs: ProtocolConfigureMemSlots},
	SetStatus:           {size: sizeU64, needs: ProtocolStatus},
	GetStatus:           {reply: true, needs: ProtocolStatus},
}

// Known reports whether a back end of ours knows the message.
func (r Request) Known() bool { return r < numRequests && shapes[r] != nil }

// HasReply reports whether the message is answered with a payload of its own,
// whatever its flags say. SetLogBase is too where ProtocolLogShmfd is there.
func (r Request) HasReply() bool { return r.Known() && shapes[r].reply }

// ErrMessage says that a message breaks the protocol.
type ErrMessage struct {
	Request Request
	Msg     string
}

// Error names the message and what is wrong with it.
func (e *ErrMessage) Error() string { return fmt.Sprintf("%v: %s", e.Request, e.Msg) }

func badf(r Request, format string, args ...any) error {
	return &ErrMessage{r, fmt.Sprintf(format, args...)}
}

// Check holds a message from the front end against the document: its size, its
// descriptors, and whether the features in force allow it. Unknown messages
// fail too.
func (m *Message) Check(inForce Protocol) error {
	r := m.Request
	if !r.Known() {
		return badf(r, "the message is not known here")
	}
	s, n, fds := shapes[r], len(m.Payload), m.Fds.Len()
	most := max(s.size, s.most)
	switch {
	case m.Flags&FlagVersionMask != Version:
		return badf(r, "version %d of the protocol: there is only version %d", m.Flags&FlagVersionMask, Version)
	case m.Flags&FlagReply != 0:
		return badf(r, "it is marked as a reply, but nothing was asked")
	case s.needs&^inForce != 0:
		return badf(r, "protocol feature %v has not been negotiated", s.needs)
	case n < s.size || n > most:
		return badf(r, "the payload has %d bytes, not %s", n, span(s.size, most))
	case fds < s.fdMin || fds > s.fds:
		return badf(r, "it carries %d descriptors, not %s", fds, span(s.fdMin, s.fds))
	}
	return nil
}

func span(from, to int) string {
	if from == to {
		return fmt.Sprint(from)
	}
	return fmt.Sprintf("%d to %d", from, to)
}
