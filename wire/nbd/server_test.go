package nbd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// script is a client whose every byte is written in advance; it keeps what the
// server answers.
type script struct {
	in  *bytes.Reader
	out bytes.Buffer
}

func (s *script) Read(p []byte) (int, error)  { return s.in.Read(p) }
func (s *script) Write(p []byte) (int, error) { return s.out.Write(p) }

// hello is the client's first message.
func hello(fl ClientFlags) []byte { return be.AppendUint32(nil, uint32(fl)) }

const bothFlags = FlagCFixedNewstyle | FlagCNoZeroes

// opt is one option.
func opt(t Option, data []byte) []byte {
	b := be.AppendUint64(nil, MagicOption)
	b = be.AppendUint32(b, uint32(t))
	b = be.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}

func infoData(name string, infos ...Info) []byte {
	b := be.AppendUint32(nil, uint32(len(name)))
	b = append(b, name...)
	b = be.AppendUint16(b, uint16(len(infos)))
	for _, i := range infos {
		b = be.AppendUint16(b, uint16(i))
	}
	return b
}

func metaData(name string, queries ...string) []byte {
	b := be.AppendUint32(nil, uint32(len(name)))
	b = append(b, name...)
	b = be.AppendUint32(b, uint32(len(queries)))
	for _, q := range queries {
		b = be.AppendUint32(b, uint32(len(q)))
		b = append(b, q...)
	}
	return b
}

// disks is a fixed set of exports; the first is the default one too.
type disks []ExportInfo

func (d disks) List() []ExportInfo { return d }
func (d disks) Find(name string) (ExportInfo, bool) {
	for _, e := range d {
		if e.Name == name {
			return e, true
		}
	}
	if name == "" && len(d) > 0 {
		return d[0], true
	}
	return ExportInfo{}, false
}

const allFlags = FlagHasFlags | FlagSendFlush | FlagSendFUA | FlagSendTrim | FlagSendWriteZeroes | FlagSendDF |
	FlagCanMultiConn | FlagSendCache | FlagSendFastZero | FlagBlockStatusPayload

var testDisks = disks{
	{Name: "disk", Description: "a disk", Size: 1 << 30, Flags: allFlags, MinBlock: 512, PrefBlock: 4096, MaxBlock: 1 << 20,
		Contexts: []string{ContextAllocation, ContextDepth, ContextBitmapPrefix + "b0", ContextBitmapPrefix + "b1"}, Handle: "the handle"},
	{Name: "ro", Size: 4096, Flags: FlagReadOnly},
	{Name: "hidden", Size: 8192, Hidden: true},
}

// optReply is one reply as the client sees it.
type optReply struct {
	opt  Option
	rep  Rep
	data []byte
}

// cutReplies takes all complete option replies from the start of b.
func cutReplies(t *testing.T, b []byte) (rs []optReply, rest []byte) {
	t.Helper()
	for len(b) >= 20 && be.Uint64(b) == MagicOptionReply {
		n := int(be.Uint32(b[16:]))
		if len(b) < 20+n {
			t.Fatalf("reply is cut off: %d of %d bytes", len(b), 20+n)
		}
		rs = append(rs, optReply{Option(be.Uint32(b[8:])), Rep(be.Uint32(b[12:])), b[20 : 20+n]})
		b = b[20+n:]
	}
	return rs, b
}

// play runs a server against the given bytes and returns its replies after the
// greeting.
func play(t *testing.T, cfg ServerConfig, in ...[]byte) (*Session, []optReply, []byte, error) {
	t.Helper()
	if cfg.Exports == nil {
		cfg.Exports = testDisks
	}
	s := &script{in: bytes.NewReader(bytes.Join(in, nil))}
	sess, err := ServerHandshake(s, &cfg)
	out := s.out.Bytes()
	if len(out) < 18 || be.Uint64(out) != MagicInit || be.Uint64(out[8:]) != MagicOption || be.Uint16(out[16:]) != 3 {
		t.Fatalf("greeting is % x", out)
	}
	rs, rest := cutReplies(t, out[18:])
	return sess, rs, rest, err
}

func TestServerGo(t *testing.T) {
	s, rs, rest, err := play(t, ServerConfig{}, hello(bothFlags), opt(OptGo, infoData("disk", InfoBlockSize, InfoName, InfoDescription)))
	if err != nil {
		t.Fatal(err)
	}
	if len(rest) != 0 || len(rs) != 5 || rs[4].rep != RepAck {
		t.Fatalf("replies %v, rest % x", rs, rest)
	}
	want := []string{
		"\x00\x00\x00\x00\x00\x00\x40\x00\x00\x00\x0d\x6d",
		"\x00\x01disk",
		"\x00\x02a disk",
		"\x00\x03\x00\x00\x02\x00\x00\x00\x10\x00\x00\x10\x00\x00",
	}
	for i, w := range want {
		if rs[i].rep != RepInfo || string(rs[i].data) != w {
			t.Errorf("info %d is %v % x, want % x", i, rs[i].rep, rs[i].data, w)
		}
	}
	if s.Export.Name != "disk" || s.Export.Handle != "the handle" || !s.BlockSizeAsked || s.MinBlock != 512 ||
		s.MaxPayload != 1<<20 || s.Structured || s.Extended || s.TLS || s.Flags&(FlagSendDF|FlagBlockStatusPayload) != 0 {
		t.Errorf("session %+v", s)
	}
}

func TestServerAbort(t *testing.T) {
	_, rs, _, err := play(t, ServerConfig{}, hello(bothFlags), opt(OptAbort, []byte("ignored")))
	if !errors.Is(err, ErrAborted) || len(rs) != 1 || rs[0].rep != RepAck {
		t.Errorf("error %v, replies %v", err, rs)
	}
}

func TestServerClientGone(t *testing.T) {
	_, _, _, err := play(t, ServerConfig{}, hello(bothFlags))
	if !errors.Is(err, io.EOF) || errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), "reading an option") {
		t.Error(err)
	}
}

func TestServerMetaContext(t *testing.T) {
	s, rs, _, err := play(t, ServerConfig{}, hello(bothFlags), opt(OptStructuredReply, nil),
		opt(OptListMetaContext, metaData("disk")),
		opt(OptListMetaContext, metaData("disk", "base:", "qemu:dirty-bitmap:", "x-none:", "plain")),
		opt(OptSetMetaContext, metaData("disk", "qemu:dirty-bitmap:b1", "base:", "base:allocation", "base:allocation")),
		opt(OptGo, infoData("disk")))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range rs {
		if r.rep == RepMetaContext {
			got = append(got, fmt.Sprintf("%v %d %s", r.opt, be.Uint32(r.data), r.data[4:]))
		}
	}
	want := []string{
		"LIST_META_CONTEXT 0 base:allocation", "LIST_META_CONTEXT 0 qemu:allocation-depth",
		"LIST_META_CONTEXT 0 qemu:dirty-bitmap:b0", "LIST_META_CONTEXT 0 qemu:dirty-bitmap:b1",
		"LIST_META_CONTEXT 0 base:allocation", "LIST_META_CONTEXT 0 qemu:dirty-bitmap:b0", "LIST_META_CONTEXT 0 qemu:dirty-bitmap:b1",
		"SET_META_CONTEXT 0 base:allocation", "SET_META_CONTEXT 3 qemu:dirty-bitmap:b1",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]MetaContext{{0, "base:allocation"}, {3, "qemu:dirty-bitmap:b1"}}, s.Contexts); d != "" {
		t.Error(d)
	}
	if s.Flags&FlagSendDF == 0 || s.Flags&FlagBlockStatusPayload != 0 || !s.Structured {
		t.Errorf("session %+v", s)
	}
}

// short describes replies in a line each.
func short(rs []optReply) []string {
	s := []string{}
	for _, r := range rs {
		s = append(s, fmt.Sprintf("%v %v", r.opt, r.rep))
	}
	return s
}

// Options that leave the handshake going: what is answered, and that the next
// option is understood.
func TestServerOptions(t *testing.T) {
	long := strings.Repeat("n", MaxString+1)
	manyInfos := infoData("disk", make([]Info, MaxInfoRequests+1)...)
	manyQueries := metaData("disk", make([]string, MaxMetaQueries+1)...)
	tooBig := make([]byte, MaxOptionLen+1)
	structured := opt(OptStructuredReply, nil)
	for _, tt := range []struct {
		name string
		cfg  ServerConfig
		in   []byte
		want []string
		text string // in the last error's message
	}{
		{"list", ServerConfig{}, opt(OptList, nil), []string{"LIST SERVER", "LIST SERVER", "LIST ACK"}, ""},
		{"list with data", ServerConfig{}, opt(OptList, []byte{0}), []string{"LIST ERR_INVALID"}, "no data"},
		{"list with huge data", ServerConfig{}, opt(OptList, tooBig), []string{"LIST ERR_INVALID"}, "no data"},
		{"list forbidden", ServerConfig{NoList: true}, opt(OptList, nil), []string{"LIST ERR_POLICY"}, "by name"},
		{"unknown option", ServerConfig{}, opt(99, []byte("data")), []string{"option 99 ERR_UNSUP"}, "not known"},
		{"unknown option with huge data", ServerConfig{}, opt(99, tooBig), []string{"option 99 ERR_UNSUP"}, "not known"},
		{"withdrawn option", ServerConfig{}, opt(OptPeekExport, nil), []string{"PEEK_EXPORT ERR_UNSUP"}, "not known"},
		{"option 0", ServerConfig{}, opt(0, nil), []string{"option 0 ERR_UNSUP"}, "not known"},
		{"info", ServerConfig{}, opt(OptInfo, infoData("ro")), []string{"INFO INFO", "INFO INFO", "INFO ACK"}, ""},
		{"info of a hidden export", ServerConfig{}, opt(OptInfo, infoData("hidden")), []string{"INFO INFO", "INFO INFO", "INFO ACK"}, ""},
		{"info of the default export", ServerConfig{}, opt(OptInfo, infoData("", InfoName)), []string{"INFO INFO", "INFO INFO", "INFO INFO", "INFO ACK"}, ""},
		{"info with unknown requests", ServerConfig{}, opt(OptInfo, infoData("ro", 77, 0xffff)), []string{"INFO INFO", "INFO INFO", "INFO ACK"}, ""},
		{"info of an unknown export", ServerConfig{}, opt(OptInfo, infoData("nil")), []string{"INFO ERR_UNKNOWN"}, `no export "nil"`},
		{"no default export", ServerConfig{Exports: disks{}}, opt(OptGo, infoData("")), []string{"GO ERR_UNKNOWN"}, "no default export"},
		{"go of a name too long", ServerConfig{}, opt(OptGo, infoData(long)), []string{"GO ERR_INVALID"}, "4097 bytes"},
		{"go of a name with NUL", ServerConfig{}, opt(OptGo, infoData("a\x00b")), []string{"GO ERR_INVALID"}, "NUL"},
		{"go of a name not UTF-8", ServerConfig{}, opt(OptGo, infoData("a\xffb")), []string{"GO ERR_INVALID"}, "UTF-8"},
		{"go without data", ServerConfig{}, opt(OptGo, nil), []string{"GO ERR_INVALID"}, "length of the name"},
		{"go with a name longer than the option", ServerConfig{}, opt(OptGo, []byte{0, 0, 0, 9, 'x', 0, 0}), []string{"GO ERR_INVALID"}, "more than the option"},
		{"go with a giant name length", ServerConfig{}, opt(OptGo, []byte{255, 255, 255, 255, 'x', 0, 0}), []string{"GO ERR_INVALID"}, "4294967295"},
		{"go without requests", ServerConfig{}, opt(OptGo, []byte{0, 0, 0, 1, 'x', 0}), []string{"GO ERR_INVALID"}, "number of information requests"},
		{"go with too few requests", ServerConfig{}, opt(OptGo, []byte{0, 0, 0, 1, 'x', 0, 2, 0, 0}), []string{"GO ERR_INVALID"}, "take 4 bytes"},
		{"go with bytes after the requests", ServerConfig{}, opt(OptGo, append(infoData("disk"), 0)), []string{"GO ERR_INVALID"}, "take 0 bytes"},
		{"go with too many requests", ServerConfig{}, opt(OptGo, manyInfos), []string{"GO ERR_INVALID"}, "256"},
		{"go with huge data", ServerConfig{}, opt(OptGo, tooBig), []string{"GO ERR_TOO_BIG"}, "limited"},
		{"go without promising block sizes", ServerConfig{RequireBlockSize: true}, opt(OptGo, infoData("disk")), []string{"GO INFO", "GO INFO", "GO ERR_BLOCK_SIZE_REQD"}, "minimum block size of 512"},
		{"structured replies", ServerConfig{}, bytes.Join([][]byte{structured, structured}, nil), []string{"STRUCTURED_REPLY ACK", "STRUCTURED_REPLY ACK"}, ""},
		{"structured replies with data", ServerConfig{}, opt(OptStructuredReply, []byte{1}), []string{"STRUCTURED_REPLY ERR_INVALID"}, "no data"},
		{"structured replies switched off", ServerConfig{NoStructured: true}, structured, []string{"STRUCTURED_REPLY ERR_UNSUP"}, "switched off"},
		{"structured after extended", ServerConfig{}, bytes.Join([][]byte{opt(OptExtendedHeaders, nil), structured}, nil), []string{"EXTENDED_HEADERS ACK", "STRUCTURED_REPLY ERR_EXT_HEADER_REQD"}, "precedence"},
		{"extended headers with data", ServerConfig{}, opt(OptExtendedHeaders, []byte{1}), []string{"EXTENDED_HEADERS ERR_INVALID"}, "no data"},
		{"extended headers switched off", ServerConfig{NoExtended: true}, opt(OptExtendedHeaders, nil), []string{"EXTENDED_HEADERS ERR_UNSUP"}, "switched off"},
		{"contexts before structured replies", ServerConfig{}, opt(OptSetMetaContext, metaData("disk", "base:allocation")), []string{"SET_META_CONTEXT ERR_INVALID"}, "negotiate them first"},
		{"contexts of an unknown export", ServerConfig{}, append(bytes.Clone(structured), opt(OptListMetaContext, metaData("nil"))...), []string{"STRUCTURED_REPLY ACK", "LIST_META_CONTEXT ERR_UNKNOWN"}, "no export"},
		{"too many queries", ServerConfig{}, append(bytes.Clone(structured), opt(OptSetMetaContext, manyQueries)...), []string{"STRUCTURED_REPLY ACK", "SET_META_CONTEXT ERR_TOO_BIG"}, "65 queries"},
		{"as many queries as allowed", ServerConfig{}, append(bytes.Clone(structured), opt(OptSetMetaContext, metaData("disk", make([]string, MaxMetaQueries)...))...), []string{"STRUCTURED_REPLY ACK", "SET_META_CONTEXT ACK"}, ""},
		{"huge queries", ServerConfig{}, append(bytes.Clone(structured), opt(OptSetMetaContext, tooBig)...), []string{"STRUCTURED_REPLY ACK", "SET_META_CONTEXT ERR_TOO_BIG"}, "fewer"},
		{"query longer than the option", ServerConfig{}, append(bytes.Clone(structured), opt(OptSetMetaContext, append(metaData("disk"), 0))...), []string{"STRUCTURED_REPLY ACK", "SET_META_CONTEXT ERR_INVALID"}, "follow the last query"},
		{"query cut off", ServerConfig{}, append(bytes.Clone(structured), opt(OptSetMetaContext, metaData("disk", "base:")[:18])...), []string{"STRUCTURED_REPLY ACK", "SET_META_CONTEXT ERR_INVALID"}, "in a query"},
		{"a giant number of queries", ServerConfig{}, append(bytes.Clone(structured), opt(OptSetMetaContext, []byte{0, 0, 0, 0, 255, 255, 255, 255})...), []string{"STRUCTURED_REPLY ACK", "SET_META_CONTEXT ERR_TOO_BIG"}, "limit"},
		{"number of queries missing", ServerConfig{}, append(bytes.Clone(structured), opt(OptSetMetaContext, []byte{0, 0, 0, 0, 0})...), []string{"STRUCTURED_REPLY ACK", "SET_META_CONTEXT ERR_INVALID"}, "number of queries"},
		{"TLS switched off", ServerConfig{}, opt(OptStartTLS, nil), []string{"STARTTLS ERR_POLICY"}, "not configured"},
		{"TLS with data", ServerConfig{TLS: TLSOptional, StartTLS: plainTLS}, opt(OptStartTLS, []byte{1}), []string{"STARTTLS ERR_INVALID"}, "no data"},
		{"TLS twice", ServerConfig{TLS: TLSRequired, StartTLS: plainTLS}, append(opt(OptStartTLS, nil), opt(OptStartTLS, nil)...), []string{"STARTTLS ACK", "STARTTLS ERR_INVALID"}, "already"},
		{"TLS required", ServerConfig{TLS: TLSRequired, StartTLS: plainTLS}, append(opt(OptList, nil), opt(99, tooBig)...), []string{"LIST ERR_TLS_REQD", "option 99 ERR_TLS_REQD"}, "requires TLS"},
		{"shutting down", ServerConfig{Shutdown: func() bool { return true }}, opt(OptGo, infoData("disk")), []string{"GO ERR_SHUTDOWN"}, "shutting down"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, rs, rest, err := play(t, tt.cfg, hello(bothFlags), tt.in, opt(OptAbort, nil))
			if !errors.Is(err, ErrAborted) || len(rest) != 0 {
				t.Fatalf("error %v, rest % x", err, rest)
			}
			if d := cmp.Diff(append(tt.want, "ABORT ACK"), short(rs)); d != "" {
				t.Fatal(d)
			}
			if last := rs[len(rs)-2]; last.rep.IsError() && !strings.Contains(string(last.data), tt.text) || len(last.data) > MaxString {
				t.Errorf("message %q lacks %q", last.data, tt.text)
			}
		})
	}
}

// plainTLS is an upgrade that changes nothing.
func plainTLS(rw io.ReadWriter) (io.ReadWriter, error) { return rw, nil }

// What ends a handshake without a session.
func TestServerHangsUp(t *testing.T) {
	flood := bytes.Repeat(opt(OptList, nil), MaxOptions)
	giant := opt(99, nil)
	be.PutUint32(giant[12:], 1<<32-1)
	drip := bytes.Repeat(opt(99, make([]byte, 8<<20)), 4)
	badMagic := opt(OptList, nil)
	badMagic[7]++
	noTLS := func(io.ReadWriter) (io.ReadWriter, error) { return nil, errors.New("no certificate") }
	for _, tt := range []struct {
		name     string
		cfg      ServerConfig
		in       [][]byte
		protocol bool
		text     string
	}{
		{"unknown client flag", ServerConfig{}, [][]byte{hello(bothFlags | 4)}, true, "0x7"},
		{"option without fixed newstyle", ServerConfig{}, [][]byte{hello(0), opt(OptGo, infoData("disk"))}, true, "fixed newstyle"},
		{"TLS required without fixed newstyle", ServerConfig{TLS: TLSRequired, StartTLS: plainTLS}, [][]byte{hello(0)}, true, "requires"},
		{"wrong magic number", ServerConfig{}, [][]byte{hello(bothFlags), badMagic}, true, "out of step"},
		{"flood of options", ServerConfig{}, [][]byte{hello(bothFlags), flood, opt(OptGo, infoData("disk"))}, true, "1024 options"},
		{"giant option", ServerConfig{}, [][]byte{hello(bothFlags), giant}, true, "4294967295"},
		{"flood of bytes", ServerConfig{}, [][]byte{hello(bothFlags), drip}, true, "limit"},
		{"EXPORT_NAME of nothing", ServerConfig{}, [][]byte{hello(bothFlags), opt(OptExportName, []byte("nil"))}, false, "none of that name"},
		{"EXPORT_NAME too long", ServerConfig{}, [][]byte{hello(bothFlags), opt(OptExportName, make([]byte, MaxString+1))}, true, "4097"},
		{"EXPORT_NAME much too long", ServerConfig{}, [][]byte{hello(bothFlags), opt(OptExportName, make([]byte, MaxOptionLen+1))}, true, "4096"},
		{"EXPORT_NAME after extended headers", ServerConfig{}, [][]byte{hello(bothFlags), opt(OptExtendedHeaders, nil), opt(OptExportName, nil)}, true, "extended"},
		{"EXPORT_NAME without TLS", ServerConfig{TLS: TLSRequired, StartTLS: plainTLS}, [][]byte{hello(bothFlags), opt(OptExportName, nil)}, false, "requires TLS"},
		{"EXPORT_NAME without block sizes", ServerConfig{RequireBlockSize: true}, [][]byte{hello(bothFlags), opt(OptExportName, nil)}, false, "minimum block size of 512"},
		{"EXPORT_NAME while shutting down", ServerConfig{Shutdown: func() bool { return true }}, [][]byte{hello(bothFlags), opt(OptExportName, nil)}, false, "shutting down"},
		{"TLS fails", ServerConfig{TLS: TLSOptional, StartTLS: noTLS}, [][]byte{hello(bothFlags), opt(OptStartTLS, nil)}, false, "no certificate"},
		{"our own mistake", ServerConfig{Exports: disks{{Name: "x", MinBlock: 3}}}, [][]byte{hello(bothFlags), opt(OptGo, infoData("x"))}, false, "power of two"},
		{"our own mistake in a list", ServerConfig{Exports: disks{{Name: "x\x00"}}}, [][]byte{hello(bothFlags), opt(OptList, nil)}, false, "NUL"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, _, _, err := play(t, tt.cfg, tt.in...)
			if s != nil || err == nil || errors.Is(err, ErrProtocol) != tt.protocol || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("session %v, error %v", s, err)
			}
		})
	}
}

// The last option of a flood that is allowed still counts.
func TestServerOptionLimit(t *testing.T) {
	s, _, _, err := play(t, ServerConfig{}, hello(bothFlags), bytes.Repeat(opt(OptList, nil), MaxOptions-1), opt(OptGo, infoData("disk")))
	if err != nil || s == nil {
		t.Error(err)
	}
}

func TestServerExportName(t *testing.T) {
	for _, tt := range []struct {
		fl   ClientFlags
		rest int
	}{{0, 134}, {FlagCFixedNewstyle, 134}, {bothFlags, 10}, {FlagCNoZeroes, 10}} {
		s, rs, rest, err := play(t, ServerConfig{}, hello(tt.fl), opt(OptExportName, []byte("disk")))
		if err != nil || len(rs) != 0 || len(rest) != tt.rest {
			t.Fatalf("flags %d: error %v, replies %v, rest % x", tt.fl, err, rs, rest)
		}
		if be.Uint64(rest) != 1<<30 || be.Uint16(rest[8:]) != uint16(s.Flags) || s.Flags&FlagSendDF != 0 || !bytes.Equal(rest[10:], make([]byte, tt.rest-10)) {
			t.Errorf("flags %d: % x", tt.fl, rest)
		}
		if s.BlockSizeAsked || s.MinBlock != 1 || s.Name != "disk" {
			t.Errorf("session %+v", s)
		}
	}
}

// STARTTLS undoes what was negotiated before.
func TestServerTLSResets(t *testing.T) {
	cfg := ServerConfig{TLS: TLSOptional, StartTLS: plainTLS}
	s, _, _, err := play(t, cfg, hello(bothFlags), opt(OptExtendedHeaders, nil), opt(OptSetMetaContext, metaData("disk", ContextAllocation)),
		opt(OptStartTLS, nil), opt(OptGo, infoData("disk")))
	if err != nil {
		t.Fatal(err)
	}
	if !s.TLS || s.Structured || s.Extended || s.Contexts != nil || s.Flags&FlagSendDF != 0 {
		t.Errorf("session %+v", s)
	}
}

// Plain text that an attacker puts behind STARTTLS must reach the TLS
// handshake, which it breaks, and not be taken for encrypted options.
func TestServerTLSTakesNothingBefore(t *testing.T) {
	injected := opt(OptGo, infoData("disk"))
	var seen []byte
	cfg := ServerConfig{TLS: TLSRequired, StartTLS: func(rw io.ReadWriter) (io.ReadWriter, error) {
		seen, _ = io.ReadAll(rw)
		return nil, errors.New("that is not TLS")
	}}
	_, _, _, err := play(t, cfg, hello(bothFlags), opt(OptStartTLS, nil), injected)
	if err == nil || !bytes.Equal(seen, injected) {
		t.Errorf("error %v, the TLS handshake got % x", err, seen)
	}
}

// Contexts count only for the export they were asked for, and only the last
// selection, even one that failed.
func TestServerContextsOfSession(t *testing.T) {
	structured := opt(OptStructuredReply, nil)
	set := func(name string, q ...string) []byte { return opt(OptSetMetaContext, metaData(name, q...)) }
	for _, tt := range []struct {
		name string
		in   [][]byte
		want int
	}{
		{"same export", [][]byte{set("disk", ContextAllocation), opt(OptGo, infoData("disk"))}, 1},
		{"by another name", [][]byte{set("", ContextAllocation), opt(OptGo, infoData("disk"))}, 1},
		{"other export", [][]byte{set("disk", ContextAllocation), opt(OptGo, infoData("ro"))}, 0},
		{"selected twice", [][]byte{set("disk", ContextAllocation), set("disk", ContextDepth, ContextAllocation), opt(OptGo, infoData("disk"))}, 2},
		{"taken back", [][]byte{set("disk", ContextAllocation), set("disk"), opt(OptGo, infoData("disk"))}, 0},
		{"taken back by failing", [][]byte{set("disk", ContextAllocation), set("nil", ContextAllocation), opt(OptGo, infoData("disk"))}, 0},
		{"with EXPORT_NAME", [][]byte{set("disk", ContextAllocation), opt(OptExportName, []byte("disk"))}, 1},
	} {
		s, _, _, err := play(t, ServerConfig{}, append([][]byte{hello(bothFlags), structured}, tt.in...)...)
		if err != nil || len(s.Contexts) != tt.want {
			t.Errorf("%s: %+v, %v", tt.name, s, err)
		}
	}
}

// swapped is a server whose export is replaced by another between two options.
type swapped struct{ asked int }

func (s *swapped) List() []ExportInfo { return nil }
func (s *swapped) Find(string) (ExportInfo, bool) {
	s.asked++
	if s.asked == 1 {
		return ExportInfo{Name: "x", Contexts: []string{ContextDepth, ContextAllocation}}, true
	}
	return ExportInfo{Name: "x", Contexts: []string{ContextAllocation}}, true
}

// An id given out for one export must not reach into the list of another.
func TestServerContextsOfReplacedExport(t *testing.T) {
	s, _, _, err := play(t, ServerConfig{Exports: &swapped{}}, hello(bothFlags), opt(OptStructuredReply, nil),
		opt(OptSetMetaContext, metaData("x", ContextAllocation)), opt(OptGo, infoData("x")))
	if err != nil || len(s.Contexts) != 0 {
		t.Errorf("session %+v, error %v", s, err)
	}
}

// Each prefix of a good handshake ends in an error that says the bytes ended.
func TestServerTruncated(t *testing.T) {
	whole := bytes.Join([][]byte{hello(bothFlags), opt(OptStructuredReply, nil), opt(OptSetMetaContext, metaData("disk", "base:allocation")),
		opt(OptInfo, infoData("disk", InfoName)), opt(OptGo, infoData("disk", InfoBlockSize))}, nil)
	for i := range whole {
		_, _, _, err := play(t, ServerConfig{}, whole[:i])
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, ErrProtocol) {
			t.Fatalf("after %d bytes: %v", i, err)
		}
	}
	s := &script{in: bytes.NewReader(append(whole, "and more"...))}
	if _, err := ServerHandshake(s, &ServerConfig{Exports: testDisks}); err != nil {
		t.Fatal(err)
	}
	if left := s.in.Len(); left != len("and more") {
		t.Errorf("%d bytes are left of those after the handshake, want %d", left, len("and more"))
	}
}

func TestServerRefusesItsOwnMistakes(t *testing.T) {
	for _, cfg := range []ServerConfig{{}, {Exports: testDisks, TLS: TLSOptional}} {
		if _, err := ServerHandshake(&script{in: bytes.NewReader(nil)}, &cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
}

func TestExportCheck(t *testing.T) {
	many := make([]string, MaxContexts+1)
	for _, tt := range []struct {
		e    ExportInfo
		text string
	}{
		{ExportInfo{}, ""},
		{ExportInfo{Name: strings.Repeat("x", MaxString), Size: MaxSize, MinBlock: MaxMinBlock, Contexts: many[:MaxContexts]}, ""},
		{ExportInfo{MinBlock: 1, PrefBlock: 512, MaxBlock: 512}, ""},
		{ExportInfo{Name: strings.Repeat("x", MaxString+1)}, "4097"},
		{ExportInfo{Description: "\xff"}, "UTF-8"},
		{ExportInfo{Size: MaxSize + 1}, "size"},
		{ExportInfo{MinBlock: 2 * MaxMinBlock}, "minimum"},
		{ExportInfo{MinBlock: 3}, "minimum"},
		{ExportInfo{PrefBlock: 256}, "preferred"},
		{ExportInfo{PrefBlock: 3072}, "preferred"},
		{ExportInfo{MinBlock: 4096, PrefBlock: 512}, "preferred"},
		{ExportInfo{MaxBlock: 512}, "maximum"},
		{ExportInfo{Contexts: many}, "257"},
		{ExportInfo{Contexts: []string{"a\x00"}}, "NUL"},
	} {
		err := tt.e.Check()
		if (err == nil) != (tt.text == "") || err != nil && !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%.40v: %v, want %q", tt.e, err, tt.text)
		}
	}
}
