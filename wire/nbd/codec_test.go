package nbd

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// unhex reads bytes written for people: hexadecimal, blanks ignored.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var requestTests = []struct {
	name     string
	extended bool
	wire     string
	rq       Request
	payload  uint64
}{
	{"read", false, "25609513 0000 0000 0102030405060708 0000000000001000 00000200",
		Request{0, CmdRead, 0x0102030405060708, 4096, 512}, 0},
	{"write FUA", false, "25609513 0001 0001 ffffffffffffffff ffffffffffffffff ffffffff",
		Request{CmdFlagFUA, CmdWrite, 1<<64 - 1, 1<<64 - 1, 1<<32 - 1}, 1<<32 - 1},
	{"flag of payload means nothing in compact headers", false, "25609513 0020 0000 0000000000000001 0000000000000000 00000200",
		Request{CmdFlagPayloadLen, CmdRead, 1, 0, 512}, 0},
	{"unknown command", false, "25609513 8000 ffff 0000000000000001 0000000000000000 00000000",
		Request{0x8000, 0xffff, 1, 0, 0}, 0},
	{"extended write", true, "21e41c71 0020 0001 0000000000000002 0000000100000000 0000000000010000",
		Request{CmdFlagPayloadLen, CmdWrite, 2, 1 << 32, 65536}, 65536},
	{"extended write without the flag", true, "21e41c71 0000 0001 0000000000000002 0000000000000000 0000000000010000",
		Request{0, CmdWrite, 2, 0, 65536}, 65536},
	{"extended trim of 64 bits", true, "21e41c71 0000 0004 0000000000000003 0000000000000000 7fffffffffffffff",
		Request{0, CmdTrim, 3, 0, 1<<63 - 1}, 0},
	{"extended block status with payload", true, "21e41c71 0020 0007 0000000000000003 0000000000000000 000000000000000c",
		Request{CmdFlagPayloadLen, CmdBlockStatus, 3, 0, 12}, 12},
}

func TestRequest(t *testing.T) {
	for _, tt := range requestTests {
		t.Run(tt.name, func(t *testing.T) {
			wire := unhex(t, tt.wire)
			rq, n, err := ParseRequest(append(wire, 0xee), tt.extended)
			if err != nil || n != len(wire) || rq != tt.rq {
				t.Fatalf("got %+v, %d, %v", rq, n, err)
			}
			if p := rq.PayloadLen(tt.extended); p != tt.payload {
				t.Errorf("payload %d, want %d", p, tt.payload)
			}
			b := make([]byte, ExtendedRequestLen)
			if n := PutRequest(b, &tt.rq, tt.extended); !bytes.Equal(b[:n], wire) {
				t.Errorf("wrote % x", b[:n])
			}
			for i := range wire {
				if _, n, err := ParseRequest(wire[:i], tt.extended); err != ErrShort || n != len(wire) {
					t.Errorf("of %d bytes: %d, %v", i, n, err)
				}
			}
			if _, _, err := ParseRequest(append(wire, 0, 0, 0, 0), !tt.extended); !errors.Is(err, ErrProtocol) {
				t.Errorf("with the other header: %v", err)
			}
		})
	}
}

func TestRequestMagic(t *testing.T) {
	wire := unhex(t, requestTests[0].wire)
	for i := range 32 {
		b := bytes.Clone(wire)
		b[i/8] ^= 1 << (i % 8)
		if _, _, err := ParseRequest(b, false); !errors.Is(err, ErrProtocol) {
			t.Errorf("bit %d of the magic number: %v", i, err)
		}
	}
}

func TestBlockStatusPayload(t *testing.T) {
	b := AppendBlockStatusPayload(nil, 1<<40, []uint32{7, 0})
	if want := unhex(t, "0000010000000000 00000007 00000000"); !bytes.Equal(b, want) {
		t.Errorf("wrote % x", b)
	}
	n, ids, err := ParseBlockStatusPayload(b, nil)
	if n != 1<<40 || err != nil || !cmp.Equal(ids, []uint32{7, 0}) {
		t.Errorf("read %d, %v, %v", n, ids, err)
	}
	for _, l := range []int{0, 7, 9, 15} {
		if _, _, err := ParseBlockStatusPayload(b[:l], nil); err != EINVAL {
			t.Errorf("of %d bytes: %v", l, err)
		}
	}
	if _, ids, err := ParseBlockStatusPayload(make([]byte, 8+4*MaxContexts), nil); err != nil || len(ids) != MaxContexts {
		t.Errorf("at the limit: %d, %v", len(ids), err)
	}
	if _, _, err := ParseBlockStatusPayload(make([]byte, 8+4*MaxContexts+4), nil); err != EINVAL {
		t.Errorf("one past the limit: %v", err)
	}
}

// answered is the request that the replies below answer.
var answered = Request{Cookie: 0x1122334455667788, Offset: 0x1000, Length: 0x2000}

var replyTests = []struct {
	name string
	put  func(b []byte, extended bool) int
	typ  ReplyType
	fl   ReplyFlags
	body string // payload, without the data of OFFSET_DATA
	more uint64 // length of that data
}{
	{"none", func(b []byte, x bool) int { return PutChunkNone(b, &answered, x) }, ReplyNone, ReplyFlagDone, "", 0},
	{"data", func(b []byte, x bool) int { return PutChunkData(b, &answered, x, 0, 0x1200, 512) },
		ReplyOffsetData, 0, "0000000000001200", 512},
	{"hole", func(b []byte, x bool) int { return PutChunkHole(b, &answered, x, ReplyFlagDone, 0x1400, 1024) },
		ReplyOffsetHole, ReplyFlagDone, "0000000000001400 00000400", 0},
	{"error", func(b []byte, x bool) int { return PutChunkError(b, &answered, x, ReplyFlagDone, ENOSPC, "full") },
		ReplyError, ReplyFlagDone, "0000001c 0004 66756c6c", 0},
	{"error without message", func(b []byte, x bool) int { return PutChunkError(b, &answered, x, 0, EIO, "") },
		ReplyError, 0, "00000005 0000", 0},
	{"error offset", func(b []byte, x bool) int { return PutChunkErrorOffset(b, &answered, x, 0, EIO, "bad", 0x1800) },
		ReplyErrorOffset, 0, "00000005 0003 626164 0000000000001800", 0},
}

func TestChunks(t *testing.T) {
	for _, tt := range replyTests {
		for _, extended := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/extended=%v", tt.name, extended), func(t *testing.T) {
				body := unhex(t, tt.body)
				length := uint64(len(body)) + tt.more
				want := unhex(t, fmt.Sprintf("668e33ef %04x %04x 1122334455667788 %08x", tt.fl, uint16(tt.typ), length))
				r := Reply{Flags: tt.fl, Type: tt.typ, Cookie: answered.Cookie, Length: length}
				if extended {
					want = unhex(t, fmt.Sprintf("6e8a278c %04x %04x 1122334455667788 0000000000001000 %016x", tt.fl, uint16(tt.typ), length))
					r.Offset = 0x1000
				}
				head := len(want)
				want = append(want, body...)
				b := make([]byte, 256)
				n := tt.put(b, extended)
				if !bytes.Equal(b[:n], want) {
					t.Fatalf("wrote\n% x, want\n% x", b[:n], want)
				}
				got, h, err := ParseReply(b[:n], extended)
				if err != nil || h != head || got != r {
					t.Errorf("read %+v, %d, %v", got, h, err)
				}
				for i := range head {
					if _, _, err := ParseReply(b[:i], extended); err != ErrShort {
						t.Errorf("of %d bytes: %v", i, err)
					}
				}
				checkBody(t, tt.typ, body)
			})
		}
	}
}

// checkBody reads the payloads of TestChunks.
func checkBody(t *testing.T, typ ReplyType, b []byte) {
	switch typ {
	case ReplyOffsetHole:
		if off, n, err := ParseChunkHole(b); off != 0x1400 || n != 1024 || err != nil {
			t.Errorf("hole %d, %d, %v", off, n, err)
		}
	case ReplyError, ReplyErrorOffset:
		ce, err := ParseChunkError(b, typ)
		if err != nil || ce.Errno == 0 || ce.HasOffset != (typ == ReplyErrorOffset) || ce.HasOffset && ce.Offset != 0x1800 {
			t.Errorf("error %+v, %v", ce, err)
		}
		if want := map[Errno]string{ENOSPC: "full", EIO: "bad"}[ce.Errno]; len(ce.Message) > 0 && string(ce.Message) != want {
			t.Errorf("message %q", ce.Message)
		}
	}
}

func TestSimpleReply(t *testing.T) {
	b := make([]byte, MaxReplyHead)
	n := PutSimpleReply(b, &answered, ENOMEM)
	if want := unhex(t, "67446698 0000000c 1122334455667788"); !bytes.Equal(b[:n], want) {
		t.Errorf("wrote % x", b[:n])
	}
	r, n, err := ParseReply(b[:n], false)
	if want := (Reply{Simple: true, Errno: ENOMEM, Cookie: answered.Cookie}); r != want || n != SimpleReplyLen || err != nil || !r.Done() {
		t.Errorf("read %+v, %d, %v", r, n, err)
	}
	if _, _, err := ParseReply(b[:32], true); !errors.Is(err, ErrProtocol) {
		t.Errorf("simple reply among extended ones: %v", err)
	}
	b[0]++
	if _, _, err := ParseReply(b, false); !errors.Is(err, ErrProtocol) {
		t.Errorf("wrong magic number: %v", err)
	}
}

func TestBlockStatusChunk(t *testing.T) {
	exts := []Extent{{4096, StateHole | StateZero}, {1 << 20, 0}}
	for _, extended := range []bool{false, true} {
		b := make([]byte, BlockStatusLen(extended, len(exts)))
		n := PutChunkBlockStatus(b, &answered, extended, ReplyFlagDone, 9, exts)
		if n != len(b) {
			t.Errorf("extended=%v: wrote %d bytes of %d", extended, n, len(b))
		}
		r, h, err := ParseReply(b, extended)
		if err != nil || r.Length != uint64(n-h) {
			t.Fatalf("extended=%v: %+v, %v", extended, r, err)
		}
		id, got, err := ParseChunkBlockStatus(b[h:], extended, nil)
		if id != 9 || err != nil || !cmp.Equal(got, exts) {
			t.Errorf("extended=%v: %d, %v, %v", extended, id, got, err)
		}
		for i := range n - h {
			if _, got, err := ParseChunkBlockStatus(b[h:h+i], extended, nil); err == nil && len(got) != 1 {
				t.Errorf("extended=%v, %d bytes: %v", extended, i, got)
			}
		}
	}
}

// An extent beyond 32 bits is shortened and ends the list, so that what
// follows it is not reported at a place where it is not.
func TestBlockStatusCompactLimit(t *testing.T) {
	for _, tt := range []struct{ in, want []Extent }{
		{[]Extent{{1<<32 - MaxMinBlock, 1}, {512, 2}}, []Extent{{1<<32 - MaxMinBlock, 1}, {512, 2}}},
		{[]Extent{{512, 2}, {1<<32 - MaxMinBlock + 1, 1}, {512, 2}}, []Extent{{512, 2}, {1<<32 - MaxMinBlock, 1}}},
		{[]Extent{{1 << 40, 1}, {512, 2}}, []Extent{{1<<32 - MaxMinBlock, 1}}},
	} {
		b := make([]byte, BlockStatusLen(false, len(tt.in)))
		n := PutChunkBlockStatus(b, &answered, false, 0, 0, tt.in)
		_, got, err := ParseChunkBlockStatus(b[ChunkLen:n], false, nil)
		if err != nil || !cmp.Equal(got, tt.want) {
			t.Errorf("%v: %v, %v", tt.in, got, err)
		}
	}
}

func TestBlockStatusExtentLimit(t *testing.T) {
	b := bytes.Repeat([]byte{1}, statusHead+(MaxExtents+1)*statusDesc)
	if _, got, err := ParseChunkBlockStatus(b[:len(b)-statusDesc], false, nil); err != nil || len(got) != MaxExtents {
		t.Errorf("at the limit: %d, %v", len(got), err)
	}
	if _, _, err := ParseChunkBlockStatus(b, false, nil); !errors.Is(err, ErrProtocol) {
		t.Errorf("one past the limit: %v", err)
	}
}

func TestBadChunks(t *testing.T) {
	status := func(extended bool, s string) error {
		_, _, err := ParseChunkBlockStatus(unhex(t, s), extended, nil)
		return err
	}
	hole := func(s string) error {
		_, _, err := ParseChunkHole(unhex(t, s))
		return err
	}
	fault := func(typ ReplyType, s string) error {
		_, err := ParseChunkError(unhex(t, s), typ)
		return err
	}
	for name, err := range map[string]error{
		"status without extents":          status(false, "00000001"),
		"status with half an extent":      status(false, "00000001 00000200 00000000 00000200"),
		"status with an empty extent":     status(false, "00000001 00000000 00000000"),
		"ext status without extents":      status(true, "00000001 00000000"),
		"ext status with another count":   status(true, "00000001 00000002 0000000000000200 0000000000000000"),
		"ext status with an empty extent": status(true, "00000001 00000001 0000000000000000 0000000000000000"),
		"empty hole":                      hole("0000000000000000 00000000"),
		"short hole":                      hole("0000000000000000 000002"),
		"long hole":                       hole("0000000000000000 00000200 00"),
		"error 0":                         fault(ReplyError, "00000000 0000"),
		"short error":                     fault(ReplyError, "00000005 00"),
		"message longer than the chunk":   fault(ReplyError, "00000005 0002 41"),
		"message longer than a string":    fault(ReplyError, "00000005 1001"+strings.Repeat("41", 4097)),
		"error offset without offset":     fault(ReplyErrorOffset, "00000005 0001 41 00000000000000"),
		"unknown error without its head":  fault(ReplyErrBit+77, "00000005"),
	} {
		if !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := fault(ReplyError, "00000005 1000"+strings.Repeat("41", 4096)); err != nil {
		t.Errorf("message as long as a string may be: %v", err)
	}
	if err := fault(ReplyErrBit+77, "00000005 0001 41 0102"); err != nil {
		t.Errorf("unknown error with fields of its own: %v", err)
	}
}

func TestErrorChunkMessageIsCut(t *testing.T) {
	msg := strings.Repeat("é", MaxString) // two bytes each
	for _, put := range []func(b []byte, m string) int{
		func(b []byte, m string) int { return PutChunkError(b, &answered, true, 0, EIO, m) },
		func(b []byte, m string) int { return PutChunkErrorOffset(b, &answered, true, 0, EIO, m, 0x1000) },
	} {
		for _, m := range []string{msg, "x" + msg, msg[:MaxString], msg[:MaxString-2]} {
			b := make([]byte, ErrorChunkLen(m))
			n := put(b, m)
			r, h, err := ParseReply(b[:n], true)
			if err != nil {
				t.Fatal(err)
			}
			ce, err := ParseChunkError(b[h:n], r.Type)
			if err != nil || len(ce.Message) > MaxString || len(ce.Message) < min(len(m), MaxString-1) || !strings.HasPrefix(m, string(ce.Message)) {
				t.Errorf("message of %d bytes became %d: %v", len(m), len(ce.Message), err)
			}
			if checkString("", string(ce.Message)) != nil {
				t.Errorf("cut within a character")
			}
		}
	}
}

func TestErrno(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want Errno
	}{
		{nil, 0},
		{syscall.EPERM, EPERM}, {syscall.EROFS, EPERM}, {syscall.EACCES, EPERM},
		{syscall.EIO, EIO}, {syscall.ENXIO, EIO}, {syscall.ETIMEDOUT, EIO},
		{syscall.ENOMEM, ENOMEM}, {syscall.EINVAL, EINVAL},
		{syscall.ENOSPC, ENOSPC}, {syscall.EDQUOT, ENOSPC}, {syscall.EFBIG, ENOSPC},
		{syscall.EOVERFLOW, EOVERFLOW}, {syscall.ENOTSUP, ENOTSUP}, {syscall.EOPNOTSUPP, ENOTSUP},
		{syscall.ESHUTDOWN, ESHUTDOWN},
		{fmt.Errorf("wrapped: %w", &fs.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}), ENOSPC},
		{&CommandError{Errno: EOVERFLOW}, EOVERFLOW},
		{errors.New("no number at all"), EIO},
		{os.ErrClosed, EIO},
	} {
		if got := ErrnoOf(tt.err); got != tt.want {
			t.Errorf("ErrnoOf(%v) is %v, want %v", tt.err, got, tt.want)
		}
	}
	for i := range errnos {
		if e := errnos[i]; e.wire.Syscall() != e.sys || ErrnoOf(e.wire.Syscall()) != e.wire || !errors.Is(e.wire, e.sys) {
			t.Errorf("%v does not come back as itself", e.wire)
		}
	}
	if Errno(0).Syscall() != 0 || Errno(77).Syscall() != syscall.EINVAL {
		t.Error("an unknown value is EINVAL to a client, 0 is success")
	}
}

func TestCheck(t *testing.T) {
	const size = 1 << 20
	base := Session{Export: ExportInfo{Size: size}, Flags: allFlags, MinBlock: 1, MaxPayload: 1 << 16,
		Structured: true, Extended: true, Contexts: []MetaContext{{0, "x"}}}
	ro := base
	ro.Flags |= FlagReadOnly
	bare := Session{Export: base.Export, Flags: FlagHasFlags, MinBlock: 1, MaxPayload: 1 << 16}
	aligned := base
	aligned.MinBlock = 512
	for _, tt := range []struct {
		name string
		s    *Session
		rq   Request
		want Errno
	}{
		{"read", &base, Request{Type: CmdRead, Length: 1}, 0},
		{"read to the end", &base, Request{Type: CmdRead, Offset: size - 5, Length: 5}, 0},
		{"read past the end", &base, Request{Type: CmdRead, Offset: size - 5, Length: 6}, EINVAL},
		{"read beyond the end", &base, Request{Type: CmdRead, Offset: size + 1, Length: 1}, EINVAL},
		{"read with overflow", &base, Request{Type: CmdRead, Offset: 1<<64 - 1, Length: 2}, EINVAL},
		{"read nothing", &base, Request{Type: CmdRead}, EINVAL},
		{"read the maximum", &base, Request{Type: CmdRead, Length: 1 << 16}, 0},
		{"read too much", &base, Request{Type: CmdRead, Length: 1<<16 + 1}, EOVERFLOW},
		{"read too much without chunks", &bare, Request{Type: CmdRead, Length: 1<<16 + 1}, EINVAL},
		{"read DF", &base, Request{Type: CmdRead, Length: 1, Flags: CmdFlagDF}, 0},
		{"read DF not offered", &bare, Request{Type: CmdRead, Length: 1, Flags: CmdFlagDF}, EINVAL},
		{"read FUA", &base, Request{Type: CmdRead, Length: 1, Flags: CmdFlagFUA}, 0},
		{"read NO_HOLE", &base, Request{Type: CmdRead, Length: 1, Flags: CmdFlagNoHole}, EINVAL},
		{"read with payload", &base, Request{Type: CmdRead, Length: 1, Flags: CmdFlagPayloadLen}, EINVAL},
		{"unaligned read", &aligned, Request{Type: CmdRead, Offset: 512, Length: 511}, EINVAL},
		{"unaligned offset", &aligned, Request{Type: CmdRead, Offset: 511, Length: 512}, EINVAL},
		{"aligned read", &aligned, Request{Type: CmdRead, Offset: 512, Length: 512}, 0},
		{"write", &base, Request{Type: CmdWrite, Length: 1, Flags: CmdFlagPayloadLen | CmdFlagFUA}, 0},
		{"write FUA not offered", &bare, Request{Type: CmdWrite, Length: 1, Flags: CmdFlagFUA}, EINVAL},
		{"write with payload flag in compact headers", &bare, Request{Type: CmdWrite, Length: 1, Flags: CmdFlagPayloadLen}, EINVAL},
		{"write too much", &base, Request{Type: CmdWrite, Length: 1<<16 + 1}, EINVAL},
		{"write past the end", &base, Request{Type: CmdWrite, Offset: size - 1, Length: 2}, ENOSPC},
		{"write read-only", &ro, Request{Type: CmdWrite, Length: 1}, EPERM},
		{"trim", &base, Request{Type: CmdTrim, Length: size}, 0},
		{"trim read-only", &ro, Request{Type: CmdTrim, Length: size}, EPERM},
		{"trim not offered", &bare, Request{Type: CmdTrim, Length: 1}, EINVAL},
		{"trim past the end", &base, Request{Type: CmdTrim, Length: size + 1}, EINVAL},
		{"write zeroes", &base, Request{Type: CmdWriteZeroes, Length: size, Flags: CmdFlagNoHole | CmdFlagFastZero | CmdFlagFUA}, 0},
		{"write zeroes past the end", &base, Request{Type: CmdWriteZeroes, Offset: 1, Length: size}, ENOSPC},
		{"write zeroes read-only", &ro, Request{Type: CmdWriteZeroes, Length: 1}, EPERM},
		{"write zeroes not offered", &bare, Request{Type: CmdWriteZeroes, Length: 1}, EINVAL},
		{"flush", &base, Request{Type: CmdFlush}, 0},
		{"flush with a range", &base, Request{Type: CmdFlush, Length: 1}, EINVAL},
		{"flush not offered", &bare, Request{Type: CmdFlush}, EINVAL},
		{"cache", &base, Request{Type: CmdCache, Length: size}, 0},
		{"cache not offered", &bare, Request{Type: CmdCache, Length: 1}, EINVAL},
		{"block status", &base, Request{Type: CmdBlockStatus, Length: size, Flags: CmdFlagReqOne}, 0},
		{"block status without contexts", &bare, Request{Type: CmdBlockStatus, Length: 1}, EINVAL},
		{"block status with payload", &base, Request{Type: CmdBlockStatus, Length: 12, Flags: CmdFlagPayloadLen}, 0},
		{"disconnect", &bare, Request{Type: CmdDisc}, 0},
		{"disconnect with all that is wrong", &bare, Request{Type: CmdDisc, Flags: 0xffff, Offset: 1, Length: 1}, 0},
		{"resize", &base, Request{Type: CmdResize, Length: 1}, EINVAL},
		{"unknown", &base, Request{Type: 99, Length: 1}, EINVAL},
		{"unknown flag", &base, Request{Type: CmdRead, Length: 1, Flags: 1 << 15}, EINVAL},
	} {
		if got := tt.s.Check(&tt.rq); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// What runs once a request must not feed the collector.
func TestCodecAllocs(t *testing.T) {
	b := make([]byte, 4096)
	rq := Request{Type: CmdRead, Cookie: 1, Offset: 512, Length: 512}
	exts := []Extent{{512, 1}, {512, 0}}
	into := make([]Extent, 0, 2)
	s := Session{Export: ExportInfo{Size: 4096}, Flags: allFlags, MinBlock: 1, MaxPayload: 4096, Structured: true}
	for _, extended := range []bool{false, true} {
		n := testing.AllocsPerRun(100, func() {
			m := PutRequest(b, &rq, extended)
			r, _, err := ParseRequest(b[:m], extended)
			if err != nil || r != rq || s.Check(&r) != 0 || r.PayloadLen(extended) != 0 {
				t.Fatal("request")
			}
			PutSimpleReply(b, &rq, EIO)
			PutChunkNone(b, &rq, extended)
			PutChunkHole(b, &rq, extended, 0, 512, 512)
			PutChunkError(b, &rq, extended, 0, EIO, "message")
			PutChunkErrorOffset(b, &rq, extended, 0, EIO, "message", 512)
			m = PutChunkBlockStatus(b, &rq, extended, 0, 1, exts)
			_, h, _ := ParseReply(b[:m], extended)
			if _, e, err := ParseChunkBlockStatus(b[h:m], extended, into); err != nil || len(e) != 2 {
				t.Fatal("status")
			}
			PutChunkData(b, &rq, extended, ReplyFlagDone, 512, 512)
			if _, _, err := ParseReply(b, extended); err != nil {
				t.Fatal(err)
			}
			if _, n, err := ParseRequest(b[:7], extended); err != ErrShort || n == 0 {
				t.Fatal("short")
			}
			if ErrnoOf(nil) != 0 || ErrnoOf(EIO) != EIO {
				t.Fatal("errno")
			}
		})
		if n != 0 {
			t.Errorf("extended=%v: %v allocations", extended, n)
		}
	}
}
