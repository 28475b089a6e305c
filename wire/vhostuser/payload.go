package vhostuser

import "encoding/binary"

var order = binary.NativeEndian

// Lengths of the payloads in bytes. ("Payload")
const (
	HeaderSize = 12

	sizeU64          = 8
	sizeState        = 8
	sizeAddr         = 40
	sizeTable        = 8
	sizeRegion       = 32
	sizeSingleRegion = 8 + sizeRegion
	sizeLog          = 16
	sizeConfig       = 12
	sizeInflight     = 20
	// Compilers align the structure to 8 bytes, and front ends send it so.
	sizeInflightPadded = 24
)

// PutHeader writes a message's header to b, which has HeaderSize bytes.
func PutHeader(b []byte, request uint32, fl Flags, size int) {
	order.PutUint32(b, request)
	order.PutUint32(b[4:], uint32(fl))
	order.PutUint32(b[8:], uint32(size))
}

// parseHeader reads a header of HeaderSize bytes.
func parseHeader(b []byte) (request uint32, fl Flags, size uint32) {
	return order.Uint32(b), Flags(order.Uint32(b[4:])), order.Uint32(b[8:])
}

// U64 reads a payload that is one number. ("A single 64-bit integer")
func (m *Message) U64() (uint64, error) {
	if len(m.Payload) != sizeU64 {
		return 0, badf(m.Request, "the payload has %d bytes, not %d", len(m.Payload), sizeU64)
	}
	return order.Uint64(m.Payload), nil
}

// AppendU64 is the payload of one number.
func AppendU64(b []byte, v uint64) []byte { return order.AppendUint64(b, v) }

// VringState is a number of one virtqueue. ("A vring state description")
type VringState struct{ Index, Num uint32 }

// VringState reads the payload.
func (m *Message) VringState() (VringState, error) {
	if len(m.Payload) != sizeState {
		return VringState{}, badf(m.Request, "the payload has %d bytes, not %d", len(m.Payload), sizeState)
	}
	return VringState{order.Uint32(m.Payload), order.Uint32(m.Payload[4:])}, nil
}

// Append is the payload.
func (s VringState) Append(b []byte) []byte {
	return order.AppendUint32(order.AppendUint32(b, s.Index), s.Num)
}

// VringAddr is where a virtqueue's parts lie: addresses in the front end's
// own space, Log in the guest's. ("A vring address description")
type VringAddr struct {
	Index, Flags           uint32
	Desc, Used, Avail, Log uint64
}

// VringAddr reads the payload.
func (m *Message) VringAddr() (VringAddr, error) {
	p := m.Payload
	if len(p) != sizeAddr {
		return VringAddr{}, badf(m.Request, "the payload has %d bytes, not %d", len(p), sizeAddr)
	}
	return VringAddr{
		order.Uint32(p), order.Uint32(p[4:]),
		order.Uint64(p[8:]), order.Uint64(p[16:]), order.Uint64(p[24:]), order.Uint64(p[32:]),
	}, nil
}

// Append is the payload.
func (a VringAddr) Append(b []byte) []byte {
	b = order.AppendUint32(order.AppendUint32(b, a.Index), a.Flags)
	for _, v := range [...]uint64{a.Desc, a.Used, a.Avail, a.Log} {
		b = order.AppendUint64(b, v)
	}
	return b
}

// Region is a piece of guest memory, in bytes: where the guest sees it, where
// the front end does, and where it begins in its descriptor's file. ("Memory
// regions description")
type Region struct{ GuestAddr, Size, UserAddr, MmapOffset uint64 }

func parseRegion(p []byte) Region {
	return Region{order.Uint64(p), order.Uint64(p[8:]), order.Uint64(p[16:]), order.Uint64(p[24:])}
}

func (r Region) append(b []byte) []byte {
	for _, v := range [...]uint64{r.GuestAddr, r.Size, r.UserAddr, r.MmapOffset} {
		b = order.AppendUint64(b, v)
	}
	return b
}

// MemTable reads the regions of SetMemTable into to, which has room for
// MaxTableRegions. Each has a descriptor of its own.
func (m *Message) MemTable(to []Region) ([]Region, error) {
	p := m.Payload
	if len(p) < sizeTable {
		return nil, badf(m.Request, "the payload has %d bytes, not %d or more", len(p), sizeTable)
	}
	n := order.Uint32(p)
	switch {
	case n > MaxTableRegions:
		return nil, badf(m.Request, "%d regions, more than %d: the rest come by ADD_MEM_REG", n, MaxTableRegions)
	case len(p) != sizeTable+int(n)*sizeRegion:
		return nil, badf(m.Request, "%d regions in a payload of %d bytes, not %d", n, len(p), sizeTable+int(n)*sizeRegion)
	case m.Fds.Len() != int(n):
		return nil, badf(m.Request, "%d descriptors for %d regions: each has one", m.Fds.Len(), n)
	}
	to = to[:0]
	for i := range int(n) {
		to = append(to, parseRegion(p[sizeTable+i*sizeRegion:]))
	}
	return to, nil
}

// AppendMemTable is the payload of SetMemTable.
func AppendMemTable(b []byte, regions []Region) []byte {
	b = order.AppendUint32(order.AppendUint32(b, uint32(len(regions))), 0)
	for _, r := range regions {
		b = r.append(b)
	}
	return b
}

// Region reads the payload of AddMemReg and RemMemReg. ("Single memory region
// description")
func (m *Message) Region() (Region, error) {
	if len(m.Payload) != sizeSingleRegion {
		return Region{}, badf(m.Request, "the payload has %d bytes, not %d", len(m.Payload), sizeSingleRegion)
	}
	return parseRegion(m.Payload[8:]), nil
}

// AppendSingle is the payload of AddMemReg and RemMemReg.
func (r Region) AppendSingle(b []byte) []byte { return r.append(order.AppendUint64(b, 0)) }

// Log is where a dirty log lies in its descriptor's file, in bytes. ("Log
// description")
type Log struct{ Size, Offset uint64 }

// Log reads the payload of SetLogBase where ProtocolLogShmfd is in force.
func (m *Message) Log() (Log, error) {
	if len(m.Payload) != sizeLog {
		return Log{}, badf(m.Request, "the payload has %d bytes, not %d: a log comes with its descriptor (LOG_SHMFD)", len(m.Payload), sizeLog)
	}
	return Log{order.Uint64(m.Payload), order.Uint64(m.Payload[8:])}, nil
}

// Append is the payload.
func (l Log) Append(b []byte) []byte {
	return order.AppendUint64(order.AppendUint64(b, l.Size), l.Offset)
}

// Config is a part of the device's configuration space. ("Virtio device
// config space")
type Config struct {
	Offset, Flags uint32
	Data          []byte // part of the message it was read from
}

// Config reads the payload of GetConfig and SetConfig.
func (m *Message) Config() (Config, error) {
	p := m.Payload
	if len(p) < sizeConfig {
		return Config{}, badf(m.Request, "the payload has %d bytes, less than %d", len(p), sizeConfig)
	}
	off, n := order.Uint32(p), order.Uint32(p[4:])
	switch {
	case n > MaxConfig || off > MaxConfig || off+n > MaxConfig:
		return Config{}, badf(m.Request, "%d bytes at offset %d of a configuration space of at most %d", n, off, MaxConfig)
	case len(p) != sizeConfig+int(n):
		return Config{}, badf(m.Request, "%d bytes of configuration in a payload of %d, not %d", n, len(p), sizeConfig+int(n))
	}
	return Config{off, order.Uint32(p[8:]), p[sizeConfig:]}, nil
}

// Append is the payload.
func (c Config) Append(b []byte) []byte {
	b = order.AppendUint32(order.AppendUint32(b, c.Offset), uint32(len(c.Data)))
	return append(order.AppendUint32(b, c.Flags), c.Data...)
}

// Inflight describes the shared memory that keeps track of requests in
// flight. ("Inflight description")
type Inflight struct {
	MmapSize, MmapOffset uint64 // bytes
	Queues, QueueSize    uint16
}

// Inflight reads the payload of GetInflightFd and SetInflightFd.
func (m *Message) Inflight() (Inflight, error) {
	p := m.Payload
	if len(p) != sizeInflight && len(p) != sizeInflightPadded {
		return Inflight{}, badf(m.Request, "the payload has %d bytes, neither %d nor %d", len(p), sizeInflight, sizeInflightPadded)
	}
	return Inflight{order.Uint64(p), order.Uint64(p[8:]), order.Uint16(p[16:]), order.Uint16(p[18:])}, nil
}

// Append is the payload, of the same length as like, or as compilers lay it
// out where there is none.
func (i Inflight) Append(b, like []byte) []byte {
	b = order.AppendUint64(order.AppendUint64(b, i.MmapSize), i.MmapOffset)
	b = order.AppendUint16(order.AppendUint16(b, i.Queues), i.QueueSize)
	if len(like) != sizeInflight {
		b = order.AppendUint32(b, 0)
	}
	return b
}

// VringFd is which virtqueue a descriptor is for. ("VHOST_USER_SET_VRING_KICK")
type VringFd struct {
	Index int
	NoFd  bool
}

// VringFd reads the payload of SetVringKick, SetVringCall and SetVringErr, and
// holds it against the descriptors that came.
func (m *Message) VringFd() (VringFd, error) {
	v, err := m.U64()
	if err != nil {
		return VringFd{}, err
	}
	f := VringFd{int(v & VringIndexMask), v&VringNoFd != 0}
	switch n := m.Fds.Len(); {
	case f.NoFd && n != 0:
		return f, badf(m.Request, "it says that there is no descriptor, and carries %d", n)
	case !f.NoFd && n != 1:
		return f, badf(m.Request, "it carries %d descriptors, not 1", n)
	}
	return f, nil
}
