package nbd

import (
	"fmt"
	"slices"
	"strings"
)

// exportName serves EXPORT_NAME, whose only error is to hang up. ("Option
// types", NBD_OPT_EXPORT_NAME)
func (h *serverHandshake) exportName(o option) (*Session, error) {
	name := string(o.data)
	if o.tooBig {
		return nil, fmt.Errorf("%w: EXPORT_NAME with more than %d bytes", ErrProtocol, MaxString)
	}
	if err := checkString("export name", name); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	if h.extended {
		return nil, fmt.Errorf("%w: client chose export %s by EXPORT_NAME after it negotiated extended headers", ErrProtocol, quote(name))
	}
	e, ok, err := h.find(name)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("client asked for export %s: there is none of that name", quote(name))
	}
	if h.cfg.RequireBlockSize && e.MinBlock > 1 {
		return nil, fmt.Errorf("client asked for export %s by EXPORT_NAME: it has a minimum block size of %d and must be asked for by GO", quote(name), e.MinBlock)
	}
	s := h.session(e, name, false)
	h.out = be.AppendUint64(h.out, e.Size)
	h.out = be.AppendUint16(h.out, uint16(s.Flags))
	if !h.noZeroes {
		h.out = append(h.out, make([]byte, exportNameZeroes)...)
	}
	return s, h.flush()
}

// exportNameZeroes is the padding after the answer to EXPORT_NAME, in bytes.
const exportNameZeroes = 124

// list serves LIST. ("Option types", NBD_OPT_LIST)
func (h *serverHandshake) list(o option) error {
	if o.tooBig || len(o.data) != 0 {
		return h.fail(o.typ, RepErrInvalid, "LIST takes no data")
	}
	if h.cfg.NoList {
		return h.fail(o.typ, RepErrPolicy, "this server does not list its exports: ask for one by name")
	}
	for _, e := range h.cfg.Exports.List() {
		if e.Hidden {
			continue
		}
		if err := e.Check(); err != nil {
			return fmt.Errorf("listing exports: %w", err)
		}
		h.reply(o.typ, RepServer, string(be.AppendUint32(nil, uint32(len(e.Name)))), e.Name, e.Description)
		if len(h.out) > 32<<10 {
			if err := h.flush(); err != nil {
				return err
			}
		}
	}
	return h.ack(o.typ)
}

// startTLS serves STARTTLS. What was negotiated before is forgotten. Nothing
// was read ahead, so no byte sent in plain text can count as encrypted.
// ("Option types", NBD_OPT_STARTTLS)
func (h *serverHandshake) startTLS(o option) error {
	switch {
	case o.tooBig || len(o.data) != 0:
		return h.fail(o.typ, RepErrInvalid, "STARTTLS takes no data")
	case h.tls:
		return h.fail(o.typ, RepErrInvalid, "TLS has been started already")
	case h.cfg.TLS == TLSOff:
		return h.fail(o.typ, RepErrPolicy, "TLS is not configured on this server: connect without it (nbd:// in a URI)")
	}
	if err := h.ack(o.typ); err != nil {
		return err
	}
	rw, err := h.cfg.StartTLS(h.rw)
	if err != nil {
		return fmt.Errorf("starting TLS: %w", err)
	}
	h.rw, h.tls, h.negotiated = rw, true, negotiated{}
	return nil
}

// structuredReply serves STRUCTURED_REPLY; asking again changes nothing.
// ("Option types", NBD_OPT_STRUCTURED_REPLY)
func (h *serverHandshake) structuredReply(o option) error {
	switch {
	case h.cfg.NoStructured:
		return h.fail(o.typ, RepErrUnsup, "structured replies are switched off on this server")
	case o.tooBig || len(o.data) != 0:
		return h.fail(o.typ, RepErrInvalid, "STRUCTURED_REPLY takes no data")
	case h.extended:
		return h.fail(o.typ, RepErrExtHeaderReqd, "extended headers are negotiated already: they take precedence")
	}
	h.structured = true
	return h.ack(o.typ)
}

// extendedHeaders serves EXTENDED_HEADERS; asking again changes nothing.
// ("Option types", NBD_OPT_EXTENDED_HEADERS, of the extension)
func (h *serverHandshake) extendedHeaders(o option) error {
	switch {
	case h.cfg.NoExtended || h.cfg.NoStructured:
		return h.fail(o.typ, RepErrUnsup, "extended headers are switched off on this server")
	case o.tooBig || len(o.data) != 0:
		return h.fail(o.typ, RepErrInvalid, "EXTENDED_HEADERS takes no data")
	}
	h.structured, h.extended = true, true
	return h.ack(o.typ)
}

// infoOrGo serves INFO and GO. ("Option types", NBD_OPT_INFO and NBD_OPT_GO)
func (h *serverHandshake) infoOrGo(o option) (*Session, error) {
	if o.tooBig {
		return nil, h.fail(o.typ, RepErrTooBig, "%v is limited to %d bytes of data", o.typ, MaxOptionLen)
	}
	name, asked, bad := parseInfoRequest(o.data)
	if bad != "" {
		return nil, h.fail(o.typ, RepErrInvalid, "%v: %s", o.typ, bad)
	}
	e, ok, err := h.find(name)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, h.unknown(o.typ, name)
	}
	s := h.session(e, name, asked.has(InfoBlockSize))
	h.describe(o.typ, s, asked)
	if h.cfg.RequireBlockSize && e.MinBlock > 1 && !s.BlockSizeAsked {
		return nil, h.fail(o.typ, RepErrBlockSizeReqd,
			"export %s has a minimum block size of %d: ask for BLOCK_SIZE and keep to it", quote(name), e.MinBlock)
	}
	if err := h.ack(o.typ); err != nil || o.typ == OptInfo {
		return nil, err
	}
	return s, nil
}

// describe sends what INFO and GO say of an export. Block sizes are sent even
// unasked, since a client may know them without promising anything.
func (h *serverHandshake) describe(t Option, s *Session, asked infoSet) {
	e := &s.Export
	b := be.AppendUint16(nil, uint16(InfoExport))
	b = be.AppendUint64(b, e.Size)
	b = be.AppendUint16(b, uint16(s.Flags))
	h.reply(t, RepInfo, string(b))
	if asked.has(InfoName) {
		h.reply(t, RepInfo, string(be.AppendUint16(nil, uint16(InfoName))), e.Name)
	}
	if asked.has(InfoDescription) && e.Description != "" {
		h.reply(t, RepInfo, string(be.AppendUint16(nil, uint16(InfoDescription))), e.Description)
	}
	minBlock := s.MinBlock
	if h.cfg.RequireBlockSize {
		minBlock = e.MinBlock
	}
	b = be.AppendUint16(nil, uint16(InfoBlockSize))
	b = be.AppendUint32(b, minBlock)
	b = be.AppendUint32(b, e.PrefBlock)
	b = be.AppendUint32(b, e.MaxBlock)
	h.reply(t, RepInfo, string(b))
}

// session is what choosing e now would agree on.
func (h *serverHandshake) session(e ExportInfo, name string, blockSizeAsked bool) *Session {
	s := &Session{
		Conn: h.rw, Export: e, Name: name,
		TLS: h.tls, Structured: h.structured, Extended: h.extended,
		BlockSizeAsked: blockSizeAsked, MinBlock: 1, MaxPayload: e.MaxBlock,
	}
	if blockSizeAsked {
		s.MinBlock = e.MinBlock
	}
	if h.metaExport == e.Name && stillOffered(h.contexts, e.Contexts) {
		s.Contexts = h.contexts
	}
	s.setFlags(e.Flags | FlagHasFlags)
	return s
}

// setFlags takes over an export's flags, except for those that depend on what
// was not negotiated. Servers must not send such, clients ignore them.
// ("Transmission flags")
func (s *Session) setFlags(fl TransmissionFlags) {
	if !s.Structured {
		fl &^= FlagSendDF
	}
	if !s.Extended || len(s.Contexts) == 0 {
		fl &^= FlagBlockStatusPayload
	}
	if fl&FlagSendWriteZeroes == 0 {
		fl &^= FlagSendFastZero
	}
	s.Flags = fl
}

// stillOffered says whether ids given out earlier still mean the same: the
// export may have been replaced between two options.
func stillOffered(selected []MetaContext, offered []string) bool {
	for _, c := range selected {
		if int(c.ID) >= len(offered) || offered[c.ID] != c.Name {
			return false
		}
	}
	return true
}

// find is Exports.Find with our own mistakes caught.
func (h *serverHandshake) find(name string) (ExportInfo, bool, error) {
	e, ok := h.cfg.Exports.Find(name)
	if !ok {
		return e, false, nil
	}
	if err := e.Check(); err != nil {
		return e, false, err
	}
	return e.withDefaults(), true, nil
}

func (h *serverHandshake) unknown(t Option, name string) error {
	if name == "" {
		return h.fail(t, RepErrUnknown, "this server has no default export: ask for one by name")
	}
	return h.fail(t, RepErrUnknown, "this server has no export %s: LIST shows those it has", quote(name))
}

// infoSet is the known information types that a client asked for.
type infoSet uint8

func (s infoSet) has(i Info) bool { return s&(1<<i) != 0 }

// parseInfoRequest reads the data of INFO and GO: the export's name and the
// information asked for. bad says what is wrong with it.
func parseInfoRequest(b []byte) (name string, asked infoSet, bad string) {
	name, b, bad = cutName(b)
	if bad != "" {
		return "", 0, bad
	}
	if len(b) < 2 {
		return "", 0, "the number of information requests is missing"
	}
	n := int(be.Uint16(b))
	b = b[2:]
	if n > MaxInfoRequests {
		return "", 0, fmt.Sprintf("more than %d information requests", MaxInfoRequests)
	}
	if len(b) != 2*n {
		return "", 0, fmt.Sprintf("%d information requests take %d bytes, not %d", n, 2*n, len(b))
	}
	for ; len(b) > 0; b = b[2:] {
		if i := Info(be.Uint16(b)); i <= InfoBlockSize {
			asked |= 1 << i
		}
	}
	return name, asked, ""
}

// cutName takes a length and an export's name from the start of b.
func cutName(b []byte) (name string, rest []byte, bad string) {
	if len(b) < 4 {
		return "", nil, "the length of the name is missing"
	}
	n := be.Uint32(b)
	b = b[4:]
	if n > MaxString {
		return "", nil, fmt.Sprintf("the name has %d bytes, NBD allows %d", n, MaxString)
	}
	if int(n) > len(b) {
		return "", nil, fmt.Sprintf("the name has %d bytes, more than the option", n)
	}
	name = string(b[:n])
	if err := checkString("the name", name); err != nil {
		return "", nil, err.Error()
	}
	return name, b[n:], ""
}

// metaContext serves LIST_META_CONTEXT and SET_META_CONTEXT. ("Option types",
// NBD_OPT_LIST_META_CONTEXT and NBD_OPT_SET_META_CONTEXT)
func (h *serverHandshake) metaContext(o option) error {
	if o.typ == OptSetMetaContext { // replaces the old selection even if it fails
		h.metaExport, h.contexts = "", nil
	}
	if !h.structured {
		return h.fail(o.typ, RepErrInvalid, "metadata contexts need structured replies or extended headers: negotiate them first")
	}
	if o.tooBig {
		return h.fail(o.typ, RepErrTooBig, "%v is limited to %d bytes of data: ask for fewer contexts", o.typ, MaxOptionLen)
	}
	name, queries, rep, bad := parseMetaQueries(o.data)
	if rep != 0 {
		return h.fail(o.typ, rep, "%v: %s", o.typ, bad)
	}
	e, ok, err := h.find(name)
	if err != nil {
		return err
	}
	if !ok {
		return h.unknown(o.typ, name)
	}
	found := matchContexts(e.Contexts, queries, o.typ == OptListMetaContext)
	for _, c := range found {
		id := c.ID
		if o.typ == OptListMetaContext {
			id = 0 // reserved there
		}
		h.reply(o.typ, RepMetaContext, string(be.AppendUint32(nil, id)), c.Name)
	}
	if o.typ == OptSetMetaContext {
		h.metaExport, h.contexts = e.Name, found
	}
	return h.ack(o.typ)
}

// parseMetaQueries reads an export's name and the queries after it. A rep that
// is not 0 is the error to answer, and bad its reason.
func parseMetaQueries(b []byte) (name string, queries []string, rep Rep, bad string) {
	name, b, bad = cutName(b)
	if bad != "" {
		return "", nil, RepErrInvalid, bad
	}
	if len(b) < 4 {
		return "", nil, RepErrInvalid, "the number of queries is missing"
	}
	n := be.Uint32(b)
	b = b[4:]
	if n > MaxMetaQueries {
		return "", nil, RepErrTooBig, fmt.Sprintf("%d queries, the limit is %d", n, MaxMetaQueries)
	}
	for range n {
		var q string
		if q, b, bad = cutName(b); bad != "" {
			return "", nil, RepErrInvalid, "in a query: " + bad
		}
		queries = append(queries, q)
	}
	if len(b) != 0 {
		return "", nil, RepErrInvalid, fmt.Sprintf("%d bytes follow the last query", len(b))
	}
	return name, queries, 0, ""
}

// matchContexts picks from offered what the queries ask for, each once, in the
// order offered. Queries that match nothing are ignored, as the document wants
// for unknown namespaces and names. When listing, no query at all asks for
// everything, and one that ends in a colon for everything below it: base: as
// the document says, and qemu:dirty-bitmap: likewise.
func matchContexts(offered, queries []string, listing bool) []MetaContext {
	var found []MetaContext
	for i, name := range offered {
		match := listing && len(queries) == 0 || slices.ContainsFunc(queries, func(q string) bool {
			return q == name || listing && strings.HasSuffix(q, ":") && strings.HasPrefix(name, q)
		})
		if match {
			found = append(found, MetaContext{ID: uint32(i), Name: name})
		}
	}
	return found
}
