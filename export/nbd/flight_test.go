package nbd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// emulated makes storage that can be made to stall, and an edge to it.
func emulated(t testing.TB, env *block.Env, cfg blocktest.EmulatorConfig) (*blocktest.Emulator, *block.Child) {
	t.Helper()
	em := blocktest.NewEmulator(t, cfg)
	return em, blocktest.Edge(t, blocktest.Attach(t, env, em, "emulator"))
}

// A request that storage does not finish delays nobody else, whatever the lane
// and the kind of request, also when the connection had been served in place.
func TestStalledRequestDelaysOnlyItself(t *testing.T) {
	for _, fast := range []bool{false, true} {
		for _, op := range []block.Op{block.OpRead, block.OpWrite, block.OpFlush, block.OpZero, block.OpDiscard, block.OpStatus} {
			t.Run(fmt.Sprintf("fast=%v/%v", fast, op), func(t *testing.T) {
				env := blocktest.NewEnv(t)
				em, child := emulated(t, env, blocktest.EmulatorConfig{Size: 8 * mib, Fast: fast})
				r := newRig(t, env, Config{}, Export{Child: child})
				c := r.dial(wire.ClientConfig{WantStructured: true, Contexts: []string{wire.ContextAllocation}}, wire.ClientOptions{})
				// Another one stays in flight all the time: a lone request may be
				// served in place, and several clients' requests come one after
				// the other where the machine has no time for more.
				first := em.Stall(block.OpRead, 2*mib, 4096, 1)
				company := make(chan error, 1)
				go func() { company <- c.Pread(make([]byte, 4096), 2*mib, 0) }()
				first.Held()
				stall := em.Stall(op, 4*mib, 4096, 1)
				held := make(chan error, 1)
				var others sync.WaitGroup
				for range 4 {
					others.Go(func() {
						for range 20 {
							if err := c.Pread(make([]byte, 4096), mib, 0); err != nil {
								t.Error(err)
							}
						}
					})
				}
				go func() { held <- askOp(c, op, 4*mib, 4096) }()
				stall.Held()
				others.Wait()
				for range 3 * loneAfter { // one after the other, but not alone
					if err := c.Pwrite(make([]byte, 4096), mib, 0); err != nil {
						t.Fatal(err)
					}
				}
				select {
				case err := <-held:
					t.Fatalf("the stalled request ended: %v", err)
				default:
				}
				stall.Release()
				first.Release()
				if err := errors.Join(<-held, <-company); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func askOp(c *wire.Client, op block.Op, off, n uint64) error {
	switch op {
	case block.OpWrite:
		return c.Pwrite(make([]byte, n), off, 0)
	case block.OpFlush:
		return c.Flush()
	case block.OpZero:
		return c.WriteZeroes(off, n, 0)
	case block.OpDiscard:
		return c.Trim(off, n, 0)
	case block.OpStatus:
		_, err := c.BlockStatus(off, n, 0)
		return err
	}
	return c.Pread(make([]byte, n), off, 0)
}

// No more than MaxInFlight requests of a connection run at once, the rest wait
// in the socket, and all are answered.
func TestMaxInFlight(t *testing.T) {
	for _, most := range []int{MinMaxInFlight, 5, 32} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			env := blocktest.NewEnv(t)
			em, child := emulated(t, env, blocktest.EmulatorConfig{Size: 8 * mib, Fast: true})
			r := newRig(t, env, Config{MaxInFlight: most}, Export{Child: child})
			c := r.dial(wire.ClientConfig{}, wire.ClientOptions{})
			stall := em.Stall(block.OpRead, 0, 8*mib, 0)
			var wg sync.WaitGroup
			for range 3 * most {
				wg.Go(func() {
					if err := c.Pread(make([]byte, 4096), 0, 0); err != nil {
						t.Error(err)
					}
				})
			}
			for range most {
				stall.Held()
			}
			time.Sleep(20 * time.Millisecond) // for one too many to show
			if n := r.Connections()[0].InFlight; n != most {
				t.Errorf("%d requests in flight, the limit is %d", n, most)
			}
			if n := em.Count(block.OpRead); n != most {
				t.Errorf("%d requests reached storage, the limit is %d", n, most)
			}
			stall.Release()
			wg.Wait()
			// Long requests, split in pieces, get by with as few places.
			b := pattern(5*mib+512, 1)
			if err := c.Pwrite(b, 512, 0); err != nil {
				t.Error(err)
			}
			got := make([]byte, len(b))
			if err := c.Pread(got, 512, 0); err != nil || !bytes.Equal(got, b) {
				t.Errorf("long read: %v, or other bytes", err)
			}
		})
	}
}

// A configuration one past a bound is refused, one at it is not.
func TestConfigBounds(t *testing.T) {
	env := blocktest.NewEnv(t)
	for _, tc := range []struct {
		cfg Config
		ok  bool
	}{
		{Config{}, true},
		{Config{MaxInFlight: MinMaxInFlight}, true},
		{Config{MaxInFlight: MinMaxInFlight - 1}, false},
		{Config{MaxInFlight: MaxMaxInFlight}, true},
		{Config{MaxInFlight: MaxMaxInFlight + 1}, false},
		{Config{MaxInFlightBytes: 1 << 20}, true},
		{Config{MaxInFlightBytes: 1<<20 - 1}, false},
		{Config{Memory: MinMemory}, true},
		{Config{Memory: MinMemory - 1}, false},
		{Config{MaxConns: NoLimit, HandshakeTimeout: NoLimit}, true},
		{Config{MaxConns: -2}, false},
		{Config{TLSMode: TLSRequired}, false},
	} {
		tc.cfg.Env = env
		s, err := New(tc.cfg)
		if (err == nil) != tc.ok {
			t.Errorf("%+v: %v", tc.cfg, err)
		}
		if s != nil {
			if err := s.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := New(Config{}); err == nil {
		t.Error("a server without an Env")
	}
}

// Shutdown answers what is in flight, refuses what comes later, and ends.
func TestShutdownAnswersWhatIsInFlight(t *testing.T) {
	for _, fast := range []bool{false, true} {
		t.Run(fmt.Sprintf("fast=%v", fast), func(t *testing.T) {
			env := blocktest.NewEnv(t)
			em, child := emulated(t, env, blocktest.EmulatorConfig{Size: 8 * mib, Fast: fast})
			r := newRig(t, env, Config{}, Export{Child: child})
			c := r.dial(wire.ClientConfig{}, wire.ClientOptions{})
			stall := em.Stall(block.OpWrite, 0, 0, 0)
			results := make(chan error, 8)
			for i := range cap(results) {
				go func() { results <- c.Pwrite(pattern(8192, byte(i)), uint64(i)*8192, 0) }()
			}
			for range cap(results) {
				stall.Held()
			}
			ended := make(chan error, 1)
			go func() { ended <- r.Shutdown(context.Background()) }()
			waitFor(t, "the connection to end", func() bool { return r.Connections()[0].Ending })
			stall.Release()
			for range cap(results) {
				if err := <-results; err != nil {
					t.Errorf("a request in flight: %v", err)
				}
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
			for i := range cap(results) {
				if !bytes.Equal(em.Content()[i*8192:(i+1)*8192], pattern(8192, byte(i))) {
					t.Errorf("write %d was lost", i)
				}
			}
			if err := c.Flush(); err == nil {
				t.Error("a request after the shutdown succeeded")
			}
		})
	}
}

// What has arrived and not begun when the server stops is answered ESHUTDOWN.
func TestRequestsAtShutdownAreRefused(t *testing.T) {
	env := blocktest.NewEnv(t)
	em, child := emulated(t, env, blocktest.EmulatorConfig{Size: 8 * mib})
	r := newRig(t, env, Config{MaxInFlight: MinMaxInFlight}, Export{Child: child})
	c := r.raw(wire.ClientConfig{})
	stall := em.Stall(block.OpRead, 0, 0, 0)
	var b []byte
	for i := range uint64(10) { // in one piece: they arrive together
		b = append(b, request(wire.CmdRead, 0, i, 0, 512)...)
	}
	c.send(b)
	for range MinMaxInFlight {
		stall.Held()
	}
	ended := make(chan error, 1)
	go func() { ended <- r.Shutdown(context.Background()) }()
	waitFor(t, "the connection to end", func() bool { return r.Connections()[0].Ending })
	stall.Release()
	var ok, refused int
	for range 10 {
		switch rep := c.simple(); rep.Errno {
		case 0:
			c.recv(512)
			ok++
		case wire.ESHUTDOWN:
			refused++
		default:
			t.Errorf("reply %+v", rep)
		}
	}
	if ok+refused != 10 || ok < MinMaxInFlight || ok > MinMaxInFlight+1 {
		t.Errorf("%d answered, %d refused", ok, refused)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A write whose data had not come in full when the server stopped is not
// answered as done.
func TestShutdownInTheMiddleOfALongWrite(t *testing.T) {
	for _, kind := range []string{"mem", "file"} {
		for _, m := range modes[:2] {
			t.Run(kind+"/"+m.name, func(t *testing.T) {
				env := blocktest.NewEnv(t)
				r := newRig(t, env, Config{}, Export{Child: disk(t, env, kind, 8*mib)})
				c := r.raw(m.cfg)
				c.send(request(wire.CmdWrite, 0, 1, 0, 3*mib))
				c.send(make([]byte, 5*mib/2))
				waitFor(t, "most of it to be taken", func() bool { return kind == "mem" || r.mem.held.Load() > 0 })
				shutdownWithin(t, r, time.Minute)
				b, err := io.ReadAll(c)
				if err != nil && !gone(err) {
					t.Fatal(err)
				}
				if len(b) == 0 {
					return
				}
				rep, _, err := wire.ParseReply(b, false)
				if err != nil || rep.Simple && rep.Errno == 0 || !rep.Simple && !rep.Type.IsError() {
					t.Errorf("reply %+v, %v", rep, err)
				}
			})
		}
	}
}

// A client that is sent away while it still sends gets all its answers, also
// over TCP, where closing at once would lose them.
func TestAnswersSurviveTheShutdown(t *testing.T) {
	env := blocktest.NewEnv(t)
	em, child := emulated(t, env, blocktest.EmulatorConfig{Size: 8 * mib, Fast: true})
	r := newRig(t, env, Config{MaxInFlight: 8, linger: 20 * time.Second}, Export{Child: child})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = r.Serve(l) }() // ends with the server
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := nc.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := wire.ClientHandshake(nc, wire.ClientConfig{}); err != nil {
		t.Fatal(err)
	}
	stall := em.Stall(block.OpRead, 0, 0, 8)
	go func() {
		for i := range uint64(8) {
			_, _ = nc.Write(request(wire.CmdRead, 0, i, 0, mib))
		}
		for i := uint64(8); ; i++ { // goes on until it is told that nobody listens
			if _, err := nc.Write(append(request(wire.CmdWrite, 0, i, 0, 65536), make([]byte, 65536)...)); err != nil {
				return
			}
		}
	}()
	for range 8 {
		stall.Held()
	}
	time.Sleep(20 * time.Millisecond) // for the socket to fill
	ended := make(chan error, 1)
	go func() { ended <- r.Shutdown(context.Background()) }()
	waitFor(t, "the connection to end", func() bool { return r.Connections()[0].Ending })
	stall.Release()
	for i := 0; i < 8; {
		rep, _, err := wire.ParseReply(readFull(t, nc, wire.SimpleReplyLen), false)
		if err != nil {
			t.Fatal(err)
		}
		if rep.Cookie < 8 {
			if rep.Errno != 0 {
				t.Fatalf("reply %+v", rep)
			}
			for range 16 { // slowly: much of it is on its way when the server is done
				readFull(t, nc, mib/16)
				time.Sleep(time.Millisecond)
			}
			i++
		}
	}
	nc.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func readFull(t *testing.T, r io.Reader, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		t.Fatal(err)
	}
	return b
}

// Storage that stalls does not keep a client connected past the deadline, but
// Shutdown says that the disk is in use still, and its buffers stay.
func TestShutdownWithStalledStorage(t *testing.T) {
	env := blocktest.NewEnv(t)
	em, child := emulated(t, env, blocktest.EmulatorConfig{Size: 8 * mib, Fast: true})
	r := newRig(t, env, Config{}, Export{Child: child})
	c := r.dial(wire.ClientConfig{}, wire.ClientOptions{})
	stall := em.Stall(block.OpRead, 0, 0, 0)
	result := make(chan error, 1)
	go func() { result <- c.Pread(make([]byte, 65536), 0, 0) }()
	stall.Held()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := r.Shutdown(ctx); err == nil {
		t.Error("the shutdown says that storage has finished")
	}
	if err := <-result; err == nil {
		t.Error("the read succeeded")
	}
	if n := r.mem.held.Load(); n < 65536 {
		t.Errorf("%d bytes are held while storage still writes to 65536", n)
	}
	stall.Release()
	waitFor(t, "the connection to be gone", func() bool { return len(r.Connections()) == 0 })
}

// An export that is removed disconnects its clients, and only them.
func TestRemoveExport(t *testing.T) {
	env := blocktest.NewEnv(t)
	em, child := emulated(t, env, blocktest.EmulatorConfig{Size: mib})
	r := newRig(t, env, Config{}, Export{Name: "a", Child: child}, Export{Name: "b", Child: disk(t, env, "mem", mib)})
	a := r.dial(wire.ClientConfig{Export: "a"}, wire.ClientOptions{})
	b := r.dial(wire.ClientConfig{Export: "b"}, wire.ClientOptions{})
	stall := em.Stall(block.OpRead, 0, 0, 1)
	result := make(chan error, 1)
	go func() { result <- a.Pread(make([]byte, 512), 0, 0) }()
	stall.Held()
	removed := make(chan error, 1)
	go func() { removed <- r.RemoveExport(context.Background(), "a") }()
	waitFor(t, "the connection to end", func() bool { return r.Connections()[0].Ending })
	stall.Release()
	if err := <-result; err != nil {
		t.Errorf("the request in flight: %v", err)
	}
	if err := <-removed; err != nil {
		t.Error(err)
	}
	if err := a.Flush(); err == nil {
		t.Error("the client of the removed export is still served")
	}
	if err := b.Flush(); err != nil {
		t.Errorf("the client of the other export: %v", err)
	}
	if _, err := wire.ClientHandshake(r.connect(), wire.ClientConfig{Export: "a"}); err == nil {
		t.Error("the removed export can be chosen")
	}
	if err := r.AddExport(Export{Name: "b", Child: child}); err == nil {
		t.Error("a second export of the same name")
	}
	if err := r.AddExport(Export{Name: "a", Child: child}); err != nil {
		t.Error(err)
	}
}

// A client that does not read does not hold up the shutdown past its deadline.
func TestShutdownWithClientThatDoesNotRead(t *testing.T) {
	for _, kind := range []string{"mem", "file"} {
		t.Run(kind, func(t *testing.T) {
			env := blocktest.NewEnv(t)
			r := newRig(t, env, Config{}, Export{Child: disk(t, env, kind, 64*mib)})
			c := r.raw(wire.ClientConfig{})
			for i := range uint64(8) {
				c.send(request(wire.CmdRead, 0, i, 0, 32*mib))
			}
			c.recv(1)
			shutdownWithin(t, r, 30*time.Millisecond)
			if _, err := c.Write(make([]byte, 28)); err == nil {
				waitFor(t, "the connection to be closed", func() bool { _, err := c.Write(make([]byte, 28)); return err != nil })
			}
		})
	}
}

func shutdownWithin(t *testing.T, r *rig, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	if err := r.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}

// Clients beyond the limit wait until another one leaves.
func TestMaxConns(t *testing.T) {
	env := blocktest.NewEnv(t)
	r := newRig(t, env, Config{MaxConns: 2}, Export{Child: disk(t, env, "mem", mib)})
	r.dial(wire.ClientConfig{}, wire.ClientOptions{})
	second := r.dial(wire.ClientConfig{}, wire.ClientOptions{})
	third := r.connect()
	if err := third.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := third.Read(make([]byte, 1)); n != 0 || !isTimeout(err) {
		t.Fatalf("a third client was greeted: %d bytes, %v", n, err)
	}
	if n := len(r.Connections()); n != 2 {
		t.Errorf("%d connections, the limit is 2", n)
	}
	if err := second.Disconnect(); err != nil {
		t.Fatal(err)
	}
	if err := third.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := wire.ClientHandshake(third, wire.ClientConfig{}); err != nil {
		t.Errorf("the third client, once there is room: %v", err)
	}
}

// A client that does not say what it wants is turned away in time.
func TestHandshakeTimeout(t *testing.T) {
	env := blocktest.NewEnv(t)
	const limit = 3 * time.Second // a handshake on a busy machine takes less
	r := newRig(t, env, Config{HandshakeTimeout: limit}, Export{Child: disk(t, env, "mem", mib)})
	c := r.dial(wire.ClientConfig{}, wire.ClientOptions{})
	slow := r.connect()
	if _, err := slow.Read(make([]byte, 18)); err != nil {
		t.Fatal(err)
	}
	if n, err := slow.Read(make([]byte, 1)); n != 0 || !gone(err) {
		t.Errorf("%d bytes, %v after the timeout", n, err)
	}
	if err := c.Flush(); err != nil { // it came before slow did
		t.Errorf("the timeout of the handshake ended a session: %v", err)
	}
}

func TestServeAfterShutdown(t *testing.T) {
	env := blocktest.NewEnv(t)
	r := newRig(t, env, Config{})
	if err := r.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := r.Shutdown(context.Background()); err != nil {
		t.Errorf("a second shutdown: %v", err)
	}
	l := &fakeListener{}
	if err := r.Serve(l); !errors.Is(err, ErrServerClosed) || l.closed == 0 {
		t.Errorf("Serve after the shutdown: %v, listener closed %d times", err, l.closed)
	}
	if err := r.AddExport(Export{Child: disk(t, env, "mem", mib)}); !errors.Is(err, ErrServerClosed) {
		t.Errorf("AddExport after the shutdown: %v", err)
	}
}
