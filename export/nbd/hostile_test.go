package nbd

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// bystander is a client that behaves, and checks that it is served whatever
// others do: short and long requests, many at a time, with their content.
func bystander(t *testing.T, c *wire.Client, rounds int) {
	t.Helper()
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() { bystanderAt(t, c, uint64(w)*4*mib, rounds) })
	}
	wg.Wait()
}

// bystanderAt is bystander on 4 MiB, one request at a time.
func bystanderAt(t *testing.T, c *wire.Client, at uint64, rounds int) {
	t.Helper()
	for i := range rounds {
		for _, n := range []int{4096, 131072, mib, 3*mib + 4096} {
			p, got := pattern(n, byte(i)+byte(at>>22)), make([]byte, n)
			if err := c.Pwrite(p, at, 0); err != nil {
				t.Error(err)
				return
			}
			if err := c.Pread(got, at, 0); err != nil || !bytes.Equal(got, p) {
				t.Errorf("read of %d: %v, or other bytes", n, err)
				return
			}
		}
	}
}

// Clients that announce long writes and stop in the middle, and clients that
// ask for long reads and read nothing, hold no more than the rule allows them,
// and others are served.
func TestStalledClientsHoldTheirShareOnly(t *testing.T) {
	const memory, stalled = 16 * mib, 30
	for _, kind := range []string{"mem", "cached", "direct", "emulator"} {
		t.Run(kind, func(t *testing.T) {
			env := blocktest.NewEnv(t)
			var child *block.Child
			switch kind {
			case "mem":
				child = disk(t, env, "mem", 64*mib)
			case "cached":
				child = disk(t, env, "file", 64*mib)
			case "direct":
				child = directFile(t, env, 64*mib)
			default:
				_, child = emulated(t, env, blocktest.EmulatorConfig{Size: 64 * mib, Fast: true})
			}
			r := newRig(t, env, Config{MaxConns: NoLimit, Memory: memory, MaxInFlightBytes: 8 * mib}, Export{Child: child})
			good := r.dial(wire.ClientConfig{WantStructured: true}, wire.ClientOptions{})
			plain := r.dial(wire.ClientConfig{}, wire.ClientOptions{})
			for i := range stalled {
				cfg := modes[i%2].cfg
				w := r.raw(cfg)
				w.send(request(wire.CmdWrite, 0, 1, 32*mib, 32*mib))
				sendSome(t, w.nc, 3*mib/2)
				rd := r.raw(cfg)
				for k := range uint64(200) {
					rd.send(request(wire.CmdRead, 0, k, 32*mib, 32*mib))
				}
			}
			waitFor(t, "the clients to stall", func() bool { return r.steady() })
			held, most := r.mem.held.Load(), int64(0)
			for _, c := range r.Connections() {
				most = max(most, c.Held)
			}
			t.Logf("%d bytes of %d are held, %d by one", held, memory, most)
			if held > memory-memory/(2*stalled+1) || most > memory/2 {
				t.Errorf("%d bytes of %d are held, %d by one client", held, memory, most)
			}
			if n := env.Buffers.Stats().InUse; n != 0 {
				t.Errorf("%d bytes of the disks' bounce buffers are held", n)
			}
			bystander(t, good, 1)
			bystander(t, plain, 1)
			// Nor is the disk held: it can be drained while they stall.
			drained := make(chan struct{})
			go func() {
				cl := blocktest.NewClient(t, child)
				rq := cl.Queue.Begin()
				child.Instance().Drain(rq)
				child.Instance().Undrain()
				cl.Queue.End(rq, block.OpFlush, 0, nil)
				close(drained)
			}()
			select {
			case <-drained:
			case <-time.After(time.Minute):
				t.Error("the disk cannot be drained while clients stall")
			}
		})
	}
}

// steady says whether what is held has stopped changing.
func (r *rig) steady() bool {
	before := r.mem.held.Load()
	for range 10 {
		time.Sleep(5 * time.Millisecond)
		if r.mem.held.Load() != before {
			return false
		}
	}
	return true
}

// sendSome sends n bytes, or as many as the server takes in a while.
func sendSome(t *testing.T, nc net.Conn, n int) {
	t.Helper()
	if err := nc.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Write(make([]byte, n)); err != nil && !isTimeout(err) {
		t.Fatal(err)
	}
	if err := nc.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
}

// A client that disappears at any point leaves nothing behind, and what it had
// not sent in full is not written; of what is long, a disk in memory may have
// what came.
func TestClientDisappears(t *testing.T) {
	for _, kind := range []string{"mem", "file"} {
		for _, n := range []int{512, 16 << 10, 100000, mib, 3 * mib} {
			t.Run(fmt.Sprintf("%s/%d", kind, n), func(t *testing.T) {
				env := blocktest.NewEnv(t)
				r := newRig(t, env, Config{}, Export{Child: disk(t, env, kind, 8*mib)})
				head := request(wire.CmdWrite, 0, 1, 0, uint64(n))
				data := bytes.Repeat([]byte{0xEE}, n)
				for _, cut := range []int{10, len(head), len(head) + 1, len(head) + min(n/2, mib-1), len(head) + min(n, mib) - 1} {
					c := r.raw(wire.ClientConfig{})
					c.send(append(head[:len(head):len(head)], data...)[:cut])
					c.nc.Close()
				}
				// Requests whose answers nobody reads.
				c := r.raw(wire.ClientConfig{})
				for i := range uint64(20) {
					c.send(request(wire.CmdRead, 0, i, 0, uint64(n)))
				}
				c.nc.Close()
				waitFor(t, "the connections to be gone", func() bool { return len(r.Connections()) == 0 })
				good := r.dial(wire.ClientConfig{}, wire.ClientOptions{})
				got := make([]byte, min(n, mib))
				if err := good.Pread(got, 0, 0); err != nil {
					t.Fatal(err)
				}
				came := 0
				if kind == "mem" && n > maxBuffered {
					came = min(n, mib) - 1
				}
				if bytes.Contains(bytes.TrimLeft(got[:came], "\xEE"), []byte{0xEE}) || bytes.Contains(got[came:], []byte{0xEE}) {
					t.Error("what has not come was written, or was begun before its data had come")
				}
			})
		}
	}
}

// A client that says goodbye, or only stops sending, gets its answers first.
func TestAnswersBeforeTheEnd(t *testing.T) {
	for _, kind := range []string{"mem", "file"} {
		for _, polite := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/polite=%v", kind, polite), func(t *testing.T) {
				env := blocktest.NewEnv(t)
				r := newRig(t, env, Config{}, Export{Child: disk(t, env, kind, 8*mib)})
				c := r.raw(wire.ClientConfig{})
				var b []byte
				for i := range uint64(10) {
					b = append(b, request(wire.CmdRead, 0, i, 0, 100000)...)
				}
				if polite {
					b = append(b, request(wire.CmdDisc, 0, 99, 0, 0)...)
				}
				c.send(b)
				if !polite {
					if err := c.nc.(*net.UnixConn).CloseWrite(); err != nil {
						t.Fatal(err)
					}
				}
				for range 10 {
					if rep := c.simple(); rep.Errno != 0 {
						t.Errorf("reply %+v", rep)
					}
					c.recv(100000)
				}
				if n, err := c.Read(make([]byte, 1)); n != 0 || !gone(err) {
					t.Errorf("%d bytes, %v at the end", n, err)
				}
			})
		}
	}
}

// Other replies do not get into the middle of a long one, however slowly the
// client takes it and whether or not the disk lets it be mapped to the end.
func TestNothingGetsIntoALongReply(t *testing.T) {
	for _, memory := range []int64{MinMemory, DefaultMemory} {
		t.Run(fmt.Sprint(memory), func(t *testing.T) {
			env := blocktest.NewEnv(t)
			var n atomic.Uint64
			env.FastLane = func() bool { return n.Add(1)%3 != 0 }
			r := newRig(t, env, Config{Memory: memory}, Export{Child: disk(t, env, "mem", 64*mib)})
			want := pattern(16*mib, 5)
			if err := r.dial(wire.ClientConfig{}, wire.ClientOptions{}).Pwrite(want, 0, 0); err != nil {
				t.Fatal(err)
			}
			c := r.raw(wire.ClientConfig{})
			const rounds, others = 5, 6
			for i := range uint64(rounds) {
				var b []byte
				for k := range uint64(others) { // long enough for workers
					b = append(b, request(wire.CmdWriteZeroes, 0, 1000+k, 32*mib+2*mib*k, 2*mib)...)
				}
				c.send(append(b, request(wire.CmdRead, 0, i, 0, 16*mib)...))
				for range others + 1 {
					time.Sleep(time.Millisecond)
					rep := c.simple()
					if rep.Errno != 0 {
						t.Fatalf("reply %+v", rep)
					}
					if rep.Cookie < 1000 && !bytes.Equal(c.recv(16*mib), want) {
						t.Fatal("the reply has other bytes")
					}
				}
			}
		})
	}
}

// A flood of requests that are refused is answered, and fills neither memory
// nor the log.
func TestFloodOfNonsense(t *testing.T) {
	env := blocktest.NewEnv(t)
	em, child := emulated(t, env, blocktest.EmulatorConfig{Size: mib})
	fail(em, block.OpRead, 0, mib, fmt.Errorf("broken"))
	r := newRig(t, env, Config{}, Export{Child: child})
	c := r.raw(wire.ClientConfig{WantStructured: true})
	const n = 3000
	go func() {
		for i := range uint64(n) {
			b := request(wire.CmdRead, 0, i, 1<<50, 4096) // beyond the end
			if i%2 == 1 {
				b = request(wire.CmdRead, 0, i, 0, 4096) // fails
			}
			if _, err := c.Write(b); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	seen := map[uint64]bool{}
	for range n {
		h := c.recv(wire.ChunkLen)
		rep, _, err := wire.ParseReply(h, false)
		if err != nil {
			t.Fatal(err)
		}
		if seen[rep.Cookie] || !rep.Type.IsError() || !rep.Done() {
			t.Fatalf("reply %+v", rep)
		}
		seen[rep.Cookie] = true
		c.recv(int(rep.Length))
	}
	if lines := strings.Count(r.log.String(), "request failed"); lines < logBurst || lines > 3*logBurst {
		t.Errorf("%d lines about %d failed requests", lines, n/2)
	}
}
