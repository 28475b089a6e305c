package nbd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// kinds are the three forms of headers.
var kinds = []struct {
	name string
	cc   ClientConfig
}{
	{"simple", ClientConfig{}},
	{"structured", ClientConfig{WantStructured: true, Contexts: []string{ContextAllocation, ContextDepth}}},
	{"extended", ClientConfig{WantExtended: true, Contexts: []string{ContextAllocation, ContextDepth}}},
}

// Many callers at once, each in a part of the disk of its own, in every form
// of header and reply: what is written is read.
func TestClientReadsWhatItWrote(t *testing.T) {
	for _, k := range kinds {
		for _, m := range []*memServer{{}, {pieces: 512}, {pieces: 700, reverse: true}} {
			for _, encrypted := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/pieces=%d,reverse=%v,tls=%v", k.name, m.pieces, m.reverse, encrypted), func(t *testing.T) {
					const workers, part = 8, 128 << 10
					srv := &memServer{data: make([]byte, workers*part), pieces: m.pieces, reverse: m.reverse}
					cc, sc := k.cc, ServerConfig{}
					if encrypted {
						cc.TLS, cc.StartTLS = TLSRequired, startClientTLS(clientTLSConfig())
						sc.TLS, sc.StartTLS = TLSRequired, serverTLS
					}
					t.Cleanup(func() { // once the server has ended
						if srv.counts[CmdDisc] != 1 {
							t.Errorf("%d disconnects", srv.counts[CmdDisc])
						}
					})
					client, server := unixPair(t)
					c := connected(t, srv, client, server, cc, sc, ClientOptions{InFlight: 5})
					var wg sync.WaitGroup
					for w := range workers {
						wg.Go(func() { work(t, c, uint64(w), part) })
					}
					wg.Wait()
					if err := c.Disconnect(); err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}

// work writes and reads at random in one part of the disk, beside a model.
func work(t *testing.T, c *Client, part, size uint64) {
	r := rand.New(rand.NewPCG(part, 1))
	model := make([]byte, size)
	base := part * size
	for i := range 60 {
		off := r.Uint64N(size)
		n := min(1+r.Uint64N(3<<(r.Uint64N(15))), size-off)
		var err error
		switch i % 5 {
		case 0, 1:
			for j := range n {
				model[off+j] = byte(r.Uint32N(3)) // with some zeroes
			}
			err = c.Pwritev(cutUp(r, model[off:off+n]), base+off, 0)
		case 2:
			clear(model[off : off+n])
			err = c.WriteZeroes(base+off, n, CmdFlagFUA)
		default:
			got := bytes.Repeat([]byte{0xdd}, int(n))
			if i%2 == 0 {
				err = c.Pread(got, base+off, 0)
			} else {
				err = c.Preadv(cutUp(r, got), base+off, 0)
			}
			if !bytes.Equal(got, model[off:off+n]) {
				t.Errorf("read at %d length %d differs", base+off, n)
				return
			}
		}
		if err != nil {
			t.Error(err)
			return
		}
	}
}

// cutUp is b as a vector, some elements empty.
func cutUp(r *rand.Rand, b []byte) [][]byte {
	v := [][]byte{{}}
	for len(b) > 0 {
		n := 1 + r.IntN(len(b))
		v, b = append(v, b[:n], nil), b[n:]
	}
	return v
}

func TestClientCommands(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			srv := &memServer{data: bytes.Repeat([]byte{7}, 1<<20)}
			client, server := pipePair(t)
			c := connected(t, srv, client, server, k.cc, ServerConfig{}, ClientOptions{})
			if c.Size() != 1<<20 || c.Session().Export.Name != "mem" {
				t.Errorf("session %+v", c.Session())
			}
			buf := make([]byte, 8)
			for i, err := range []error{
				c.Flush(), c.Trim(4096, 512, CmdFlagFUA), c.Cache(0, 1<<20),
				c.WriteZeroes(0, 512, CmdFlagNoHole|CmdFlagFastZero), c.Pwrite([]byte{1}, 0, CmdFlagFUA), c.Pread(buf, 0, 0),
			} {
				if err != nil {
					t.Errorf("%d: %v", i, err)
				}
			}
			if !bytes.Equal(buf, []byte{1, 0, 0, 0, 0, 0, 0, 0}) || srv.data[4096] != 0 || srv.data[4095] != 7 || srv.data[4608] != 7 {
				t.Errorf("data is % x", buf)
			}
			want := CmdFlagFUA | CmdFlagNoHole | CmdFlagFastZero
			if k.name == "extended" {
				want |= CmdFlagPayloadLen
			}
			if srv.flags != want {
				t.Errorf("flags %#x, want %#x", srv.flags, want)
			}
			if d := cmp.Diff(map[Cmd]int{CmdFlush: 1, CmdTrim: 1, CmdCache: 1, CmdWriteZeroes: 1, CmdWrite: 1, CmdRead: 1}, srv.counts); d != "" {
				t.Error(d)
			}
			df := c.Pread(buf, 0, CmdFlagDF)
			if (df == nil) != (k.name != "simple") {
				t.Errorf("read that must not be split: %v", df)
			}
		})
	}
}

func TestClientBlockStatus(t *testing.T) {
	alloc, depth := MetaContext{0, ContextAllocation}, MetaContext{1, ContextDepth}
	for _, k := range kinds[1:] {
		t.Run(k.name, func(t *testing.T) {
			srv := &memServer{data: make([]byte, 1<<20), statusLen: 64 << 10}
			client, server := pipePair(t)
			c := connected(t, srv, client, server, k.cc, ServerConfig{}, ClientOptions{})
			st, err := c.BlockStatus(0, 100<<10, 0)
			want := []Status{{alloc, []Extent{{64 << 10, 0}, {64 << 10, 0}}}, {depth, []Extent{{64 << 10, 1}, {64 << 10, 1}}}}
			if d := cmp.Diff(want, st); d != "" || err != nil {
				t.Errorf("%v %s", err, d)
			}
			st, err = c.BlockStatus(512, 4096, CmdFlagReqOne)
			want = []Status{{alloc, []Extent{{4096, 0}}}, {depth, []Extent{{4096, 1}}}}
			if d := cmp.Diff(want, st); d != "" || err != nil {
				t.Errorf("%v %s", err, d)
			}
			// the last extent ends with the export at the latest
			st, err = c.BlockStatus(1<<20-512, 512, 0)
			if err != nil || st[0].Extents[0].Length != 512 {
				t.Errorf("%v %v", st, err)
			}
			st, err = c.BlockStatus(0, 512, CmdFlagReqOne, depth.ID)
			if k.name == "structured" {
				if ErrnoOf(err) != EINVAL {
					t.Errorf("%v %v", st, err)
				}
			} else if d := cmp.Diff([]Status{{depth, []Extent{{512, 1}}}}, st); d != "" || err != nil {
				t.Errorf("%v %s", err, d)
			}
		})
	}
	client, server := pipePair(t)
	c := connected(t, &memServer{data: make([]byte, 4096)}, client, server, ClientConfig{WantExtended: true}, ServerConfig{}, ClientOptions{})
	if _, err := c.BlockStatus(0, 512, 0); ErrnoOf(err) != EINVAL {
		t.Errorf("without contexts: %v", err)
	}
}

// What the server says of a failure reaches the caller.
func TestClientErrors(t *testing.T) {
	for _, k := range kinds {
		for _, pieces := range []int{0, 512} {
			srv := &memServer{data: make([]byte, 1<<20), fail: ENOSPC, pieces: pieces}
			client, server := pipePair(t)
			c := connected(t, srv, client, server, k.cc, ServerConfig{}, ClientOptions{InFlight: 1})
			for _, err := range []error{c.Pwrite(make([]byte, 512), 1024, 0), c.Pread(make([]byte, 512), 1024, 0), c.Trim(1024, 512, 0)} {
				var ce *CommandError
				if !errors.As(err, &ce) || !errors.Is(err, syscall.ENOSPC) || ErrnoOf(err) != ENOSPC || ce.Offset != 1024 || ce.Length != 512 || ce.Local {
					t.Fatalf("%s: %v", k.name, err)
				}
				if structured := k.name != "simple"; structured != (ce.Message == "no luck") || ce.HasErrOffset != (structured && pieces > 0) || ce.HasErrOffset && ce.ErrOffset != 1024 {
					t.Errorf("%s: %+v", k.name, ce)
				}
			}
			srv.mu.Lock()
			srv.fail = 0
			srv.mu.Unlock()
			if err := c.Pread(make([]byte, 512), 0, 0); err != nil {
				t.Errorf("%s: after an error: %v", k.name, err)
			}
		}
	}
}

// What the server did not allow stays here, unless it is wanted.
func TestClientChecks(t *testing.T) {
	srv := &memServer{data: make([]byte, 1<<20)}
	ro := ServerConfig{Exports: disks{{Name: "mem", Size: 1 << 20, Flags: FlagReadOnly | FlagSendFlush, MinBlock: 512}}}
	try := func(c *Client, p []byte) map[string]error {
		return map[string]error{
			"write":        c.Pwrite(p, 0, 0),
			"trim":         c.Trim(0, 512, 0),
			"past the end": c.Pread(p, 1<<20-256, 0),
			"unaligned":    c.Pread(p, 256, 0),
			"too long":     c.Pread(make([]byte, MaxPayload+512), 0, 0),
			"flag":         c.Pread(p, 0, CmdFlagFUA),
			"nothing":      c.Pread(nil, 0, 0),
			"64 bits":      c.Trim(0, 1<<32, 0),
		}
	}
	client, server := pipePair(t)
	c := connected(t, srv, client, server, ClientConfig{}, ro, ClientOptions{})
	for name, err := range try(c, make([]byte, 512)) {
		var ce *CommandError
		if !errors.As(err, &ce) || !ce.Local {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(srv.counts) != 0 {
		t.Errorf("sent: %v", srv.counts)
	}
	client, server = pipePair(t)
	c = connected(t, srv, client, server, ClientConfig{}, ro, ClientOptions{Unchecked: true})
	for name, err := range try(c, make([]byte, 512)) {
		var ce *CommandError
		if !errors.As(err, &ce) || ce.Local != (name == "64 bits") {
			t.Errorf("unchecked, %s: %v", name, err)
		}
	}
	if srv.counts[CmdRead] != 5 || srv.counts[CmdWrite] != 1 || srv.counts[CmdTrim] != 1 {
		t.Errorf("sent: %v", srv.counts)
	}
}

// manual is a client whose server is the test.
func manual(t *testing.T, cc ClientConfig) (*Client, *Session) {
	t.Helper()
	client, server := unixPair(t)
	exports := disks{{Name: "mem", Size: 1 << 20, Flags: allFlags, Contexts: []string{ContextAllocation, ContextDepth}}}
	cs, ss, cerr, serr := shake(t, client, server, cc, ServerConfig{Exports: exports})
	if cerr != nil || serr != nil {
		t.Fatalf("client %v, server %v", cerr, serr)
	}
	c, err := NewClient(cs, ClientOptions{InFlight: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, ss
}

// next reads one request.
func next(t *testing.T, s *Session) *Request {
	t.Helper()
	_, n, _ := ParseRequest(nil, s.Extended)
	b := make([]byte, n)
	if _, err := io.ReadFull(s.Conn, b); err != nil {
		t.Fatal(err)
	}
	rq, _, err := ParseRequest(b, s.Extended)
	if err != nil {
		t.Fatal(err)
	}
	return &rq
}

// Servers that break the protocol in the transmission phase: the request fails
// and the connection is given up.
func TestClientDistrustsReplies(t *testing.T) {
	type reply = func(b []byte, rq *Request, x bool) int
	data := func(fl ReplyFlags, off uint64, n uint32) reply {
		return func(b []byte, rq *Request, x bool) int { return PutChunkData(b, rq, x, fl, off, n) + int(n) }
	}
	hole := func(fl ReplyFlags, off uint64, n uint32) reply {
		return func(b []byte, rq *Request, x bool) int { return PutChunkHole(b, rq, x, fl, off, n) }
	}
	status := func(fl ReplyFlags, id uint32, exts ...Extent) reply {
		return func(b []byte, rq *Request, x bool) int { return PutChunkBlockStatus(b, rq, x, fl, id, exts) }
	}
	chunk := func(fl ReplyFlags, typ ReplyType, announced uint64, sent int) reply {
		return func(b []byte, rq *Request, x bool) int { return putChunk(b, rq, x, fl, typ, announced) + sent }
	}
	none := func(b []byte, rq *Request, x bool) int { return PutChunkNone(b, rq, x) }
	simple := func(b []byte, rq *Request, x bool) int { return PutSimpleReply(b, rq, 0) }
	other := func(r reply, change func(rq *Request)) reply {
		return func(b []byte, rq *Request, x bool) int {
			rq2 := *rq
			change(&rq2)
			return r(b, &rq2, x)
		}
	}
	read := func(c *Client) error { return c.Pread(make([]byte, 1024), 4096, 0) }
	flush := func(c *Client) error { return c.Flush() }
	readDF := func(c *Client) error { return c.Pread(make([]byte, 1024), 4096, CmdFlagDF) }
	stat := func(c *Client) error { _, err := c.BlockStatus(4096, 1024, 0); return err }
	statOne := func(c *Client) error { _, err := c.BlockStatus(4096, 1024, CmdFlagReqOne); return err }
	for _, tt := range []struct {
		name    string
		kinds   string // letters of kinds
		do      func(*Client) error
		replies []reply
		text    string
	}{
		{"cookie of no request", "bc", read, []reply{other(none, func(rq *Request) { rq.Cookie++ })}, "no request in flight"},
		{"cookie of an earlier request", "bc", read, []reply{other(none, func(rq *Request) { rq.Cookie -= 1 << 32 })}, "no request in flight"},
		{"cookie 0", "abc", flush, []reply{other(none, func(rq *Request) { rq.Cookie = 0 })}, "no request in flight"},
		{"chunk, not negotiated", "a", flush, []reply{none}, "not negotiated"},
		{"simple reply to a structured read", "b", read, []reply{simple}, "simple reply to a read"},
		{"simple reply among extended ones", "c", flush, []reply{func(b []byte, rq *Request, x bool) int { return simple(b, rq, x) + 16 }}, "out of step"},
		{"structured reply among extended ones", "c", flush, []reply{func(b []byte, rq *Request, x bool) int { return PutChunkNone(b, rq, false) + 12 }}, "out of step"},
		{"offset of another request", "c", read, []reply{other(none, func(rq *Request) { rq.Offset++ })}, "says offset"},
		{"success without data", "bc", read, []reply{none}, "without all the data"},
		{"half the data", "bc", read, []reply{data(ReplyFlagDone, 4096, 512)}, "without all the data"},
		{"a gap", "bc", read, []reply{data(0, 4096, 500), data(ReplyFlagDone, 4608, 512)}, "without all the data"},
		{"overlap that counts up", "bc", read, []reply{data(0, 4096, 512), hole(0, 4096, 512), none}, "overlaps"},
		{"data before the range", "bc", read, []reply{data(0, 4095, 512)}, "content at 4095"},
		{"data after the range", "bc", read, []reply{data(0, 5000, 512)}, "content at 5000"},
		{"data longer than the range", "bc", read, []reply{data(0, 4096, 1025)}, "length 1025"},
		{"hole longer than the range", "bc", read, []reply{hole(0, 4096, 1<<32-1)}, "length 4294967295"},
		{"data that overflows", "bc", read, []reply{data(0, 1<<64-1, 512)}, "content at"},
		{"data chunk without data", "bc", read, []reply{chunk(0, ReplyOffsetData, 8, 8)}, "no data"},
		{"giant data chunk", "bc", read, []reply{chunk(0, ReplyOffsetData, 1<<32-1, 8)}, "length"},
		{"hole of another length", "bc", read, []reply{chunk(0, ReplyOffsetHole, 13, 13)}, "it has 12"},
		{"two chunks in spite of DF", "bc", readDF, []reply{data(0, 4096, 512), data(ReplyFlagDone, 4608, 512)}, "must not be split"},
		{"NONE that is not the end", "bc", flush, []reply{chunk(0, ReplyNone, 0, 0)}, "NONE"},
		{"NONE with payload", "bc", flush, []reply{chunk(ReplyFlagDone, ReplyNone, 1, 1)}, "NONE"},
		{"unknown chunk", "bc", flush, []reply{chunk(ReplyFlagDone, 77, 0, 0)}, "0x4d"},
		{"data in reply to a flush", "bc", flush, []reply{data(ReplyFlagDone, 0, 512)}, "in reply to a flush"},
		{"status in reply to a read", "b", read, []reply{status(ReplyFlagDone, 0, Extent{512, 0})}, "in reply to a read"},
		{"compact status among extended ones", "c", stat, []reply{chunk(0, ReplyBlockStatus, 12, 12)}, "BLOCK_STATUS chunk"},
		{"extended status among compact ones", "b", stat, []reply{chunk(0, ReplyBlockStatusExt, 24, 24)}, "BLOCK_STATUS_EXT chunk"},
		{"error 0", "bc", flush, []reply{chunk(ReplyFlagDone, ReplyError, 6, 6)}, "error is 0"},
		{"giant error", "bc", flush, []reply{chunk(ReplyFlagDone, ReplyError, 1<<32-1, 6)}, "limit"},
		{"error outside the range", "bc", read, []reply{func(b []byte, rq *Request, x bool) int {
			return PutChunkErrorOffset(b, rq, x, ReplyFlagDone, EIO, "", 5120)
		}}, "error at 5120"},
		{"status without contexts", "bc", stat, []reply{none}, "after 0 of 2 contexts"},
		{"status of one context", "bc", stat, []reply{status(ReplyFlagDone, 1, Extent{512, 0})}, "after 1 of 2 contexts"},
		{"status of an unknown context", "bc", stat, []reply{status(0, 2, Extent{512, 0})}, "not asked for"},
		{"status of a context twice", "bc", stat, []reply{status(0, 1, Extent{512, 0}), status(0, 1, Extent{512, 0})}, "twice"},
		{"status that goes on", "bc", stat, []reply{status(0, 1, Extent{1024, 0}, Extent{512, 0})}, "goes on"},
		{"status of several extents where one was asked for", "bc", statOne, []reply{status(0, 1, Extent{512, 0}, Extent{512, 0})}, "one of up to"},
		{"status longer than asked for", "bc", statOne, []reply{status(0, 1, Extent{1025, 0})}, "one of up to"},
		{"giant status", "bc", stat, []reply{chunk(0, ReplyBlockStatus, 1<<32-1, 0)}, "chunk"},
		{"simple success for a status", "b", stat, []reply{simple}, "simple reply to a block status"},
	} {
		for i, k := range kinds {
			if !strings.Contains(tt.kinds, string(rune('a'+i))) {
				continue
			}
			t.Run(tt.name+"/"+k.name, func(t *testing.T) {
				c, s := manual(t, k.cc)
				result := make(chan error, 1)
				go func() { result <- tt.do(c) }()
				rq := next(t, s)
				b := make([]byte, 4096)
				for _, r := range tt.replies {
					if _, err := s.Conn.Write(b[:r(b, rq, s.Extended)]); err != nil {
						break // the client has had enough
					}
					clear(b)
				}
				err := <-result
				var ce *ConnError
				if !errors.As(err, &ce) || !errors.Is(err, ErrProtocol) || !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("error %v", err)
				}
				if err := c.Flush(); !errors.Is(err, ErrProtocol) {
					t.Errorf("afterwards: %v", err)
				}
			})
		}
	}
}

// Errors of a kind that is not known are errors all the same, and the
// connection goes on.
func TestClientUnknownErrorChunk(t *testing.T) {
	c, s := manual(t, kinds[2].cc)
	result := make(chan error, 1)
	go func() { result <- c.Flush() }()
	rq := next(t, s)
	b := make([]byte, 128)
	n := putChunk(b, rq, true, ReplyFlagDone, ReplyErrBit+99, 10)
	n += putErrorHead(b[n:], ENOMEM, "why") + 1
	s.Conn.Write(b[:n])
	if err := <-result; ErrnoOf(err) != ENOMEM || !strings.Contains(err.Error(), "why") {
		t.Error(err)
	}
	go func() { result <- c.Flush() }()
	s.Conn.Write(b[:PutChunkNone(b, next(t, s), true)])
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// A server may refuse a write before it has read the data. The caller must not
// get its buffer back while it is still being sent.
func TestClientReplyBeforeDataIsSent(t *testing.T) {
	c, s := manual(t, kinds[1].cc)
	buf := bytes.Repeat([]byte{1}, 1<<20) // more than a socket holds
	result := make(chan error, 1)
	go func() {
		err := c.Pwrite(buf, 0, 0)
		clear(buf)
		result <- err
	}()
	rq := next(t, s)
	b := make([]byte, 128)
	s.Conn.Write(b[:PutChunkError(b, rq, false, ReplyFlagDone, EPERM, "")])
	got := make([]byte, len(buf))
	if _, err := io.ReadFull(s.Conn, got[:10]); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-result:
		t.Fatalf("the write returned %v while its data is being sent", err)
	case <-time.After(20 * time.Millisecond): // long enough to show the mistake, not relied on
	}
	if _, err := io.ReadFull(s.Conn, got[10:]); err != nil {
		t.Fatal(err)
	}
	if err := <-result; ErrnoOf(err) != EPERM {
		t.Error(err)
	}
	if i := bytes.IndexByte(got, 0); i >= 0 {
		t.Errorf("byte %d was changed before it was sent", i)
	}
}

// When the connection breaks, everybody hears of it.
func TestClientConnectionLost(t *testing.T) {
	for _, k := range kinds {
		c, s := manual(t, k.cc)
		result := make(chan error)
		for i := range 8 { // four in flight, four waiting for a slot
			go func() { result <- c.Pread(make([]byte, 512), uint64(i)*512, 0) }()
		}
		for range 4 {
			next(t, s)
		}
		s.Conn.(net.Conn).Close()
		for range 8 {
			var ce *ConnError
			if err := <-result; !errors.As(err, &ce) || !errors.Is(err, syscall.EIO) || errors.Is(err, ErrClosed) {
				t.Errorf("%s: %v", k.name, err)
			}
		}
		if err := c.Flush(); err == nil {
			t.Errorf("%s: flush succeeds without a connection", k.name)
		}
		if err := c.Disconnect(); err == nil {
			t.Errorf("%s: disconnect succeeds without a connection", k.name)
		}
	}
}

// A reply that breaks off is an error, wherever it does.
func TestClientReplyTruncated(t *testing.T) {
	for _, k := range kinds {
		reply := make([]byte, 0, 4096)
		for cut := 0; ; cut++ {
			c, s := manual(t, k.cc)
			result := make(chan error, 1)
			go func() { result <- c.Pread(make([]byte, 16), 4096, 0) }()
			rq := next(t, s)
			reply = reply[:cap(reply)]
			n := PutSimpleReply(reply, rq, 0)
			if s.Structured {
				n = PutChunkData(reply, rq, s.Extended, ReplyFlagDone, 4096, 16)
			}
			reply = reply[:n+16]
			s.Conn.Write(reply[:cut])
			if cut == len(reply) {
				if err := <-result; err != nil {
					t.Errorf("%s: whole reply: %v", k.name, err)
				}
				break
			}
			s.Conn.(net.Conn).Close()
			if err := <-result; !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s, %d bytes: %v", k.name, cut, err)
			}
		}
	}
}

func TestClientClose(t *testing.T) {
	c, s := manual(t, kinds[0].cc)
	result := make(chan error, 1)
	go func() { result <- c.Flush() }()
	next(t, s)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-result; !errors.Is(err, ErrClosed) {
		t.Errorf("in flight: %v", err)
	}
	if err := c.Flush(); !errors.Is(err, ErrClosed) {
		t.Errorf("afterwards: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
}

// Disconnect lets what is in flight end, and several at a time do no harm.
func TestClientDisconnectWaits(t *testing.T) {
	c, s := manual(t, kinds[0].cc)
	flushed, left := make(chan error, 1), make(chan error, 2)
	go func() { flushed <- c.Flush() }()
	rq := next(t, s)
	for range 2 {
		go func() { left <- c.Disconnect() }()
	}
	b := make([]byte, 16)
	s.Conn.Write(b[:PutSimpleReply(b, rq, 0)])
	if err := <-flushed; err != nil {
		t.Errorf("in flight: %v", err)
	}
	if rq := next(t, s); rq.Type != CmdDisc || rq.Offset != 0 || rq.Length != 0 || rq.Flags != 0 {
		t.Errorf("the last request is %+v", rq)
	}
	if n, err := s.Conn.Read(b); n != 0 || err != io.EOF {
		t.Errorf("after the disconnect: %d bytes, %v", n, err)
	}
	first, second := <-left, <-left
	if first != nil && second != nil || first == nil && second == nil || !errors.Is(errors.Join(first, second), ErrClosed) {
		t.Errorf("disconnects: %v, %v", first, second)
	}
	if err := c.Flush(); !errors.Is(err, ErrClosed) {
		t.Errorf("afterwards: %v", err)
	}
}

func TestNewClientRefuses(t *testing.T) {
	client, _ := pipePair(t)
	for _, n := range []int{-1, MaxInFlight + 1} {
		if _, err := NewClient(&ClientSession{Session: Session{Conn: client}}, ClientOptions{InFlight: n}); err == nil {
			t.Errorf("%d requests in flight are accepted", n)
		}
	}
	if _, err := NewClient(&ClientSession{Session: Session{Conn: &script{}}}, ClientOptions{}); err == nil {
		t.Error("a connection that cannot be closed is accepted")
	}
}

// fragments against a bitmap.
func TestFragments(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		const size = 64
		var f fragments
		var seen [size]bool
		for range 40 {
			off := r.Uint64N(size)
			n := r.Uint64N(min(6, size-off)) + 1
			clash := false
			for i := off; i < off+n; i++ {
				clash = clash || seen[i]
			}
			if why := f.add(off, n); (why != "") != clash {
				t.Fatalf("%v, %d+%d: %q", f.spans, off, n, why)
			}
			for i := off; i < off+n && !clash; i++ {
				seen[i] = true
			}
			all := true
			for _, s := range seen {
				all = all && s
			}
			if f.is(size) != all {
				t.Fatalf("%v", f.spans)
			}
		}
		for i, s := range f.spans {
			if s.off >= s.end || i > 0 && f.spans[i-1].end >= s.off {
				t.Fatalf("%v", f.spans)
			}
		}
	}
	var f fragments
	for i := range uint64(MaxReadFragments) {
		if why := f.add(2*i, 1); why != "" {
			t.Fatal(why)
		}
	}
	if f.add(2*MaxReadFragments, 1) == "" {
		t.Error("one piece more than allowed is accepted")
	}
	if why := f.add(1, 1); why != "" {
		t.Errorf("a piece that joins two: %s", why)
	}
}

// A request allocates nothing once the client runs.
func TestClientAllocs(t *testing.T) {
	for _, k := range kinds {
		c, s := manual(t, k.cc)
		go func() { // answers reads and writes of 4096 bytes, without allocating
			in, out := make([]byte, ExtendedRequestLen+4096), make([]byte, MaxReplyHead+4096)
			_, h, _ := ParseRequest(nil, s.Extended)
			for {
				if _, err := io.ReadFull(s.Conn, in[:h]); err != nil {
					return
				}
				rq, _, _ := ParseRequest(in, s.Extended)
				io.ReadFull(s.Conn, in[:rq.PayloadLen(s.Extended)])
				n := PutSimpleReply(out, &rq, 0)
				if s.Extended || s.Structured && rq.Type == CmdRead {
					n = PutChunkNone(out, &rq, s.Extended)
				}
				if rq.Type == CmdRead {
					if s.Structured {
						n = PutChunkData(out, &rq, s.Extended, ReplyFlagDone, rq.Offset, 4096)
					}
					n += 4096
				}
				if _, err := s.Conn.Write(out[:n]); err != nil {
					return
				}
			}
		}()
		p := make([]byte, 4096)
		v := [][]byte{p[:512], p[512:]}
		n := testing.AllocsPerRun(200, func() {
			if err := errors.Join(c.Pread(p, 4096, 0), c.Pwrite(p, 8192, 0)); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(c.Preadv(v, 4096, 0), c.Pwritev(v, 8192, CmdFlagFUA)); err != nil {
				t.Fatal(err)
			}
		})
		if n != 0 {
			t.Errorf("%s: %v allocations for four requests", k.name, n)
		}
	}
}
