package nbd

// Bounds on what a peer can make us read, keep or do. Those of the document
// say so; the others are ours.
const (
	// MaxString bounds every string, in bytes. ("Conventions")
	MaxString = 4096

	// MaxPayload is the default bound of a request's or reply's data, in
	// bytes, and the size every peer must accept. ("Size constraints")
	MaxPayload = 32 << 20

	// MaxMinBlock is the largest minimum block size. ("Size constraints")
	MaxMinBlock = 64 << 10

	// MaxDF is the longest read that must be answered in one chunk when
	// the client sets CmdFlagDF. ("Request types", NBD_CMD_READ)
	MaxDF = 64 << 10

	// MaxExtents bounds the extents of one block status chunk.
	// ("Structured reply types", NBD_REPLY_TYPE_BLOCK_STATUS)
	MaxExtents = 1 << 20

	// MaxSize is the largest export, in bytes: offsets fit an int64.
	MaxSize = 1<<63 - 1

	// MaxMetaQueries bounds the queries of one LIST_META_CONTEXT or
	// SET_META_CONTEXT; more are answered RepErrTooBig.
	MaxMetaQueries = 64

	// MaxContexts bounds the metadata contexts of one export.
	MaxContexts = 256

	// MaxInfoRequests bounds the information requests of one INFO or GO.
	MaxInfoRequests = 256

	// MaxOptionLen bounds the data of an option that we look into; longer
	// ones are read away and answered RepErrTooBig. It has room for every
	// query of MaxMetaQueries at half the length of MaxString.
	MaxOptionLen = 128 << 10

	// MaxOptions bounds the options of one handshake; a client that goes
	// on is disconnected. ("Termination of the session during option
	// haggling" permits that.)
	MaxOptions = 1024

	// MaxHandshakeBytes bounds what a client can send in one handshake,
	// data of unknown options included; one that goes on is disconnected.
	MaxHandshakeBytes = 32 << 20

	// MaxOptionReply bounds one reply to an option, as a client accepts
	// it: two strings and their frame.
	MaxOptionReply = 4 + 2*MaxString

	// MaxOptionReplies bounds the replies to one option, as a client
	// accepts them: the exports of a LIST above all.
	MaxOptionReplies = 4096

	// MaxReadFragments bounds the disjoint pieces in which a client lets
	// the answer to one read arrive. Pieces that touch count once.
	MaxReadFragments = 1024

	// MaxInFlight bounds the requests a Client keeps in flight.
	MaxInFlight = 4096
)
