package vhostuser

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/internal/sys"
)

// pair is a connection and the bare socket of its peer.
func pair(t testing.TB) (*Conn, *net.UnixConn) {
	t.Helper()
	c, fd, err := sys.SocketPair()
	if err != nil {
		t.Fatal(err)
	}
	peer, err := sys.UnixConn(fd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); peer.Close() })
	return NewConn(c), peer
}

// pipeFds are n descriptors of the writing end of a pipe; drained tells when
// all copies of them, ours and those that travelled, are closed.
func pipeFds(t testing.TB, n int) (fds []int, drained func() bool) {
	t.Helper()
	p := make([]int, 2)
	if err := unix.Pipe2(p, unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(p[0]) })
	for range n {
		fds = append(fds, p[1])
	}
	return fds, func() bool {
		unix.Close(p[1])
		n, err := unix.Read(p[0], make([]byte, 1))
		return n == 0 && err == nil
	}
}

func message(request uint32, fl Flags, payload []byte) []byte {
	b := make([]byte, HeaderSize)
	PutHeader(b, request, fl, len(payload))
	return append(b, payload...)
}

func TestMessageArrivesInPieces(t *testing.T) {
	c, peer := pair(t)
	fds, drained := pipeFds(t, 1)
	whole := message(uint32(SetVringKick), Version|FlagNeedReply, AppendU64(nil, 3))
	go func() {
		for i := range whole {
			sys.SendFds(peer, whole[i:i+1], map[int][]int{0: fds}[i])
		}
	}()
	var m Message
	if err := c.Read(&m); err != nil {
		t.Fatal(err)
	}
	if v, err := m.VringFd(); err != nil || v.Index != 3 || v.NoFd || !m.NeedReply() || m.Request != SetVringKick {
		t.Errorf("%+v of %+v, %v", v, m, err)
	}
	m.Fds.Close()
	if !drained() {
		t.Error("the descriptor is still open")
	}
}

// Descriptors that come with the next message are not taken for this one's.
func TestDescriptorsBelongToTheirMessage(t *testing.T) {
	c, peer := pair(t)
	fds, drained := pipeFds(t, 1)
	first := message(uint32(SetOwner), Version, nil)
	second := message(uint32(SetVringCall), Version, AppendU64(nil, 0))
	if _, err := sys.SendFds(peer, first, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := sys.SendFds(peer, second, fds); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		request Request
		fds     int
	}{{SetOwner, 0}, {SetVringCall, 1}} {
		var m Message
		if err := c.Read(&m); err != nil || m.Request != want.request || m.Fds.Len() != want.fds {
			t.Errorf("%v with %d descriptors, %v: want %v with %d", m.Request, m.Fds.Len(), err, want.request, want.fds)
		}
		m.Fds.Close()
	}
	if !drained() {
		t.Error("the descriptor is still open")
	}
}

func TestTooManyDescriptors(t *testing.T) {
	for _, n := range []int{MaxFds, MaxFds + 1, 200} {
		c, peer := pair(t)
		fds, drained := pipeFds(t, n)
		b := message(uint32(SetMemTable), Version, nil)
		if _, err := sys.SendFds(peer, b, fds); err != nil {
			t.Fatal(err)
		}
		var m Message
		err := c.Read(&m)
		if (err == nil) != (n <= MaxFds) {
			t.Errorf("%d descriptors: %v", n, err)
		}
		var bad *ErrMessage
		if err != nil && !errors.As(err, &bad) {
			t.Errorf("%d descriptors: %v", n, err)
		}
		if err == nil {
			m.Fds.Close()
		}
		if !drained() {
			t.Errorf("%d descriptors: some are still open", n)
		}
	}
}

func TestDescriptorsSpreadOverAMessageCountTogether(t *testing.T) {
	c, peer := pair(t)
	fds, drained := pipeFds(t, 5)
	b := message(uint32(SetMemTable), Version, AppendMemTable(nil, nil))
	for _, part := range [][]byte{b[:4], b[4:15], b[15:]} {
		if _, err := sys.SendFds(peer, part, fds); err != nil {
			t.Fatal(err)
		}
	}
	var m Message
	if err := c.Read(&m); err == nil || !strings.Contains(err.Error(), "more than 8 descriptors") {
		t.Errorf("15 descriptors in three parts: %v", err)
	}
	c.Close() // with what was not read
	if !drained() {
		t.Error("some descriptors are still open")
	}
}

func TestConnectionEnds(t *testing.T) {
	whole := message(uint32(SetFeatures), Version, AppendU64(nil, 1))
	for n := range len(whole) {
		c, peer := pair(t)
		fds, drained := pipeFds(t, 1)
		if n > 0 {
			if _, err := sys.SendFds(peer, whole[:n], fds); err != nil {
				t.Fatal(err)
			}
		}
		peer.Close()
		var m Message
		err := c.Read(&m)
		if want := map[bool]error{true: io.EOF, false: io.ErrUnexpectedEOF}[n == 0]; !errors.Is(err, want) {
			t.Errorf("after %d bytes: %v, want %v", n, err, want)
		}
		if n > 0 && !drained() {
			t.Errorf("after %d bytes: the descriptor is still open", n)
		}
	}
}

func TestPayloadTooLong(t *testing.T) {
	for _, size := range []int{MaxPayload, MaxPayload + 1, 1<<32 - 1} {
		c, peer := pair(t)
		b := make([]byte, HeaderSize)
		PutHeader(b, uint32(SetConfig), Version, size)
		go peer.Write(append(b, make([]byte, MaxPayload)...))
		var m Message
		if err := c.Read(&m); (err == nil) != (size <= MaxPayload) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

// The corpus in testdata/fuzz has the messages of good front ends; the fuzzer
// finds the bad ones from there.

// FuzzFrontendMessages: in is what a front end sends. Each byte of plan is one
// part of it: the high bits say how long, the low ones how many descriptors
// come with it.
func FuzzFrontendMessages(f *testing.F) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { null.Close() })
	f.Fuzz(func(t *testing.T, inForce uint64, plan []byte, in []byte) {
		c, peer := pair(t)
		before := openFds(t)
		in = in[:min(len(in), 64<<10)]
		go feed(peer, in, plan, int(null.Fd()))
		var m Message
		for {
			if err := c.Read(&m); err != nil {
				break
			}
			checkMessage(t, &m, Protocol(inForce))
			m.Fds.Close()
		}
		peer.Close()
		c.Close()
		if after := openFds(t); after > before {
			t.Fatalf("%d descriptors open before, %d after", before, after)
		}
	})
}

// feed sends in by parts, with descriptors as plan says, and ends.
func feed(peer *net.UnixConn, in, plan []byte, fd int) {
	defer peer.CloseWrite()
	for i := 0; len(in) > 0; i++ {
		n, fds := len(in), []int(nil)
		if i < len(plan) {
			n = min(n, 1+int(plan[i]>>4)*5)
			for range plan[i] & 15 {
				fds = append(fds, fd)
			}
		}
		if _, err := sys.SendFds(peer, in[:n], fds); err != nil {
			return
		}
		in = in[n:]
	}
}

// openFds counts the descriptors of this process.
func openFds(t *testing.T) int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// checkMessage decodes a message in every way: what passes is within bounds,
// and encodes to the same bytes.
func checkMessage(t *testing.T, m *Message, inForce Protocol) {
	if m.Fds.Len() > MaxFds || len(m.Payload) > MaxPayload {
		t.Fatalf("%d descriptors, %d bytes", m.Fds.Len(), len(m.Payload))
	}
	if m.Check(inForce) == nil && !m.Request.Known() {
		t.Fatalf("%v passed", m.Request)
	}
	same := func(err error, b []byte, from int) {
		if err == nil && !bytes.Equal(b[from:], m.Payload[from:]) {
			t.Fatalf("%v: read % x, wrote % x", m.Request, m.Payload, b)
		}
	}
	v, err := m.U64()
	same(err, AppendU64(nil, v), 0)
	st, err := m.VringState()
	same(err, st.Append(nil), 0)
	ad, err := m.VringAddr()
	same(err, ad.Append(nil), 0)
	r, err := m.Region()
	same(err, r.AppendSingle(nil), 8) // padding before it
	l, err := m.Log()
	same(err, l.Append(nil), 0)
	c, err := m.Config()
	if err == nil && int(c.Offset)+len(c.Data) > MaxConfig {
		t.Fatalf("%d bytes of configuration at %d", len(c.Data), c.Offset)
	}
	same(err, c.Append(nil), 0)
	regions, err := m.MemTable(make([]Region, 0, MaxTableRegions))
	same(err, AppendMemTable(nil, regions), 8) // padding behind the number
	in, err := m.Inflight()
	if err == nil && !bytes.Equal(in.Append(nil, m.Payload)[:sizeInflight], m.Payload[:sizeInflight]) {
		t.Fatalf("%v: read % x, wrote % x", m.Request, m.Payload, in.Append(nil, m.Payload))
	}
	if vf, err := m.VringFd(); err == nil && (vf.NoFd != (m.Fds.Len() == 0) || vf.Index >= MaxQueues) {
		t.Fatalf("%+v with %d descriptors", vf, m.Fds.Len())
	}
}
