package vhostuser

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/internal/sys"
)

// backend answers a front end's messages by hand.
func backend(t *testing.T, answer func(c *Conn, m *Message) error) *Frontend {
	t.Helper()
	c, fd, err := sys.SocketPair()
	if err != nil {
		t.Fatal(err)
	}
	peer, err := sys.UnixConn(fd)
	if err != nil {
		t.Fatal(err)
	}
	f, b, done := NewFrontend(c), NewConn(peer), make(chan struct{})
	go func() {
		defer close(done)
		var m Message
		for b.Read(&m) == nil {
			err := answer(b, &m)
			m.Fds.Close()
			if err != nil {
				b.Close()
				return
			}
		}
	}()
	t.Cleanup(func() { f.Close(); <-done; b.Close() })
	return f
}

func TestFrontendCalls(t *testing.T) {
	f := backend(t, func(c *Conn, m *Message) error {
		if err := m.Check(^Protocol(0)); err != nil {
			t.Error(err)
		}
		switch m.Request {
		case GetFeatures, GetProtocolFeatures, GetQueueNum, GetMaxMemSlots, GetStatus:
			return c.Ack(m, 7)
		case GetVringBase, GetConfig:
			return c.Reply(m, m.Payload)
		case GetInflightFd:
			return c.Reply(m, Inflight{MmapSize: 4096, Queues: 2, QueueSize: 64}.Append(nil, m.Payload), 0)
		case SetVringNum:
			return c.Ack(m, 1)
		case SetLogBase:
			return c.Ack(m, 0)
		}
		if m.NeedReply() {
			return c.Ack(m, 0)
		}
		return nil
	})
	for _, get := range []func() (int, error){
		func() (int, error) { v, err := f.Features(); return int(v), err },
		func() (int, error) { v, err := f.ProtocolFeatures(); return int(v), err },
		f.QueueNum, f.MaxMemSlots,
		func() (int, error) { v, err := f.Status(); return int(v), err },
	} {
		if v, err := get(); v != 7 || err != nil {
			t.Errorf("%d, %v", v, err)
		}
	}
	if err := f.SetProtocolFeatures(ProtocolReplyAck); err != nil {
		t.Fatal(err)
	}
	var nack *NackError
	if err := f.SetVringNum(0, 3); !errors.As(err, &nack) || nack.Request != SetVringNum {
		t.Errorf("refused: %v", err)
	}
	if err := errors.Join(f.SetFeatures(1), f.SetOwner(), f.SetVringEnable(1, true), f.SetStatus(3), f.ResetDevice(),
		f.SetVringFd(SetVringKick, 2, 0), f.SetVringFd(SetVringCall, 2, -1), f.SetVringBase(0, 1), f.SetVringAddr(VringAddr{}),
		f.SetMemTable([]Region{{}}, []int{0}), f.AddMemReg(Region{}, 0), f.RemMemReg(Region{}), f.SetConfig(Config{Data: []byte{1}}),
		f.SetLogBase(Log{}, 0), f.SetInflight(Inflight{}, 0)); err != nil {
		t.Error(err)
	}
	if data, err := f.GetConfig(4, 8); err != nil || !bytes.Equal(data, make([]byte, 8)) {
		t.Errorf("configuration % x, %v", data, err)
	}
	in, fd, err := f.GetInflight(2, 64)
	if err != nil || in.MmapSize != 4096 || fd < 0 {
		t.Fatalf("%+v %d %v", in, fd, err)
	}
	sys.CloseFd(fd)
	if base, err := f.GetVringBase(1); base != 0 || err != nil {
		t.Error(base, err)
	}
}

func TestFrontendRefusesOtherAnswers(t *testing.T) {
	for name, answer := range map[string]func(c *Conn, m *Message) error{
		"another request": func(c *Conn, m *Message) error { return c.Write(SetOwner, FlagReply, m.Payload) },
		"no reply flag":   func(c *Conn, m *Message) error { return c.Write(m.Request, 0, m.Payload) },
		"short":           func(c *Conn, m *Message) error { return c.Reply(m, nil) },
		"another queue":   func(c *Conn, m *Message) error { return c.Reply(m, VringState{Index: 9}.Append(nil)) },
		"none":            func(c *Conn, m *Message) error { return errors.New("gone") },
		"too many descriptors": func(c *Conn, m *Message) error {
			b := message(uint32(m.Request), Version|FlagReply, m.Payload)
			_, err := sys.SendFds(c.Socket(), b, make([]int, 20))
			return err
		},
	} {
		f := backend(t, answer)
		if _, err := f.GetVringBase(1); err == nil {
			t.Errorf("%s: accepted", name)
		} else {
			t.Log(name, err)
		}
	}
}

func TestBackendChannel(t *testing.T) {
	chans := make(chan *Conn, 1)
	f := backend(t, func(c *Conn, m *Message) error {
		ch, err := sys.UnixConn(m.Fds.Take(0))
		if err != nil {
			return err
		}
		chans <- NewConn(ch)
		return nil
	})
	ours, err := f.OpenBackendChannel()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	theirs := <-chans
	defer theirs.Close()
	if err := theirs.Write(Request(BackendConfigChange), FlagNeedReply, nil); err != nil {
		t.Fatal(err)
	}
	var m Message
	if err := ours.Read(&m); err != nil || BackendRequest(m.Request) != BackendConfigChange || !m.NeedReply() {
		t.Errorf("%+v, %v", m, err)
	}
}

// Descriptors that nobody wanted do not pile up.
func TestUnwantedDescriptorsAreClosed(t *testing.T) {
	f := backend(t, func(c *Conn, m *Message) error { return c.Reply(m, AppendU64(nil, 1), 0, 0, 0) })
	before, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if _, err := f.Features(); err != nil {
			t.Fatal(err)
		}
	}
	after, err := os.ReadDir("/proc/self/fd")
	if err != nil || len(after) > len(before)+5 {
		t.Errorf("%d descriptors before, %d after, %v", len(before), len(after), err)
	}
	if err := unix.Fstat(0, new(unix.Stat_t)); err != nil {
		t.Errorf("our own descriptor 0 was closed: %v", err)
	}
}
