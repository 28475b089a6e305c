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
