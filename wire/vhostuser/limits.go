package vhostuser

// Bounds on what a peer can make us read, keep or do.
const (
	// MaxFds is the most descriptors that one message carries: the regions of
	// a memory table. ("Memory regions description")
	MaxFds = 8

	// MaxTableRegions bounds the regions of one SetMemTable. More come by
	// AddMemReg. ("Memory regions description")
	MaxTableRegions = 8

	// MaxMemSlots bounds the regions that a front end can add one by one: as
	// many as the kernel's virtual machines have.
	MaxMemSlots = 509

	// MaxQueues is the most virtqueues of a device: their index has 8 bits
	// in SetVringKick.
	MaxQueues = 256

	// MaxConfig bounds the part of a device's configuration space that one
	// message reads or writes.
	MaxConfig = 256

	// MaxPayload bounds the payload of a message. None in the document is
	// longer than a tenth of it.
	MaxPayload = 4096
)
