package nbd

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// pipes is how many ends of pipes this process has open.
func pipes(t *testing.T) (n int) {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if to, err := os.Readlink("/proc/self/fd/" + name.Name()); err == nil && strings.HasPrefix(to, "pipe:") {
			n++
		}
	}
	return n
}

// Long reads of a file in the page cache go through a pipe, at every offset and
// length and with every kind of reply, and have the file's bytes; the pipe ends
// with the connection.
func TestReadsFromThePageCache(t *testing.T) {
	const size = 8 << 20
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			env := blocktest.NewEnv(t)
			r := newRig(t, env, Config{patient: true}, Export{Child: disk(t, env, "file", size)})
			before := pipes(t)
			c := r.dial(m.cfg, wire.ClientOptions{})
			want := pattern(size, 3)
			copy(want[5<<20:], make([]byte, 1<<20)) // zeroes that are stored
			if err := c.Pwrite(want, 0, 0); err != nil {
				t.Fatal(err)
			}
			rng := rand.New(rand.NewPCG(1, 1))
			spliced, expect := r.connsOf()[0], int64(0)
			for range 200 {
				n := 1 + rng.IntN(2<<20)
				off := rng.IntN(size - n)
				got := make([]byte, n)
				fl := wire.CmdFlags(0)
				if rng.IntN(2) == 0 && m.name != "simple" {
					fl, n = wire.CmdFlagDF, min(n, 1<<20)
					got = got[:n]
				}
				if n >= minSpliced && n < 1<<20-4096 {
					expect++
				}
				if err := c.Pread(got, uint64(off), fl); err != nil || !bytes.Equal(got, want[off:off+n]) {
					t.Fatalf("%d bytes at %d: other bytes (%v)", n, off, err)
				}
			}
			if n := spliced.pipe.reads.Load(); n < expect || expect < 50 {
				t.Errorf("%d reads went through the pipe, %d should have", n, expect)
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			waitFor(t, "the pipe to end", func() bool { return pipes(t) == before })
		})
	}
}

// Holes are not sent where the client knows of chunks.
func TestHolesAreNotSpliced(t *testing.T) {
	env := blocktest.NewEnv(t)
	r := newRig(t, env, Config{}, Export{Child: disk(t, env, "file", 8<<20)})
	c := r.raw(wire.ClientConfig{WantStructured: true})
	c.send(request(wire.CmdRead, 0, 1, 0, 1<<20))
	if shape, data := c.chunks(0, 1<<20); strings.Contains(shape, "data") || !bytes.Equal(data, make([]byte, 1<<20)) {
		t.Errorf("a hole came as %s", shape)
	}
}

// A file that others cut: the read is answered as one that failed, or with
// zeroes, and the connection goes on.
func TestShortFileIsNotSpliced(t *testing.T) {
	env := blocktest.NewEnv(t)
	child := disk(t, env, "file", 8<<20)
	r := newRig(t, env, Config{patient: true}, Export{Child: child})
	c := r.dial(wire.ClientConfig{}, wire.ClientOptions{})
	if err := c.Pwrite(pattern(8<<20, 1), 0, 0); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 1<<20)
	if err := c.Pread(got, 0, 0); err != nil {
		t.Fatal(err)
	}
	if n := r.connsOf()[0].pipe.reads.Load(); n != 1 {
		t.Errorf("%d reads went through the pipe", n)
	}
	if err := os.Truncate(child.Info().Filename, 1<<20+5000); err != nil {
		t.Fatal(err)
	}
	err := c.Pread(got, 1<<20, 0)
	if err == nil && !bytes.Equal(got[5000:], make([]byte, 1<<20-5000)) {
		t.Error("behind the end of the file bytes were read that are not zeroes")
	}
	if err := c.Pread(got, 0, 0); err != nil || !bytes.Equal(got, pattern(8<<20, 1)[:1<<20]) {
		t.Errorf("the next read: %v", err)
	}
}

// A client that does not take what it asked for keeps nothing at the disk: the
// size can be changed, for which all requests must have ended.
func TestSplicedReadsWaitForNobody(t *testing.T) {
	env := blocktest.NewEnv(t)
	child := disk(t, env, "file", 8<<20)
	r := newRig(t, env, Config{patient: true}, Export{Child: child})
	if err := r.dial(wire.ClientConfig{}, wire.ClientOptions{}).Pwrite(pattern(8<<20, 1), 0, 0); err != nil {
		t.Fatal(err)
	}
	before := pipes(t)
	c := r.raw(wire.ClientConfig{})
	for i := range 16 {
		c.send(request(wire.CmdRead, 0, uint64(i), uint64(i%8)<<20, 1<<20))
	}
	waitFor(t, "a read to be under way", func() bool { return pipes(t) == before+2 })
	q := block.NewQueue(env, block.NewQueueGroup())
	defer q.Close()
	rq := q.Begin()
	err := child.Pwritev(rq, 0, block.Vec{pattern(1<<20, 9)}, block.Serialising)
	q.End(rq, block.OpWrite, 1<<20, err)
	if err != nil {
		t.Fatal(err)
	}
	for range 16 {
		if _, err := io.CopyN(io.Discard, c, wire.SimpleReplyLen+1<<20); err != nil {
			t.Fatal(err)
		}
	}
}

// In one batch a read is taken to be submitted with others and the next one
// could be spliced, while a writer wants the disk for itself: nobody waits for
// ever.
func TestSplicedAndSubmittedReads(t *testing.T) {
	env := blocktest.NewEnv(t)
	child := disk(t, env, "file", 8<<20)
	r := newRig(t, env, Config{}, Export{Child: child})
	if err := r.dial(wire.ClientConfig{}, wire.ClientOptions{}).Pwrite(pattern(8<<20, 1), 0, 0); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		q := block.NewQueue(env, block.NewQueueGroup())
		defer q.Close()
		for {
			select {
			case <-stop:
				return
			default:
			}
			rq := q.Begin()
			err := child.Pwritev(rq, 0, block.Vec{make([]byte, 512)}, block.Serialising)
			q.End(rq, block.OpWrite, 512, err)
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	defer wg.Wait()
	defer close(stop)
	c := r.raw(wire.ClientConfig{WantStructured: true})
	var batch []byte
	for i := range uint64(40) {
		n := uint64(4096)
		if i%2 == 1 {
			n = 128 << 10
		}
		batch = append(batch, request(wire.CmdRead, 0, i, 0, n)...)
	}
	for range 50 {
		if _, err := c.Write(batch); err != nil {
			t.Fatal(err)
		}
		for left := 20*4096 + 20*(128<<10); left > 0; {
			rep, _, err := wire.ParseReply(c.recv(wire.ChunkLen), false)
			if err != nil || rep.Type.IsError() {
				t.Fatalf("reply %+v, %v", rep, err)
			}
			c.recv(int(rep.Length))
			left -= int(rep.Length) - 8
		}
	}
}
