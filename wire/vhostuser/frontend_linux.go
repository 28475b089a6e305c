package vhostuser

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/platter-storage/platter/internal/sys"
)

// DefaultTimeout is how long a back end may take over an answer: it may have
// to finish requests first.
const DefaultTimeout = 60 * time.Second

// NackError says that the back end refused a request.
type NackError struct {
	Request Request
	Result  uint64
}

// Error names the request.
func (e *NackError) Error() string {
	return fmt.Sprintf("%v: the back end refused it (answer %d): its log says why", e.Request, e.Result)
}

// Frontend is the side of a connection that has the memory and the rings. Its
// calls wait for the answer where there is one; any goroutine may make them.
// After an error other than a *NackError the connection is of no use.
type Frontend struct {
	// Timeout bounds each call; DefaultTimeout where it is zero.
	Timeout time.Duration

	conn *Conn

	mu      sync.Mutex // one call at a time; guards what follows
	m       Message
	out     []byte
	inForce Protocol
}

// NewFrontend takes over a connected socket.
func NewFrontend(c *net.UnixConn) *Frontend { return &Frontend{conn: NewConn(c)} }

// DialFrontend connects to a back end that listens.
func DialFrontend(path string) (*Frontend, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return NewFrontend(c), nil
}

// Close ends the connection.
func (f *Frontend) Close() error { return f.conn.Close() }

// Conn is the connection underneath, for messages that Frontend has no call
// for.
func (f *Frontend) Conn() *Conn { return f.conn }

// Protocol is the set of protocol features in force.
func (f *Frontend) Protocol() Protocol {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.inForce
}

// call sends a message and takes the answer: the one that the message has, or
// the acknowledgement where the back end gives it. use sees the answer; its
// descriptors are closed afterwards unless use takes them.
func (f *Frontend) call(request Request, hasReply bool, encode func([]byte) []byte, use func(m *Message) error, fds ...int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	timeout := f.Timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	if err := f.conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return fmt.Errorf("%v: %w", request, err)
	}
	var fl Flags
	if !hasReply && f.inForce&ProtocolReplyAck != 0 {
		fl, use = FlagNeedReply, acknowledged
	}
	f.out = f.out[:0]
	if encode != nil {
		f.out = encode(f.out)
	}
	if err := f.conn.Write(request, fl, f.out, fds...); err != nil {
		return fmt.Errorf("%v: %w", request, err)
	}
	if use == nil {
		return nil
	}
	return f.answer(request, use)
}

// answer reads the answer to request and lets use look at it.
func (f *Frontend) answer(request Request, use func(m *Message) error) error {
	if err := f.conn.Read(&f.m); err != nil {
		return fmt.Errorf("%v: the back end gave no answer: %w", request, err)
	}
	defer f.m.Fds.Close()
	if f.m.Request != request || f.m.Flags&(FlagVersionMask|FlagReply) != Version|FlagReply {
		return badf(request, "the back end answered with %v, flags %#x", f.m.Request, uint32(f.m.Flags))
	}
	return use(&f.m)
}

// acknowledged reads the answer of ProtocolReplyAck.
func acknowledged(m *Message) error {
	v, err := m.U64()
	if err == nil && v != 0 {
		err = &NackError{m.Request, v}
	}
	return err
}

func (f *Frontend) getU64(request Request) (v uint64, err error) {
	err = f.call(request, true, nil, func(m *Message) error {
		v, err = m.U64()
		return err
	})
	return v, err
}

func (f *Frontend) setU64(request Request, v uint64, fds ...int) error {
	return f.call(request, false, func(b []byte) []byte { return AppendU64(b, v) }, nil, fds...)
}

func (f *Frontend) setState(request Request, queue int, num uint32) error {
	return f.call(request, false, VringState{uint32(queue), num}.Append, nil)
}

// Features are those that the back end offers.
func (f *Frontend) Features() (uint64, error) { return f.getU64(GetFeatures) }

// SetFeatures chooses features.
func (f *Frontend) SetFeatures(v uint64) error { return f.setU64(SetFeatures, v) }

// ProtocolFeatures are those that the back end offers; only where FeatureProtocol
// is among Features.
func (f *Frontend) ProtocolFeatures() (Protocol, error) {
	v, err := f.getU64(GetProtocolFeatures)
	return Protocol(v), err
}

// SetProtocolFeatures chooses protocol features; they are in force from now on.
func (f *Frontend) SetProtocolFeatures(p Protocol) error {
	if err := f.setU64(SetProtocolFeatures, uint64(p)); err != nil {
		return err
	}
	f.mu.Lock()
	f.inForce = p
	f.mu.Unlock()
	return nil
}

// SetOwner begins the session.
func (f *Frontend) SetOwner() error { return f.call(SetOwner, false, nil, nil) }

// QueueNum is how many queues the back end has at most.
func (f *Frontend) QueueNum() (int, error) {
	v, err := f.getU64(GetQueueNum)
	return int(min(v, MaxQueues)), err
}

// MaxMemSlots is how many regions the back end takes.
func (f *Frontend) MaxMemSlots() (int, error) {
	v, err := f.getU64(GetMaxMemSlots)
	return int(min(v, MaxMemSlots)), err
}

// SetMemTable tells all of guest memory, at most MaxTableRegions regions, with
// the descriptor of each.
func (f *Frontend) SetMemTable(regions []Region, fds []int) error {
	return f.call(SetMemTable, false, func(b []byte) []byte { return AppendMemTable(b, regions) }, nil, fds...)
}

// AddMemReg adds a region.
func (f *Frontend) AddMemReg(r Region, fd int) error {
	return f.call(AddMemReg, false, r.AppendSingle, nil, fd)
}

// RemMemReg takes a region away; with ProtocolReplyAck the back end has let go
// of it when this returns.
func (f *Frontend) RemMemReg(r Region) error { return f.call(RemMemReg, false, r.AppendSingle, nil) }

// SetVringNum sets the size of a queue.
func (f *Frontend) SetVringNum(queue, num int) error {
	return f.setState(SetVringNum, queue, uint32(num))
}

// SetVringAddr says where a queue lies.
func (f *Frontend) SetVringAddr(a VringAddr) error {
	return f.call(SetVringAddr, false, a.Append, nil)
}

// SetVringBase says where in the rings the back end begins.
func (f *Frontend) SetVringBase(queue int, base uint32) error {
	return f.setState(SetVringBase, queue, base)
}

// GetVringBase stops a queue and says where in the rings it stopped.
func (f *Frontend) GetVringBase(queue int) (base uint32, err error) {
	err = f.call(GetVringBase, true, VringState{Index: uint32(queue)}.Append, func(m *Message) error {
		s, err := m.VringState()
		if err == nil && s.Index != uint32(queue) {
			err = badf(m.Request, "the answer is about queue %d, not %d", s.Index, queue)
		}
		base = s.Num
		return err
	})
	return base, err
}

// SetVringEnable lets a queue's requests run, or not.
func (f *Frontend) SetVringEnable(queue int, on bool) error {
	num := uint32(0)
	if on {
		num = 1
	}
	return f.setState(SetVringEnable, queue, num)
}

// SetVringFd sends one of the descriptors of a queue: SetVringKick, SetVringCall
// or SetVringErr. A negative fd says that there is none.
func (f *Frontend) SetVringFd(request Request, queue, fd int) error {
	if fd < 0 {
		return f.setU64(request, uint64(queue)|VringNoFd)
	}
	return f.setU64(request, uint64(queue), fd)
}

// GetConfig reads n bytes of the configuration space.
func (f *Frontend) GetConfig(off, n int) (data []byte, err error) {
	c := Config{Offset: uint32(off), Data: make([]byte, n)}
	err = f.call(GetConfig, true, c.Append, func(m *Message) error {
		if len(m.Payload) == 0 {
			return &NackError{GetConfig, 1}
		}
		got, err := m.Config()
		switch {
		case err != nil:
			return err
		case got.Offset != uint32(off) || len(got.Data) != n:
			return badf(GetConfig, "the answer has %d bytes at %d, not %d at %d", len(got.Data), got.Offset, n, off)
		}
		data = append(data, got.Data...)
		return nil
	})
	return data, err
}

// SetConfig writes a part of the configuration space.
func (f *Frontend) SetConfig(c Config) error { return f.call(SetConfig, false, c.Append, nil) }

// OpenBackendChannel gives the back end a channel for its requests and returns
// our end of it.
func (f *Frontend) OpenBackendChannel() (*Conn, error) {
	c, fd, err := sys.SocketPair()
	if err != nil {
		return nil, err
	}
	err = f.call(SetBackendReqFd, false, nil, nil, fd)
	sys.CloseFd(fd)
	if err != nil {
		c.Close()
		return nil, err
	}
	return NewConn(c), nil
}

// GetInflight asks for memory that keeps track of requests in flight. The
// descriptor is the caller's.
func (f *Frontend) GetInflight(queues, size int) (in Inflight, fd int, err error) {
	fd = -1
	want := Inflight{Queues: uint16(queues), QueueSize: uint16(size)}
	encode := func(b []byte) []byte { return want.Append(b, nil) }
	err = f.call(GetInflightFd, true, encode, func(m *Message) error {
		if in, err = m.Inflight(); err != nil {
			return err
		}
		if in.MmapSize == 0 || m.Fds.Len() != 1 {
			return fmt.Errorf("%v: the back end gave no memory: %w", GetInflightFd, errors.ErrUnsupported)
		}
		fd = m.Fds.Take(0)
		return nil
	})
	return in, fd, err
}

// SetInflight gives the memory back to a back end that begins.
func (f *Frontend) SetInflight(in Inflight, fd int) error {
	return f.call(SetInflightFd, false, func(b []byte) []byte { return in.Append(b, nil) }, nil, fd)
}

// SetLogBase gives the back end a dirty log; it answers when it uses it.
func (f *Frontend) SetLogBase(l Log, fd int) error {
	answer := func(m *Message) error { return nil }
	return f.call(SetLogBase, true, l.Append, answer, fd)
}

// ResetDevice sets the device back to how it began.
func (f *Frontend) ResetDevice() error { return f.call(ResetDevice, false, nil, nil) }

// SetStatus tells the device's status. (virtio, "Device Status Field")
func (f *Frontend) SetStatus(v uint8) error { return f.setU64(SetStatus, uint64(v)) }

// Status asks for the device's status.
func (f *Frontend) Status() (uint8, error) {
	v, err := f.getU64(GetStatus)
	return uint8(v), err
}
