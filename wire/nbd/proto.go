// Package nbd has the messages of the Network Block Device protocol and both
// sides of its handshake. A server and a client share it; it knows nothing of
// what is behind an export.
//
// Read it in this order: proto.go (values), limits.go, request.go and reply.go
// (the transmission phase, over byte slices, without allocation), server.go
// and handshake.go (the two sides of the handshake), client.go (a blocking
// client with many requests in flight), uri.go and dial.go.
//
// The specification is doc/proto.md of github.com/NetworkBlockDevice/nbd, with
// the extension of its branch extension-ext-header for extended headers.
// Sections cited below are headings of that document. All integers on the wire
// are big-endian.
package nbd

import "fmt"

// Port is the TCP port that IANA assigned to NBD. ("Newstyle negotiation")
const Port = 10809

// Magic numbers. ("Newstyle negotiation", "Fixed newstyle negotiation",
// "Transmission", "Reserved Magic values")
const (
	MagicInit            uint64 = 0x4e42444d41474943 // NBDMAGIC
	MagicOption          uint64 = 0x49484156454f5054 // IHAVEOPT
	MagicOldstyle        uint64 = 0x0000420281861253 // cliserv_magic, of oldstyle servers
	MagicOptionReply     uint64 = 0x0003e889045565a9
	MagicRequest         uint32 = 0x25609513
	MagicSimpleReply     uint32 = 0x67446698
	MagicStructuredReply uint32 = 0x668e33ef
	MagicExtendedRequest uint32 = 0x21e41c71
	MagicExtendedReply   uint32 = 0x6e8a278c
)

// HandshakeFlags are sent first by the server. ("Handshake flags")
type HandshakeFlags uint16

// NBD_FLAG_FIXED_NEWSTYLE, NBD_FLAG_NO_ZEROES.
const (
	FlagFixedNewstyle HandshakeFlags = 1 << 0
	FlagNoZeroes      HandshakeFlags = 1 << 1
)

// ClientFlags are the client's answer to HandshakeFlags. ("Client flags")
type ClientFlags uint32

// NBD_FLAG_C_FIXED_NEWSTYLE, NBD_FLAG_C_NO_ZEROES.
const (
	FlagCFixedNewstyle ClientFlags = 1 << 0
	FlagCNoZeroes      ClientFlags = 1 << 1
)

// TransmissionFlags say what an export offers. ("Transmission flags")
type TransmissionFlags uint16

// NBD_FLAG_HAS_FLAGS and its fellows.
const (
	FlagHasFlags           TransmissionFlags = 1 << 0 // always set on the wire
	FlagReadOnly           TransmissionFlags = 1 << 1
	FlagSendFlush          TransmissionFlags = 1 << 2
	FlagSendFUA            TransmissionFlags = 1 << 3
	FlagRotational         TransmissionFlags = 1 << 4
	FlagSendTrim           TransmissionFlags = 1 << 5
	FlagSendWriteZeroes    TransmissionFlags = 1 << 6
	FlagSendDF             TransmissionFlags = 1 << 7 // with structured or extended replies only
	FlagCanMultiConn       TransmissionFlags = 1 << 8
	FlagSendResize         TransmissionFlags = 1 << 9 // reserved: extension RESIZE, not offered here
	FlagSendCache          TransmissionFlags = 1 << 10
	FlagSendFastZero       TransmissionFlags = 1 << 11 // with FlagSendWriteZeroes only
	FlagBlockStatusPayload TransmissionFlags = 1 << 12 // with extended headers only
)

// Option is a type of option of the handshake. ("Option types")
type Option uint32

// NBD_OPT_*.
const (
	OptExportName      Option = 1
	OptAbort           Option = 2
	OptList            Option = 3
	OptPeekExport      Option = 4 // withdrawn
	OptStartTLS        Option = 5
	OptInfo            Option = 6
	OptGo              Option = 7
	OptStructuredReply Option = 8
	OptListMetaContext Option = 9
	OptSetMetaContext  Option = 10
	OptExtendedHeaders Option = 11
)

var optionNames = [...]string{
	OptExportName:      "EXPORT_NAME",
	OptAbort:           "ABORT",
	OptList:            "LIST",
	OptPeekExport:      "PEEK_EXPORT",
	OptStartTLS:        "STARTTLS",
	OptInfo:            "INFO",
	OptGo:              "GO",
	OptStructuredReply: "STRUCTURED_REPLY",
	OptListMetaContext: "LIST_META_CONTEXT",
	OptSetMetaContext:  "SET_META_CONTEXT",
	OptExtendedHeaders: "EXTENDED_HEADERS",
}

// String is the document's name without its prefix.
func (o Option) String() string {
	if o >= 1 && int(o) < len(optionNames) {
		return optionNames[o]
	}
	return fmt.Sprintf("option %d", uint32(o))
}

// Rep is a type of reply to an option. ("Option reply types")
type Rep uint32

// NBD_REP_*; those from RepErrUnsup on are errors.
const (
	RepAck         Rep = 1
	RepServer      Rep = 2
	RepInfo        Rep = 3
	RepMetaContext Rep = 4

	RepErrBit           Rep = 1 << 31
	RepErrUnsup         Rep = RepErrBit + 1
	RepErrPolicy        Rep = RepErrBit + 2
	RepErrInvalid       Rep = RepErrBit + 3
	RepErrPlatform      Rep = RepErrBit + 4
	RepErrTLSReqd       Rep = RepErrBit + 5
	RepErrUnknown       Rep = RepErrBit + 6
	RepErrShutdown      Rep = RepErrBit + 7
	RepErrBlockSizeReqd Rep = RepErrBit + 8
	RepErrTooBig        Rep = RepErrBit + 9
	RepErrExtHeaderReqd Rep = RepErrBit + 10
)

var repNames = map[Rep]string{
	RepAck:              "ACK",
	RepServer:           "SERVER",
	RepInfo:             "INFO",
	RepMetaContext:      "META_CONTEXT",
	RepErrUnsup:         "ERR_UNSUP",
	RepErrPolicy:        "ERR_POLICY",
	RepErrInvalid:       "ERR_INVALID",
	RepErrPlatform:      "ERR_PLATFORM",
	RepErrTLSReqd:       "ERR_TLS_REQD",
	RepErrUnknown:       "ERR_UNKNOWN",
	RepErrShutdown:      "ERR_SHUTDOWN",
	RepErrBlockSizeReqd: "ERR_BLOCK_SIZE_REQD",
	RepErrTooBig:        "ERR_TOO_BIG",
	RepErrExtHeaderReqd: "ERR_EXT_HEADER_REQD",
}

// IsError says whether the reply ends its option with an error.
func (r Rep) IsError() bool { return r&RepErrBit != 0 }

// String is the document's name without its prefix.
func (r Rep) String() string {
	if s, ok := repNames[r]; ok {
		return s
	}
	return fmt.Sprintf("reply type %#x", uint32(r))
}

// Info is a type of information in a RepInfo. ("Option reply types", NBD_REP_INFO)
type Info uint16

// NBD_INFO_*.
const (
	InfoExport      Info = 0
	InfoName        Info = 1
	InfoDescription Info = 2
	InfoBlockSize   Info = 3
)

// Cmd is a type of request. ("Request types")
type Cmd uint16

// NBD_CMD_*.
const (
	CmdRead        Cmd = 0
	CmdWrite       Cmd = 1
	CmdDisc        Cmd = 2
	CmdFlush       Cmd = 3
	CmdTrim        Cmd = 4
	CmdCache       Cmd = 5
	CmdWriteZeroes Cmd = 6
	CmdBlockStatus Cmd = 7
	CmdResize      Cmd = 8 // reserved: extension RESIZE
)

var cmdNames = [...]string{
	CmdRead:        "read",
	CmdWrite:       "write",
	CmdDisc:        "disconnect",
	CmdFlush:       "flush",
	CmdTrim:        "trim",
	CmdCache:       "cache",
	CmdWriteZeroes: "write zeroes",
	CmdBlockStatus: "block status",
	CmdResize:      "resize",
}

// String is the command in words.
func (c Cmd) String() string {
	if int(c) < len(cmdNames) {
		return cmdNames[c]
	}
	return fmt.Sprintf("command %d", uint16(c))
}

// CmdFlags come with every request. ("Command flags")
type CmdFlags uint16

// NBD_CMD_FLAG_*.
const (
	CmdFlagFUA        CmdFlags = 1 << 0
	CmdFlagNoHole     CmdFlags = 1 << 1 // write zeroes
	CmdFlagDF         CmdFlags = 1 << 2 // read: one content chunk at most
	CmdFlagReqOne     CmdFlags = 1 << 3 // block status: one extent a context
	CmdFlagFastZero   CmdFlags = 1 << 4 // write zeroes: fail rather than write slowly
	CmdFlagPayloadLen CmdFlags = 1 << 5 // extended headers: Length counts payload
)

// ReplyFlags come with every chunk. ("Structured reply flags")
type ReplyFlags uint16

// ReplyFlagDone marks the last chunk of a reply: NBD_REPLY_FLAG_DONE.
const ReplyFlagDone ReplyFlags = 1 << 0

// ReplyType is a type of chunk. ("Structured reply types")
type ReplyType uint16

// NBD_REPLY_TYPE_*; those with ReplyErrBit are errors.
const (
	ReplyNone           ReplyType = 0
	ReplyOffsetData     ReplyType = 1
	ReplyOffsetHole     ReplyType = 2
	ReplyBlockStatus    ReplyType = 5
	ReplyBlockStatusExt ReplyType = 6

	ReplyErrBit      ReplyType = 1 << 15
	ReplyError       ReplyType = ReplyErrBit + 1
	ReplyErrorOffset ReplyType = ReplyErrBit + 2
)

// IsError says whether the chunk is an error chunk, known or not.
func (t ReplyType) IsError() bool { return t&ReplyErrBit != 0 }

// String is the document's name without its prefix.
func (t ReplyType) String() string {
	switch t {
	case ReplyNone:
		return "NONE"
	case ReplyOffsetData:
		return "OFFSET_DATA"
	case ReplyOffsetHole:
		return "OFFSET_HOLE"
	case ReplyBlockStatus:
		return "BLOCK_STATUS"
	case ReplyBlockStatusExt:
		return "BLOCK_STATUS_EXT"
	case ReplyError:
		return "ERROR"
	case ReplyErrorOffset:
		return "ERROR_OFFSET"
	}
	return fmt.Sprintf("chunk type %#x", uint16(t))
}

// Names of metadata contexts. ("Metadata querying"; the namespace qemu: is
// registered there and described in QEMU's interop/nbd.)
const (
	ContextAllocation   = "base:allocation"
	ContextDepth        = "qemu:allocation-depth"
	ContextBitmapPrefix = "qemu:dirty-bitmap:" // followed by the bitmap's name
)

// Status flags of an Extent.
const (
	StateHole  = 1 << 0 // base:allocation: NBD_STATE_HOLE
	StateZero  = 1 << 1 // base:allocation: NBD_STATE_ZERO
	StateDirty = 1 << 0 // qemu:dirty-bitmap:*
)

// Extent is one descriptor of a block status. Length is in bytes.
type Extent struct {
	Length uint64
	Flags  uint64
}

// MetaContext is a metadata context selected for a session.
type MetaContext struct {
	ID   uint32
	Name string
}
