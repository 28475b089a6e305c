package nbd

import (
	"bytes"
	"slices"
	"sync"
	"testing"
)

// The corpus in testdata/fuzz has the messages of good peers; the fuzzer finds
// the bad ones from there.

// FuzzServerHandshake: in is what a client sends, cfg picks the server's kind.
func FuzzServerHandshake(f *testing.F) {
	f.Fuzz(func(t *testing.T, cfg byte, in []byte) {
		sc := ServerConfig{
			Exports: testDisks, NoList: cfg&1 != 0, NoStructured: cfg&2 != 0, NoExtended: cfg&4 != 0,
			RequireBlockSize: cfg&8 != 0, StartTLS: plainTLS, TLS: TLSMode(cfg>>4) % 3,
		}
		s := &script{in: bytes.NewReader(in)}
		sess, err := ServerHandshake(s, &sc)
		if (sess == nil) == (err == nil) {
			t.Fatalf("session %v, error %v", sess, err)
		}
		rs, rest := cutReplies(t, s.out.Bytes()[18:])
		for _, r := range rs {
			if r.rep.IsError() && (len(r.data) == 0 || checkString("", string(r.data)) != nil) {
				t.Fatalf("%v in reply to %v says %q", r.rep, r.opt, r.data)
			}
		}
		if sess == nil {
			if len(rest) != 0 {
				t.Fatalf("the server's last words are % x", rest)
			}
			return
		}
		checkSession(t, &sc, sess)
	})
}

// checkSession holds what a client may reach, whatever it sends.
func checkSession(t *testing.T, sc *ServerConfig, s *Session) {
	e, ok := testDisks.Find(s.Name)
	if !ok || e.Name != s.Export.Name {
		t.Fatalf("export %q for the name %q", s.Export.Name, s.Name)
	}
	switch {
	case sc.TLS == TLSRequired && !s.TLS, sc.TLS == TLSOff && s.TLS:
		t.Fatal("TLS")
	case s.Structured && sc.NoStructured, s.Extended && (sc.NoExtended || !s.Structured):
		t.Fatal("replies")
	case !s.Structured && (len(s.Contexts) > 0 || s.Flags&FlagSendDF != 0):
		t.Fatal("what needs structured replies")
	case s.Flags&FlagBlockStatusPayload != 0 && (!s.Extended || len(s.Contexts) == 0):
		t.Fatal("what needs extended headers")
	case sc.RequireBlockSize && s.Export.MinBlock > 1 && !s.BlockSizeAsked:
		t.Fatal("block sizes")
	}
	for i, c := range s.Contexts {
		if s.Export.Contexts[c.ID] != c.Name || i > 0 && s.Contexts[i-1].ID >= c.ID {
			t.Fatalf("contexts %v", s.Contexts)
		}
	}
}

// FuzzClientHandshake: in is what a server sends, cfg picks the client's kind.
func FuzzClientHandshake(f *testing.F) {
	f.Fuzz(func(t *testing.T, cfg byte, in []byte) {
		cc := ClientConfig{
			Export: "x", WantStructured: cfg&1 != 0, WantExtended: cfg&2 != 0, Old: cfg&4 != 0, NoBlockSize: cfg&8 != 0,
			Contexts: []string{"a:b", "c:d"}, StartTLS: plainTLS,
		}
		cc.Mode, cc.TLS = Mode(cfg>>4&3)%3, TLSMode(cfg>>6)%3
		cs, _, err := meet(cc, in)
		if (cs == nil) == (err == nil) {
			t.Fatalf("session %v, error %v", cs, err)
		}
		if cs == nil {
			return
		}
		if cc.TLS == TLSRequired && !cs.TLS {
			t.Fatal("TLS")
		}
		if cc.Mode == ModeList {
			if len(cs.Exports) > MaxOptionReplies {
				t.Fatal("exports")
			}
			return
		}
		if cs.Export.checkSizes() != nil || cs.Flags&FlagHasFlags == 0 || cs.Export.Check() != nil {
			t.Fatalf("export %+v", cs.Export)
		}
		for i, c := range cs.Contexts {
			if !slices.Contains(cc.Contexts, c.Name) || i > 0 && cs.Contexts[0].ID == c.ID || !cs.Structured {
				t.Fatalf("contexts %v", cs.Contexts)
			}
		}
	})
}

// FuzzParseRequest: what is read is written the same.
func FuzzParseRequest(f *testing.F) {
	f.Fuzz(func(t *testing.T, extended bool, b []byte) {
		rq, n, err := ParseRequest(b, extended)
		if err != nil {
			if err == ErrShort && len(b) >= n {
				t.Fatalf("%d bytes are short of %d", len(b), n)
			}
			return
		}
		out := make([]byte, ExtendedRequestLen)
		if m := PutRequest(out, &rq, extended); m != n || !bytes.Equal(out[:m], b[:n]) {
			t.Fatalf("% x became % x", b[:n], out[:m])
		}
		if p := rq.PayloadLen(extended); p != 0 && p != rq.Length {
			t.Fatalf("payload %d", p)
		}
		s := Session{Export: ExportInfo{Size: 1 << 20}, Flags: allFlags, MinBlock: 1, MaxPayload: 1 << 16, Extended: extended}
		if s.Check(&rq) == 0 && rq.Type != CmdDisc && rq.Type != CmdFlush && (rq.Offset >= 1<<20 || rq.Length > 1<<20) {
			t.Fatalf("%+v passes", rq)
		}
		if p := b[n:]; rq.Type == CmdBlockStatus {
			length, ids, err := ParseBlockStatusPayload(p, nil)
			if err == nil && !bytes.Equal(AppendBlockStatusPayload(nil, length, ids), p) {
				t.Fatalf("payload % x", p)
			}
		}
	})
}

// FuzzParseReply: a message, its payload and all.
func FuzzParseReply(f *testing.F) {
	f.Fuzz(func(t *testing.T, extended bool, b []byte) {
		r, n, err := ParseReply(b, extended)
		if err != nil {
			if err == ErrShort && len(b) >= n {
				t.Fatalf("%d bytes are short of %d", len(b), n)
			}
			return
		}
		if len(b) < n {
			t.Fatalf("a header of %d bytes from %d", n, len(b))
		}
		body := b[n:]
		if r.Length <= uint64(len(body)) {
			body = body[:r.Length]
		}
		rq := Request{Cookie: r.Cookie, Offset: r.Offset}
		out := make([]byte, len(b)+MaxReplyHead)
		switch {
		case r.Simple:
			n = PutSimpleReply(out, &rq, r.Errno)
		case r.Type == ReplyBlockStatus && !extended, r.Type == ReplyBlockStatusExt && extended:
			id, exts, err := ParseChunkBlockStatus(body, extended, nil)
			if err != nil || !extended && slices.ContainsFunc(exts, func(e Extent) bool { return e.Length > maxCompactExtent }) {
				return
			}
			n = PutChunkBlockStatus(out, &rq, extended, r.Flags, id, exts)
		case r.Type == ReplyOffsetHole:
			off, size, err := ParseChunkHole(body)
			if err != nil {
				return
			}
			n = PutChunkHole(out, &rq, extended, r.Flags, off, size)
		case r.Type.IsError():
			if ce, err := ParseChunkError(body, r.Type); err != nil || ce.Errno == 0 || len(ce.Message) > MaxString {
				return
			}
			n = putChunk(out, &rq, extended, r.Flags, r.Type, r.Length)
		default:
			n = putChunk(out, &rq, extended, r.Flags, r.Type, r.Length)
		}
		if r.Simple || uint64(len(b)-n) >= r.Length {
			if !bytes.Equal(out[:n], b[:n]) {
				t.Fatalf("% x became % x", b[:n], out[:n])
			}
		}
	})
}

// canned is a connection whose other side answers the first request with bytes
// written in advance, and hangs up.
type canned struct {
	in    *bytes.Reader
	asked chan struct{}
	once  sync.Once
}

func (c *canned) Read(p []byte) (int, error) {
	<-c.asked
	return c.in.Read(p)
}

func (c *canned) Write(p []byte) (int, error) {
	c.once.Do(func() { close(c.asked) })
	return len(p), nil
}

func (c *canned) Close() error {
	c.once.Do(func() { close(c.asked) })
	return nil
}

// FuzzClientReply: in is what a server sends after the first request, op picks
// that request and the form of the headers.
func FuzzClientReply(f *testing.F) {
	f.Fuzz(func(t *testing.T, op byte, in []byte) {
		s := &ClientSession{Session: Session{
			Conn:   &canned{in: bytes.NewReader(in), asked: make(chan struct{})},
			Export: ExportInfo{Size: 1 << 20}, Flags: allFlags, MinBlock: 1, MaxPayload: 1 << 16,
			Structured: op&3 != 0, Extended: op&2 != 0, Contexts: []MetaContext{{0, "a:b"}, {5, "c:d"}},
		}}
		c, err := NewClient(s, ClientOptions{InFlight: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		buf := make([]byte, 1024+16)
		switch op >> 2 % 4 {
		case 0:
			err = c.Preadv([][]byte{buf[:500], buf[500:1024]}, 4096, CmdFlags(op>>4)&CmdFlagDF)
		case 1:
			err = c.Flush()
		case 2:
			err = c.Pwrite(buf, 4096, 0)
		case 3:
			var st []Status
			st, err = c.BlockStatus(4096, 1024, CmdFlags(op>>1)&CmdFlagReqOne)
			if err == nil && len(st) != 2 {
				t.Fatalf("status %v", st)
			}
			for _, st := range st {
				checkExtents(t, st.Extents)
			}
		}
		if !bytes.Equal(buf[1024:], make([]byte, 16)) {
			t.Fatal("written past the buffer")
		}
		if left := s.Conn.(*canned).in.Len(); err == nil && len(in)-left < SimpleReplyLen {
			t.Fatalf("success after %d bytes", len(in)-left)
		}
	})
}

// checkExtents: they begin at 4096 of an export of 1 MiB.
func checkExtents(t *testing.T, exts []Extent) {
	pos := uint64(4096)
	for _, e := range exts {
		if e.Length == 0 || e.Length > 1<<20-pos {
			t.Fatalf("extents %v", exts)
		}
		pos += e.Length
	}
	if len(exts) == 0 {
		t.Fatal("no extents")
	}
}

// FuzzParseURI: what is read is written, and read, the same.
func FuzzParseURI(f *testing.F) {
	for _, s := range []string{"nbd://h/x", "nbds+unix:////x?socket=%00a&tls-verify-peer=0", "nbd://u@[::1%25eth0]:1/%2F%3F?tls-type=psk"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := ParseURI(s)
		if err != nil {
			return
		}
		v, err := ParseURI(u.String())
		if err != nil || u != v {
			t.Fatalf("%q: %+v, written %q: %+v, %v", s, u, u.String(), v, err)
		}
		u.Address()
	})
}
