package nbd

import (
	"errors"
	"fmt"
	"io"
)

// TLSMode says what a side does about TLS. ("Server-side requirements")
type TLSMode uint8

// The modes. A server's TLSRequired is the document's FORCEDTLS: it refuses
// all but STARTTLS and ABORT. A client's TLSOptional goes on in plain text if
// the server has no TLS.
const (
	TLSOff TLSMode = iota
	TLSOptional
	TLSRequired
)

// StartTLS upgrades a connection and returns the encrypted stream to go on
// with. It does the TLS handshake before it returns.
type StartTLS func(rw io.ReadWriter) (io.ReadWriter, error)

// ServerConfig is what a server tells and permits one connection. The zero
// value of all but Exports is a sensible server without TLS.
type ServerConfig struct {
	Exports Exports // required

	TLS      TLSMode
	StartTLS StartTLS // required unless TLS is TLSOff

	NoList       bool // answer LIST with an error of policy
	NoStructured bool // neither structured replies nor what builds on them
	NoExtended   bool // no extended headers

	// RequireBlockSize turns away clients that do not ask for the block
	// sizes of an export whose MinBlock is above 1. Without it they are
	// told 1 and may send requests of any alignment.
	RequireBlockSize bool

	// Shutdown, if set, makes the handshake end once it returns true.
	Shutdown func() bool
}

// Session is what a handshake agreed on, as either side sees it.
type Session struct {
	// Conn is the stream to go on with: what the handshake was given, or
	// the encrypted stream over it.
	Conn io.ReadWriter

	// Export is the export, zero block sizes filled in: on the server as
	// Find gave it, on the client as the server described it.
	Export ExportInfo
	Name   string // the name the client used

	// Flags are the transmission flags as they travelled, without those
	// that other parts of the session rule out.
	Flags TransmissionFlags

	TLS bool
	// Structured: replies come in chunks, and a read must be answered so.
	Structured bool
	// Extended: extended headers both ways. Implies Structured.
	Extended bool
	// Contexts the client selected. On the server they are in the order of
	// their ids, and an id is the place of the name in Export.Contexts.
	Contexts []MetaContext

	// BlockSizeAsked: the client promised to keep to Export's block sizes.
	BlockSizeAsked bool
	// MinBlock is the alignment of requests, in bytes: Export.MinBlock if
	// BlockSizeAsked, otherwise 1.
	MinBlock uint32
	// MaxPayload is the most data in one request or reply, in bytes.
	MaxPayload uint32
}

// ErrAborted says that the client ended the handshake as it should, by ABORT.
var ErrAborted = errors.New("nbd: client ended the handshake")

// ServerHandshake does the server's side of the fixed newstyle handshake on rw
// until the client has chosen an export. It reads not one byte too far. The
// caller sets deadlines on the connection beforehand and closes it after an
// error; ErrProtocol is in the chain if the client broke the protocol.
// ("Fixed newstyle negotiation")
func ServerHandshake(rw io.ReadWriter, cfg *ServerConfig) (*Session, error) {
	if cfg.Exports == nil || cfg.TLS != TLSOff && cfg.StartTLS == nil {
		return nil, errors.New("nbd handshake: configuration lacks Exports, or StartTLS where TLS is on")
	}
	h := &serverHandshake{cfg: cfg, rw: rw, budget: MaxHandshakeBytes}
	s, err := h.run()
	if err != nil && h.plain && !h.tls {
		return nil, fmt.Errorf("nbd handshake: %w: %w", ErrPlain, err)
	}
	if err != nil {
		return nil, fmt.Errorf("nbd handshake: %w", err)
	}
	return s, nil
}

// ErrPlain is wrapped where a client left that had asked for something without
// starting the TLS that is required.
var ErrPlain = errors.New("nbd: client did not start the TLS that this server requires")

// serverHandshake is the state of one handshake.
type serverHandshake struct {
	cfg    *ServerConfig
	rw     io.ReadWriter
	budget int    // bytes the client may still send
	in     []byte // data of the option, reused
	out    []byte // replies not yet written

	fixed    bool // the client knows options other than EXPORT_NAME
	noZeroes bool

	tls   bool
	plain bool // something was asked for without the TLS that is required
	negotiated
}

// negotiated is the state that STARTTLS throws away.
type negotiated struct {
	structured bool
	extended   bool
	metaExport string // canonical name of the export contexts is about
	contexts   []MetaContext
}

// option is one option, its data read or, if too long, read away.
type option struct {
	typ    Option
	data   []byte
	tooBig bool
}

func (h *serverHandshake) run() (*Session, error) {
	if err := h.greet(); err != nil {
		return nil, err
	}
	for range MaxOptions {
		o, err := h.readOption()
		if err != nil {
			return nil, err
		}
		s, err := h.answer(o)
		if s != nil || err != nil {
			return s, err
		}
	}
	return nil, fmt.Errorf("%w: client sent %d options without choosing an export: that is the limit", ErrProtocol, MaxOptions)
}

// greet is the exchange before options. ("Newstyle negotiation")
func (h *serverHandshake) greet() error {
	h.out = be.AppendUint64(h.out, MagicInit)
	h.out = be.AppendUint64(h.out, MagicOption)
	h.out = be.AppendUint16(h.out, uint16(FlagFixedNewstyle|FlagNoZeroes))
	if err := h.flush(); err != nil {
		return err
	}
	b, err := h.read(4, "client flags")
	if err != nil {
		return err
	}
	fl := ClientFlags(be.Uint32(b))
	if fl&^(FlagCFixedNewstyle|FlagCNoZeroes) != 0 {
		return fmt.Errorf("%w: client flags %#x: only %#x are known", ErrProtocol, uint32(fl), uint32(FlagCFixedNewstyle|FlagCNoZeroes))
	}
	h.fixed = fl&FlagCFixedNewstyle != 0
	h.noZeroes = fl&FlagCNoZeroes != 0
	if !h.fixed && h.cfg.TLS == TLSRequired {
		return fmt.Errorf("%w: client does not speak fixed newstyle, so it cannot start the TLS that this server requires", ErrProtocol)
	}
	return nil
}

// readOption reads an option and its data, which stay valid until the next.
func (h *serverHandshake) readOption() (option, error) {
	b, err := h.read(16, "an option")
	if err != nil {
		return option{}, err
	}
	if m := be.Uint64(b); m != MagicOption {
		return option{}, badMagic("option", m, MagicOption)
	}
	o := option{typ: Option(be.Uint32(b[8:]))}
	n := be.Uint32(b[12:])
	if uint64(n) > uint64(h.budget) {
		return o, fmt.Errorf("%w: %v has %d bytes of data: a handshake is limited to %d bytes", ErrProtocol, o.typ, n, MaxHandshakeBytes)
	}
	if n > MaxOptionLen {
		o.tooBig = true
		h.budget -= int(n)
		if _, err := io.CopyN(io.Discard, h.rw, int64(n)); err != nil {
			return o, fmt.Errorf("reading %d bytes of %v: %w", n, o.typ, err)
		}
		return o, nil
	}
	o.data, err = h.read(int(n), o.typ.String())
	return o, err
}

// read reads n bytes into h.in. The memory grows as bytes come in, not as a
// length announces them.
func (h *serverHandshake) read(n int, what string) ([]byte, error) {
	if n > h.budget {
		return nil, fmt.Errorf("%w: client sent %d bytes without choosing an export: that is the limit", ErrProtocol, MaxHandshakeBytes)
	}
	h.budget -= n
	var err error
	if h.in, err = readGrowing(h.rw, h.in, n); err != nil {
		return nil, fmt.Errorf("reading %s: %w", what, err)
	}
	return h.in, nil
}

// answer replies to one option. A session ends the handshake.
func (h *serverHandshake) answer(o option) (*Session, error) {
	if !h.fixed && o.typ != OptExportName {
		return nil, fmt.Errorf("%w: client sent %v without the flag of fixed newstyle", ErrProtocol, o.typ)
	}
	if o.typ == OptAbort {
		h.reply(o.typ, RepAck)
		_ = h.flush() // the client may be gone already, and that is allowed
		return nil, ErrAborted
	}
	if rep, why := h.refusal(o.typ); rep != 0 {
		if o.typ == OptExportName { // cannot be answered with an error
			return nil, fmt.Errorf("client asked for an export by EXPORT_NAME: %s", why)
		}
		return nil, h.fail(o.typ, rep, "%s", why)
	}
	switch o.typ {
	case OptExportName:
		return h.exportName(o)
	case OptInfo, OptGo:
		return h.infoOrGo(o)
	}
	return nil, h.setting(o)
}

// refusal says why no option is served now, ABORT aside.
func (h *serverHandshake) refusal(t Option) (Rep, string) {
	if h.cfg.Shutdown != nil && h.cfg.Shutdown() {
		return RepErrShutdown, "the server is shutting down: connect again later"
	}
	if h.cfg.TLS == TLSRequired && !h.tls && t != OptStartTLS {
		h.plain = true
		return RepErrTLSReqd, "this server requires TLS: start it first (nbds:// in a URI)"
	}
	return 0, ""
}

// setting serves the options that leave the handshake going.
func (h *serverHandshake) setting(o option) error {
	switch o.typ {
	case OptList:
		return h.list(o)
	case OptStartTLS:
		return h.startTLS(o)
	case OptStructuredReply:
		return h.structuredReply(o)
	case OptExtendedHeaders:
		return h.extendedHeaders(o)
	case OptListMetaContext, OptSetMetaContext:
		return h.metaContext(o)
	}
	return h.fail(o.typ, RepErrUnsup, "%v is not known to this server", o.typ)
}

// reply adds a reply with the given parts as its data.
func (h *serverHandshake) reply(t Option, r Rep, parts ...string) {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	h.out = be.AppendUint64(h.out, MagicOptionReply)
	h.out = be.AppendUint32(h.out, uint32(t))
	h.out = be.AppendUint32(h.out, uint32(r))
	h.out = be.AppendUint32(h.out, uint32(n))
	for _, p := range parts {
		h.out = append(h.out, p...)
	}
}

// fail ends an option with an error and a text for people.
func (h *serverHandshake) fail(t Option, r Rep, format string, a ...any) error {
	h.reply(t, r, clip(fmt.Sprintf(format, a...)))
	return h.flush()
}

// ack ends an option with success.
func (h *serverHandshake) ack(t Option) error {
	h.reply(t, RepAck)
	return h.flush()
}

func (h *serverHandshake) flush() error {
	_, err := h.rw.Write(h.out)
	h.out = h.out[:0]
	if err != nil {
		return fmt.Errorf("writing to the client: %w", err)
	}
	return nil
}

// readGrowing reads n bytes over buf, which it grows while they arrive: at
// most to twice of what has come in.
func readGrowing(r io.Reader, buf []byte, n int) ([]byte, error) {
	const step = 4096
	buf = buf[:0]
	for len(buf) < n {
		have := len(buf)
		more := min(n-have, max(have, step))
		if cap(buf) < have+more {
			buf = append(buf, make([]byte, more)...)
		}
		buf = buf[:have+more]
		if m, err := io.ReadFull(r, buf[have:]); err != nil {
			if err == io.EOF && have+m > 0 {
				err = io.ErrUnexpectedEOF
			}
			return buf[:have+m], err
		}
	}
	return buf, nil
}
