package nbd

import (
	"errors"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/platter-storage/platter/block/blocktest"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// fakeListener accepts what its errors and connections say, one after the
// other, then waits until it is closed.
type fakeListener struct {
	mu     sync.Mutex
	errs   []error
	conns  []net.Conn
	closed int
	wait   chan struct{}
}

func (l *fakeListener) Accept() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.errs) > 0 {
		err := l.errs[0]
		l.errs = l.errs[1:]
		return nil, err
	}
	if len(l.conns) > 0 {
		c := l.conns[0]
		l.conns = l.conns[1:]
		return c, nil
	}
	l.mu.Unlock()
	<-l.wait
	l.mu.Lock()
	return nil, net.ErrClosed
}

func (l *fakeListener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed++; l.closed == 1 && l.wait != nil {
		close(l.wait)
	}
	return nil
}

func (l *fakeListener) Addr() net.Addr { return &net.UnixAddr{Name: "fake", Net: "unix"} }

// A listener that fails for want of descriptors is tried again, and the log
// says what to do.
func TestAcceptErrorsPass(t *testing.T) {
	env := blocktest.NewEnv(t)
	r := newRig(t, env, Config{}, Export{Child: disk(t, env, "mem", mib)})
	ours, theirs := net.Pipe()
	l := &fakeListener{errs: []error{syscall.EMFILE, syscall.ENFILE, syscall.ECONNABORTED}, conns: []net.Conn{theirs}, wait: make(chan struct{})}
	ended := make(chan error, 1)
	go func() { ended <- r.Serve(l) }()
	// The pipe is no socket: this also serves a client on a stream without
	// a descriptor.
	s, err := wire.ClientHandshake(ours, wire.ClientConfig{WantStructured: true})
	if err != nil {
		t.Fatal(err)
	}
	c, err := wire.NewClient(s, wire.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{512, 100000, 3 << 20 / 4} {
		if err := c.Pwrite(pattern(n, 1), 0, 0); err != nil {
			t.Error(err)
		}
		if err := c.Pread(make([]byte, n), 0, 0); err != nil {
			t.Error(err)
		}
	}
	if err := c.Disconnect(); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve of a listener that was closed: %v", err)
	}
	if n := strings.Count(r.log.String(), "ulimit -n"); n != 2 {
		t.Errorf("%d lines say what to do about descriptors, want 2", n)
	}
}

// Several listeners are served at once, and a client sees all exports but the
// hidden ones, which it can use all the same.
func TestListenersAndExports(t *testing.T) {
	env := blocktest.NewEnv(t)
	r := newRig(t, env, Config{},
		Export{Name: "one", Description: "the first", Child: disk(t, env, "mem", mib)},
		Export{Name: "two", Child: disk(t, env, "mem", 2*mib), ReadOnly: true},
		Export{Name: "three", Child: disk(t, env, "file", 3*mib), Hidden: true})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- r.Serve(l) }()
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := wire.ClientHandshake(nc, wire.ClientConfig{Mode: wire.ModeList})
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
	if len(s.Exports) != 2 || s.Exports[0].Name != "one" || s.Exports[0].Description != "the first" || s.Exports[1].Name != "two" {
		t.Errorf("exports %+v", s.Exports)
	}
	for name, want := range map[string]uint64{"one": mib, "two": 2 * mib, "three": 3 * mib} {
		c := r.dial(wire.ClientConfig{Export: name}, wire.ClientOptions{})
		if c.Size() != want {
			t.Errorf("%s has %d bytes", name, c.Size())
		}
		if fl := c.Session().Flags; (fl&wire.FlagReadOnly != 0) != (name == "two") {
			t.Errorf("%s has flags %#x", name, fl)
		}
	}
	if _, err := wire.ClientHandshake(r.connect(), wire.ClientConfig{}); err == nil {
		t.Error("there is a default export among three")
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// While one of two exports is gone for a moment, nobody who names none gets the
// other.
func TestNoNameIsNotTheOnlyExport(t *testing.T) {
	env := blocktest.NewEnv(t)
	r := newRig(t, env, Config{}, Export{Name: "b", Child: disk(t, env, "mem", mib)})
	if s, err := wire.ClientHandshake(r.connect(), wire.ClientConfig{}); err == nil {
		t.Errorf("a client that named no export got %q", s.Name)
	}
}

// Connections describes who is there.
func TestConnections(t *testing.T) {
	env := blocktest.NewEnv(t)
	r := newRig(t, env, Config{}, Export{Name: "d", Child: disk(t, env, "mem", mib)})
	r.connect()
	waitFor(t, "the first client", func() bool { return len(r.Connections()) == 1 })
	r.dial(wire.ClientConfig{Export: "d", WantExtended: true, Contexts: []string{wire.ContextAllocation}}, wire.ClientOptions{})
	waitFor(t, "the second client", func() bool { l := r.Connections(); return len(l) == 2 && l[1].Negotiated })
	l := r.Connections()
	if a := l[0]; a.Negotiated || a.Export != "" || !strings.Contains(a.Peer, "process") || time.Since(a.Since) > time.Minute {
		t.Errorf("during the handshake: %+v", a)
	}
	if b := l[1]; !b.Negotiated || b.Export != "d" || !b.Extended || !b.Structured || b.TLS || b.Ending || len(b.Contexts) != 1 {
		t.Errorf("after the handshake: %+v", b)
	}
}

// What the export can do is told truly.
func TestTransmissionFlags(t *testing.T) {
	env := blocktest.NewEnv(t)
	em, child := emulated(t, env, blocktest.EmulatorConfig{Size: mib})
	const always = wire.FlagHasFlags | wire.FlagSendFlush | wire.FlagSendFUA | wire.FlagSendDF | wire.FlagSendCache | wire.FlagBlockStatusPayload
	const write = wire.FlagSendTrim | wire.FlagSendWriteZeroes | wire.FlagSendFastZero
	for _, multi := range []bool{false, true} {
		em.Info().MultiConn = multi
		for _, ro := range []bool{false, true} {
			x, err := newExport(Export{Child: child, ReadOnly: ro})
			if err != nil {
				t.Fatal(err)
			}
			want := always | write
			if ro {
				want = always | wire.FlagReadOnly | wire.FlagCanMultiConn
			} else if multi {
				want |= wire.FlagCanMultiConn
			}
			if got := x.current().Flags; got != want {
				t.Errorf("multi %v, read-only %v: flags %#x, want %#x", multi, ro, got, want)
			}
		}
	}
	for align, want := range map[uint32]uint32{512: 4096, 4096: 4096, 16384: 16384} {
		l := *alignedTo(align)
		em.SetLimits(l, true)
		x, err := newExport(Export{Child: child})
		if err != nil {
			t.Fatal(err)
		}
		if i := x.current(); i.MinBlock != 1 || i.PrefBlock != want || i.MaxBlock != wire.MaxPayload {
			t.Errorf("alignment %d: block sizes %d %d %d", align, i.MinBlock, i.PrefBlock, i.MaxBlock)
		}
	}
}
