package nbd

import (
	"errors"
	"fmt"
	"io"
	"slices"
)

// Mode is what a client wants of a server.
type Mode uint8

// The modes.
const (
	ModeGo   Mode = iota // use an export
	ModeInfo             // learn about an export, then leave
	ModeList             // list the exports, then leave
)

// ClientConfig is what a client asks for. What the server lacks is done
// without, except for the export and for TLSRequired.
type ClientConfig struct {
	Export string // "" is the server's default export
	Mode   Mode

	TLS      TLSMode
	StartTLS StartTLS // required unless TLS is TLSOff

	WantStructured bool
	WantExtended   bool
	// Contexts are the metadata contexts to select. They need structured
	// replies or extended headers.
	Contexts []string

	// Old chooses the export by EXPORT_NAME, as clients did before GO.
	// No block sizes are learnt that way, and no reason for a refusal, and
	// extended headers are not to be had.
	Old bool
	// NoBlockSize does not ask for block sizes, and so promises nothing.
	NoBlockSize bool
}

// ClientSession is what a client's handshake found.
type ClientSession struct {
	Session

	// BlockSizes: Export's block sizes are the server's, not defaults.
	BlockSizes bool
	// Exports is the answer to ModeList. Only names and descriptions are
	// known of them.
	Exports []ExportInfo
}

// OptionError is a server's refusal of an option.
type OptionError struct {
	Option  Option
	Reply   Rep
	Message string // the server's words, may be empty; not to be trusted
}

// Error says what was refused, why, and what to do where that is known.
func (e *OptionError) Error() string {
	s := fmt.Sprintf("server refused %v: %v", e.Option, e.Reply)
	if e.Message != "" {
		s += ": " + quote(e.Message)
	}
	switch e.Reply {
	case RepErrTLSReqd:
		s += "; it demands TLS: connect with TLS (nbds:// in a URI)"
	case RepErrUnknown:
		s += "; list the server's exports to see what it has"
	case RepErrBlockSizeReqd:
		s += "; ask for block sizes and keep to them"
	case RepErrExtHeaderReqd:
		s += "; ask for extended headers"
	}
	return s
}

// ErrOldstyle says that the server speaks the oldstyle handshake only, which
// died with nbd 3.10.
var ErrOldstyle = errors.New("server speaks the oldstyle NBD handshake, which is obsolete and not supported: use a server of NBD 3.10 or newer")

// ClientHandshake does the client's side of the handshake on rw. It believes
// nothing: what breaks the protocol is an error with ErrProtocol in its chain,
// what the server refuses an *OptionError. It reads not one byte too far. The
// caller sets deadlines on the connection beforehand, and closes it after an
// error and after ModeInfo and ModeList. ("Fixed newstyle negotiation")
func ClientHandshake(rw io.ReadWriter, cfg ClientConfig) (*ClientSession, error) {
	h := &clientHandshake{cfg: &cfg, rw: rw, s: &ClientSession{}}
	err := h.cfg.check()
	if err == nil {
		err = h.run()
	}
	if err != nil {
		return nil, fmt.Errorf("nbd handshake: %w", err)
	}
	h.s.Conn = h.rw
	return h.s, nil
}

func (cfg *ClientConfig) check() error {
	if err := checkString("export name", cfg.Export); err != nil {
		return err
	}
	if cfg.TLS != TLSOff && cfg.StartTLS == nil {
		return errors.New("configuration asks for TLS but lacks StartTLS")
	}
	if len(cfg.Contexts) > MaxMetaQueries {
		return fmt.Errorf("%d metadata contexts asked for: the limit is %d", len(cfg.Contexts), MaxMetaQueries)
	}
	for _, c := range cfg.Contexts {
		if err := checkString("metadata context", c); err != nil {
			return err
		}
	}
	return nil
}

type clientHandshake struct {
	cfg   *ClientConfig
	rw    io.ReadWriter
	s     *ClientSession
	in    []byte // data of the reply, reused
	fixed bool
	zeros bool // EXPORT_NAME is answered with padding
}

func (h *clientHandshake) run() error {
	if err := h.greet(); err != nil {
		return err
	}
	if !h.fixed {
		return h.notFixed()
	}
	err := h.haggle()
	var refused *OptionError
	if errors.As(err, &refused) || err == nil && h.cfg.Mode != ModeGo {
		_ = h.send(OptAbort, nil) // the polite way to leave; the server may be gone
	}
	return err
}

// greet is the exchange before options. ("Newstyle negotiation")
func (h *clientHandshake) greet() error {
	var b [18]byte
	if _, err := io.ReadFull(h.rw, b[:16]); err != nil {
		return fmt.Errorf("reading the server's greeting: %w", err)
	}
	if m := be.Uint64(b[:]); m != MagicInit {
		return fmt.Errorf("%w: the server's greeting is % x: this is no NBD server", ErrProtocol, b[:8])
	}
	switch m := be.Uint64(b[8:]); m {
	case MagicOption:
	case MagicOldstyle:
		return ErrOldstyle
	default:
		return badMagic("the handshake", m, MagicOption)
	}
	if _, err := io.ReadFull(h.rw, b[16:]); err != nil {
		return fmt.Errorf("reading the handshake flags: %w", err)
	}
	fl := HandshakeFlags(be.Uint16(b[16:]))
	h.fixed = fl&FlagFixedNewstyle != 0
	h.zeros = fl&FlagNoZeroes == 0
	return h.write(be.AppendUint32(nil, uint32(fl)&uint32(FlagCFixedNewstyle|FlagCNoZeroes)))
}

// notFixed uses a server that knows EXPORT_NAME only.
func (h *clientHandshake) notFixed() error {
	const what = "server speaks the unfixed newstyle handshake, which has"
	switch {
	case h.cfg.TLS == TLSRequired:
		return fmt.Errorf("%s no TLS, and TLS is required: use a newer server, or nbd:// if plain text will do", what)
	case h.cfg.Mode != ModeGo:
		return fmt.Errorf("%s no way to ask about exports: name an export and use it", what)
	}
	return h.exportName()
}

// haggle sends the options. TLS comes first, because it undoes the others.
func (h *clientHandshake) haggle() error {
	if h.cfg.TLS != TLSOff {
		if err := h.startTLS(); err != nil {
			return err
		}
	}
	if h.cfg.Mode == ModeList {
		return h.list()
	}
	if err := h.chooseReplies(); err != nil {
		return err
	}
	if h.cfg.Mode == ModeInfo {
		if err := h.metaContexts(OptListMetaContext); err != nil {
			return err
		}
		return h.infoOrGo(OptInfo)
	}
	if err := h.metaContexts(OptSetMetaContext); err != nil {
		return err
	}
	if h.cfg.Old {
		return h.exportName()
	}
	err := h.infoOrGo(OptGo)
	if !isRefusal(err, RepErrUnsup) {
		return err
	}
	if h.s.Extended {
		return fmt.Errorf("%w: server agreed to extended headers and does not know GO", ErrProtocol)
	}
	return h.exportName()
}

// isRefusal says whether err is the server's refusal with one of reps, or with
// any if none is given.
func isRefusal(err error, reps ...Rep) bool {
	var e *OptionError
	return errors.As(err, &e) && (len(reps) == 0 || slices.Contains(reps, e.Reply))
}

// optional forgives the refusal of an option that can be done without.
func optional(err error) (done bool, _ error) {
	if isRefusal(err) && !isRefusal(err, RepErrTLSReqd, RepErrShutdown) {
		return false, nil
	}
	return err == nil, err
}

func (h *clientHandshake) startTLS() error {
	err := h.ask(OptStartTLS, nil, nil)
	if isRefusal(err) && h.cfg.TLS == TLSOptional {
		return nil
	}
	if err != nil {
		return fmt.Errorf("TLS is required: %w", err)
	}
	rw, err := h.cfg.StartTLS(h.rw)
	if err != nil {
		return fmt.Errorf("starting TLS: %w", err)
	}
	h.rw, h.s.TLS = rw, true
	return nil
}

// chooseReplies negotiates the best of what is wanted and to be had.
func (h *clientHandshake) chooseReplies() (err error) {
	if h.cfg.WantExtended && !h.cfg.Old {
		h.s.Extended, err = optional(h.ask(OptExtendedHeaders, nil, nil))
		h.s.Structured = h.s.Extended
	}
	if err == nil && h.cfg.WantStructured && !h.s.Structured {
		h.s.Structured, err = optional(h.ask(OptStructuredReply, nil, nil))
	}
	return err
}

// metaContexts lists all contexts of the export into Export.Contexts, or
// selects those wanted into Contexts.
func (h *clientHandshake) metaContexts(t Option) error {
	if !h.s.Structured || t == OptSetMetaContext && len(h.cfg.Contexts) == 0 {
		return nil
	}
	data := be.AppendUint32(nil, uint32(len(h.cfg.Export)))
	data = append(data, h.cfg.Export...)
	if t == OptListMetaContext { // no query asks for everything
		data = be.AppendUint32(data, 0)
	} else {
		data = be.AppendUint32(data, uint32(len(h.cfg.Contexts)))
		for _, q := range h.cfg.Contexts {
			data = be.AppendUint32(data, uint32(len(q)))
			data = append(data, q...)
		}
	}
	var found []MetaContext
	done, err := optional(h.ask(t, data, func(r Rep, b []byte) (err error) {
		found, err = h.addContext(t, r, b, found)
		return err
	}))
	if !done { // refused: what came before the refusal does not count
		return err
	}
	if t == OptSetMetaContext {
		h.s.Contexts = found
		return nil
	}
	for _, c := range found {
		h.s.Export.Contexts = append(h.s.Export.Contexts, c.Name)
	}
	return nil
}

// addContext takes one REP_META_CONTEXT.
func (h *clientHandshake) addContext(t Option, r Rep, b []byte, found []MetaContext) ([]MetaContext, error) {
	if r != RepMetaContext || len(b) < 4 {
		return nil, h.badReply(t, r, b, "")
	}
	c := MetaContext{be.Uint32(b), string(b[4:])}
	if err := checkString("metadata context", c.Name); err != nil {
		return nil, h.badReply(t, r, b, err.Error())
	}
	if len(found) == MaxContexts {
		return nil, h.badReply(t, r, b, fmt.Sprintf("more than %d contexts", MaxContexts))
	}
	if t == OptSetMetaContext {
		if !slices.Contains(h.cfg.Contexts, c.Name) {
			return nil, h.badReply(t, r, b, fmt.Sprintf("context %s was not asked for", quote(c.Name)))
		}
		for _, f := range found {
			if f.ID == c.ID || f.Name == c.Name {
				return nil, h.badReply(t, r, b, fmt.Sprintf("context %s or its id %d comes twice", quote(c.Name), c.ID))
			}
		}
	}
	return append(found, c), nil
}

// list asks for the exports. ("Option types", NBD_OPT_LIST)
func (h *clientHandshake) list() error {
	return h.ask(OptList, nil, func(r Rep, b []byte) error {
		if r != RepServer || len(b) < 4 || uint64(be.Uint32(b)) > uint64(len(b)-4) {
			return h.badReply(OptList, r, b, "")
		}
		n := be.Uint32(b)
		e := ExportInfo{Name: string(b[4 : 4+n]), Description: string(b[4+n:])}
		if err := errors.Join(checkString("name", e.Name), checkString("description", e.Description)); err != nil {
			return h.badReply(OptList, r, b, err.Error())
		}
		h.s.Exports = append(h.s.Exports, e)
		return nil
	})
}

// infoOrGo asks for the export. ("Option types", NBD_OPT_INFO and NBD_OPT_GO)
func (h *clientHandshake) infoOrGo(t Option) error {
	infos := []Info{InfoName, InfoDescription, InfoBlockSize}
	if h.cfg.NoBlockSize {
		infos = infos[:2]
	}
	data := be.AppendUint32(nil, uint32(len(h.cfg.Export)))
	data = append(data, h.cfg.Export...)
	data = be.AppendUint16(data, uint16(len(infos)))
	for _, i := range infos {
		data = be.AppendUint16(data, uint16(i))
	}
	e := ExportInfo{Name: h.cfg.Export, Contexts: h.s.Export.Contexts}
	var exportSeen bool
	err := h.ask(t, data, func(r Rep, b []byte) error {
		if r != RepInfo || len(b) < 2 {
			return h.badReply(t, r, b, "")
		}
		i := Info(be.Uint16(b))
		exportSeen = exportSeen || i == InfoExport
		if why := h.takeInfo(&e, i, b[2:]); why != "" {
			return h.badReply(t, r, b, why)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !exportSeen {
		return fmt.Errorf("%w: %v succeeded without the size of the export", ErrProtocol, t)
	}
	return h.take(e, !h.cfg.NoBlockSize && h.s.BlockSizes)
}

// takeInfo takes one REP_INFO; unknown ones are ignored. It returns what is
// wrong with it.
func (h *clientHandshake) takeInfo(e *ExportInfo, i Info, b []byte) (why string) {
	switch i {
	case InfoExport:
		if len(b) != 10 {
			return "EXPORT has 10 bytes"
		}
		e.Size, e.Flags = be.Uint64(b), TransmissionFlags(be.Uint16(b[8:]))
	case InfoName:
		e.Name = string(b)
		if err := checkString("name", e.Name); err != nil {
			return err.Error()
		}
	case InfoDescription:
		e.Description = string(b)
		if err := checkString("description", e.Description); err != nil {
			return err.Error()
		}
	case InfoBlockSize:
		if len(b) != 12 {
			return "BLOCK_SIZE has 12 bytes"
		}
		e.MinBlock, e.PrefBlock, e.MaxBlock = be.Uint32(b), be.Uint32(b[4:]), be.Uint32(b[8:])
		if e.MinBlock == 0 || e.PrefBlock == 0 || e.MaxBlock == 0 {
			return "a block size is 0"
		}
		h.s.BlockSizes = true
	}
	return ""
}

// exportName chooses the export the old way. ("Option types",
// NBD_OPT_EXPORT_NAME)
func (h *clientHandshake) exportName() error {
	h.s.BlockSizes = false // what a refused GO said does not count
	if err := h.send(OptExportName, []byte(h.cfg.Export)); err != nil {
		return err
	}
	var b [10 + exportNameZeroes]byte
	n := 10
	if h.zeros {
		n = len(b)
	}
	if _, err := io.ReadFull(h.rw, b[:n]); err != nil {
		return fmt.Errorf("server hung up when asked for export %s by EXPORT_NAME: it has no such export, or demands TLS, or has block sizes that must be asked for: %w", quote(h.cfg.Export), err)
	}
	e := ExportInfo{Name: h.cfg.Export, Size: be.Uint64(b[:]), Flags: TransmissionFlags(be.Uint16(b[8:]))}
	return h.take(e, false)
}

// take makes e the session's export.
func (h *clientHandshake) take(e ExportInfo, blockSizes bool) error {
	e = e.withDefaults()
	if err := e.checkSizes(); err != nil {
		return fmt.Errorf("%w: server says of export %s: %w", ErrProtocol, quote(h.cfg.Export), err)
	}
	if e.Flags&FlagHasFlags == 0 {
		return fmt.Errorf("%w: transmission flags %#x of export %s lack HAS_FLAGS", ErrProtocol, uint16(e.Flags), quote(h.cfg.Export))
	}
	s := h.s
	s.Export, s.Name = e, h.cfg.Export
	s.BlockSizeAsked, s.MinBlock, s.MaxPayload = blockSizes, 1, e.MaxBlock
	if blockSizes {
		s.MinBlock = e.MinBlock
	}
	s.setFlags(e.Flags)
	return nil
}

// ask sends an option and reads all replies to it. info, which may be nil,
// takes those before the last; b is valid during the call only. A refusal is
// an *OptionError.
func (h *clientHandshake) ask(t Option, data []byte, info func(r Rep, b []byte) error) error {
	if err := h.send(t, data); err != nil {
		return err
	}
	for range MaxOptionReplies + 1 {
		r, b, err := h.readReply(t)
		switch {
		case err != nil:
			return err
		case r == RepAck && len(b) == 0:
			return nil
		case r.IsError():
			return &OptionError{t, r, clip(string(b))}
		case r == RepAck || info == nil:
			return h.badReply(t, r, b, "")
		}
		if err := info(r, b); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: server sent more than %d replies to %v", ErrProtocol, MaxOptionReplies, t)
}

// readReply reads one reply to t. ("Fixed newstyle negotiation")
func (h *clientHandshake) readReply(t Option) (Rep, []byte, error) {
	var b [20]byte
	if _, err := io.ReadFull(h.rw, b[:]); err != nil {
		return 0, nil, fmt.Errorf("reading the reply to %v: %w", t, err)
	}
	if m := be.Uint64(b[:]); m != MagicOptionReply {
		return 0, nil, badMagic("reply to "+t.String(), m, MagicOptionReply)
	}
	if o := Option(be.Uint32(b[8:])); o != t {
		return 0, nil, fmt.Errorf("%w: server replies to %v when asked for %v", ErrProtocol, o, t)
	}
	r, n := Rep(be.Uint32(b[12:])), be.Uint32(b[16:])
	if n > MaxOptionReply {
		return 0, nil, fmt.Errorf("%w: %v in reply to %v has %d bytes: the limit is %d", ErrProtocol, r, t, n, MaxOptionReply)
	}
	var err error
	if h.in, err = readGrowing(h.rw, h.in, int(n)); err != nil {
		return 0, nil, fmt.Errorf("reading %v in reply to %v: %w", r, t, err)
	}
	return r, h.in, nil
}

func (h *clientHandshake) send(t Option, data []byte) error {
	b := make([]byte, 0, 16+len(data))
	b = be.AppendUint64(b, MagicOption)
	b = be.AppendUint32(b, uint32(t))
	b = be.AppendUint32(b, uint32(len(data)))
	return h.write(append(b, data...))
}

func (h *clientHandshake) write(b []byte) error {
	if _, err := h.rw.Write(b); err != nil {
		return fmt.Errorf("writing to the server: %w", err)
	}
	return nil
}

// badReply is the error for a reply that makes no sense.
func (h *clientHandshake) badReply(t Option, r Rep, b []byte, why string) error {
	if why == "" {
		why = "it does not belong there"
	}
	return fmt.Errorf("%w: %v of %d bytes in reply to %v: %s", ErrProtocol, r, len(b), t, why)
}
