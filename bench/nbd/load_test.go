package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/platter-storage/platter/bench/content"
	"github.com/platter-storage/platter/bench/process"
	"github.com/platter-storage/platter/wire/nbd"
)

// memoryServer is a small NBD server over a slice. It answers each request
// before it reads the next; change, if set, may spoil a reply.
type memoryServer struct {
	mu     sync.Mutex
	disk   []byte
	change func(rq nbd.Request, head, data []byte)
}

func (m *memoryServer) Find(string) (nbd.ExportInfo, bool) {
	return nbd.ExportInfo{Size: uint64(len(m.disk)), Flags: nbd.FlagHasFlags | nbd.FlagCanMultiConn}, true
}

func (m *memoryServer) List() []nbd.ExportInfo { return nil }

// listen serves connections until the test ends.
func (m *memoryServer) listen(t *testing.T) *server {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				if err := m.serve(conn); err != nil && !errors.Is(err, io.EOF) {
					t.Logf("server: %v", err) // the client's error is what is tested
				}
			})
		}
	})
	return &server{Process: &process.Process{Name: "memory", Socket: socket}}
}

func (m *memoryServer) serve(conn net.Conn) error {
	if _, err := nbd.ServerHandshake(conn, &nbd.ServerConfig{Exports: m}); err != nil {
		return err
	}
	var in [nbd.RequestLen]byte
	for {
		if _, err := io.ReadFull(conn, in[:]); err != nil {
			return err
		}
		rq, _, err := nbd.ParseRequest(in[:], false)
		if err != nil || rq.Type == nbd.CmdDisc {
			return err
		}
		data := make([]byte, rq.Length)
		if rq.Type == nbd.CmdWrite {
			if _, err := io.ReadFull(conn, data); err != nil {
				return err
			}
		}
		out := m.answer(rq, data)
		if _, err := conn.Write(out); err != nil {
			return err
		}
	}
}

func (m *memoryServer) answer(rq nbd.Request, data []byte) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	head := make([]byte, nbd.SimpleReplyLen)
	nbd.PutSimpleReply(head, &rq, 0)
	if rq.Type == nbd.CmdWrite {
		copy(m.disk[rq.Offset:], data)
		data = nil
	} else {
		copy(data, m.disk[rq.Offset:])
	}
	if m.change != nil {
		m.change(rq, head, data)
	}
	return append(head, data...)
}

func TestWritesArriveAndReadsAreChecked(t *testing.T) {
	m := &memoryServer{disk: make([]byte, 4*mib)}
	s := m.listen(t)
	if err := once(s, workload{write: true, block: 64 * kib, depth: 4, conns: 1}, content.Filled, forLong, 4*mib/(64*kib)); err != nil {
		t.Fatal(err)
	}
	want := make([]byte, len(m.disk))
	content.Filled(want, 0)
	if !bytes.Equal(m.disk, want) {
		t.Fatal("the disk does not hold what was written")
	}
	for _, w := range []workload{
		{random: true, block: 4 * kib, depth: 32, conns: 4},
		{block: mib, depth: 4, conns: 1},
		{random: true, block: 512, depth: 1, conns: 1},
	} {
		if err := once(s, w, content.Filled, forLong, 200); err != nil {
			t.Errorf("%+v: %v", w, err)
		}
	}
}

func TestRunCountsEveryRequest(t *testing.T) {
	m := &memoryServer{disk: make([]byte, mib)}
	f, err := dialAll(m.listen(t), workload{random: true, block: 4 * kib, depth: 8, conns: 3}, nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := f.run(forLong, 100)
	if err != nil {
		t.Fatal(err)
	}
	if l.ops != 300 || l.took <= 0 || l.lat.Percentile(50) <= 0 {
		t.Errorf("ops %d in %v, median %v; want 300 of 3 connections", l.ops, l.took, l.lat.Percentile(50))
	}
	if err := f.leave(); err != nil {
		t.Error(err)
	}
}

func TestEveryKindOfBadReplyIsAnError(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(rq nbd.Request, head, data []byte)
		want   string
	}{
		{"wrong byte", func(rq nbd.Request, _, data []byte) {
			if rq.Offset >= 512*kib {
				data[1000] ^= 1
			}
		}, "the byte at"},
		{"error", func(_ nbd.Request, head, _ []byte) { binary.BigEndian.PutUint32(head[4:], uint32(nbd.EIO)) }, "NBD_EIO"},
		{"unknown cookie", func(_ nbd.Request, head, _ []byte) { head[8] = 1 }, "are in flight"},
		{"chunk", func(_ nbd.Request, head, _ []byte) { binary.BigEndian.PutUint32(head, nbd.MagicStructuredReply) }, "simple replies"},
		{"garbage", func(_ nbd.Request, head, _ []byte) { head[0] = 0 }, "protocol violation"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &memoryServer{disk: make([]byte, mib)}
			content.Filled(m.disk, 0)
			m.change = c.change
			err := once(m.listen(t), workload{block: 4 * kib, depth: 4, conns: 1}, content.Filled, forLong, 256)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestDiskSmallerThanARequestIsRefused(t *testing.T) {
	m := &memoryServer{disk: make([]byte, 4*kib)}
	s := m.listen(t)
	if _, err := dial(s, workload{block: 8 * kib, depth: 1, conns: 1}, 1, nil); err == nil {
		t.Error("a disk smaller than one request was taken")
	}
	if err := once(s, workload{block: 4 * kib, depth: 2, conns: 1}, content.Zeroes, forLong, 3); err != nil {
		t.Errorf("a disk of one request: %v", err)
	}
}

func TestSteadyRunDoesNotAllocate(t *testing.T) {
	for _, write := range []bool{false, true} {
		l := &loader{
			w: workload{write: write, random: true, block: 4 * kib, depth: 8, conns: 1}, size: mib, rng: rand.NewPCG(1, 1),
			slots: make([]slot, 8), heads: make([]byte, 0, 8*nbd.RequestLen), pieces: make(net.Buffers, 0, 16),
			payload: make([]byte, 4*kib), in: make([]byte, readBuffer),
		}
		if n := testing.AllocsPerRun(100, func() {
			l.queue(0, time.Time{})
			l.heads, l.pieces = l.heads[:0], l.pieces[:0]
			rq := nbd.Request{Cookie: 0}
			l.have = nbd.PutSimpleReply(l.in, &rq, 0)
			if !write {
				l.have += 4 * kib
			}
			if err := l.replies(func(int) {}); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("write %v: %v allocations a request", write, n)
		}
	}
}
