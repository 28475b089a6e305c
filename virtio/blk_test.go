package virtio

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// header is that of a block request.
func header(op BlkOp, sector uint64) []byte {
	b := make([]byte, 16)
	binary.LittleEndian.PutUint32(b, uint32(op))
	binary.LittleEndian.PutUint64(b[8:], sector)
	return b
}

// ranges are those of a discard and its like: sector, sectors, flags and so on.
func ranges(v ...uint64) []byte {
	var b []byte
	for ; len(v) > 0; v = v[3:] {
		b = binary.LittleEndian.AppendUint64(b, v[0])
		b = binary.LittleEndian.AppendUint32(b, uint32(v[1]))
		b = binary.LittleEndian.AppendUint32(b, uint32(v[2]))
	}
	return b
}

// chain is one that holds these bytes.
func chain(out, in []byte) *Chain {
	c := &Chain{OutBytes: uint64(len(out)), InBytes: uint64(len(in))}
	if len(out) > 0 {
		c.Out = append(c.Out, out)
	}
	if len(in) > 0 {
		c.In = append(c.In, in)
	}
	return c
}

// testDisk has 100 sectors and a bit, and all that can be had.
var testDisk = BlkDisk{
	Capacity:          100*SectorSize + 7,
	Features:          BlkFeatureDiscard | BlkFeatureWriteZeroes | BlkFeatureSecureErase | BlkFeatureLifetime | BlkFeatureFlush,
	MaxDiscardSectors: 50, MaxDiscardSeg: 2,
	MaxWriteZeroesSectors: 60, MaxWriteZeroesSeg: 3,
	MaxSecureEraseSectors: 70, MaxSecureEraseSeg: 1,
}

// TestBlkRules is what a device answers to what (sections 5.2.6, 5.2.6.1 and
// 5.2.6.2), with the disk as it is, read-only, or without any feature.
func TestBlkRules(t *testing.T) {
	data := func(n int) []byte { return make([]byte, n) }
	with := func(op BlkOp, sector uint64, rest ...[]byte) []byte {
		return append(header(op, sector), slices.Concat(rest...)...)
	}
	const ok, ioerr, unsupp = BlkOK, BlkIOErr, BlkUnsupported
	const last = uint64(99)
	for _, c := range []struct {
		name string
		out  []byte
		in   int // bytes before the status
		want byte
		ro   byte // on a read-only disk
		bare byte // without features
	}{
		{"read", header(BlkIn, 0), 512, ok, ok, ok},
		{"read of the last sector", header(BlkIn, last), 512, ok, ok, ok},
		{"read past the end", header(BlkIn, last), 1024, ioerr, ioerr, ioerr},
		{"read beyond the end", header(BlkIn, last+1), 512, ioerr, ioerr, ioerr},
		{"read of nothing at the end", header(BlkIn, last+1), 0, ok, ok, ok},
		{"read of nothing beyond the end", header(BlkIn, last+2), 0, ioerr, ioerr, ioerr},
		{"read at a sector whose offset overflows", header(BlkIn, 1<<55), 512, ioerr, ioerr, ioerr},
		{"read at the last sector there is", header(BlkIn, 1<<64-1), 512, ioerr, ioerr, ioerr},
		{"read of 511 bytes", header(BlkIn, 0), 511, ioerr, ioerr, ioerr},
		{"read of 1 byte", header(BlkIn, 0), 1, ioerr, ioerr, ioerr},
		{"read with bytes to read that are no header", with(BlkIn, 0, data(5)), 512, ok, ok, ok},
		{"write", with(BlkOut, 0, data(512)), 0, ok, ioerr, ok},
		{"write to the end", with(BlkOut, 0, data(100*512)), 0, ok, ioerr, ok},
		{"write past the end", with(BlkOut, 1, data(100*512)), 0, ioerr, ioerr, ioerr},
		{"write of 513 bytes", with(BlkOut, 0, data(513)), 0, ioerr, ioerr, ioerr},
		{"flush", header(BlkFlush, 0), 0, ok, ok, ok},
		{"id", header(BlkGetID, 0), 20, ok, ok, ok},
		{"lifetime", header(BlkGetLifetime, 0), 6, ok, ok, unsupp},
		{"discard", with(BlkDiscard, 0, ranges(0, 50, 0, 99, 1, 0)), 0, ok, ioerr, unsupp},
		{"discard with unmap", with(BlkDiscard, 0, ranges(0, 1, 1)), 0, unsupp, ioerr, unsupp},
		{"discard of too much", with(BlkDiscard, 0, ranges(0, 51, 0)), 0, ioerr, ioerr, unsupp},
		{"discard of too many", with(BlkDiscard, 0, ranges(0, 1, 0, 2, 1, 0, 4, 1, 0)), 0, ioerr, ioerr, unsupp},
		{"discard of no range", header(BlkDiscard, 0), 0, ioerr, ioerr, unsupp},
		{"discard of half a range", with(BlkDiscard, 0, ranges(0, 1, 0)[:8]), 0, ioerr, ioerr, unsupp},
		{"discard of a range and a half", with(BlkDiscard, 0, ranges(0, 1, 0), data(8)), 0, ioerr, ioerr, unsupp},
		{"discard past the end", with(BlkDiscard, 0, ranges(99, 2, 0)), 0, ioerr, ioerr, unsupp},
		{"discard whose second range is past the end", with(BlkDiscard, 0, ranges(0, 1, 0, 100, 1, 0)), 0, ioerr, ioerr, unsupp},
		{"discard of a range that overflows", with(BlkDiscard, 0, ranges(1<<64-1, 2, 0)), 0, ioerr, ioerr, unsupp},
		{"discard of nothing", with(BlkDiscard, 0, ranges(5, 0, 0)), 0, ok, ioerr, unsupp},
		{"an unknown flag after a range past the end", with(BlkDiscard, 0, ranges(200, 1, 0, 0, 1, 2)), 0, unsupp, ioerr, unsupp},
		{"a range past the end after an unknown flag", with(BlkDiscard, 0, ranges(0, 1, 2, 200, 1, 0)), 0, unsupp, ioerr, unsupp},
		{"zeroes", with(BlkWriteZeroes, 0, ranges(0, 60, 0)), 0, ok, ioerr, unsupp},
		{"zeroes with unmap", with(BlkWriteZeroes, 0, ranges(0, 60, 1, 60, 40, 0, 3, 0, 0)), 0, ok, ioerr, unsupp},
		{"zeroes with an unknown flag", with(BlkWriteZeroes, 0, ranges(0, 1, 2)), 0, unsupp, ioerr, unsupp},
		{"zeroes with unmap and an unknown flag", with(BlkWriteZeroes, 0, ranges(0, 1, 1<<31|1)), 0, unsupp, ioerr, unsupp},
		{"zeroes of too much", with(BlkWriteZeroes, 0, ranges(0, 61, 0)), 0, ioerr, ioerr, unsupp},
		{"secure erase", with(BlkSecureErase, 0, ranges(0, 70, 0)), 0, ok, ioerr, unsupp},
		{"secure erase with unmap", with(BlkSecureErase, 0, ranges(0, 1, 1)), 0, unsupp, ioerr, unsupp},
		{"secure erase of too many", with(BlkSecureErase, 0, ranges(0, 1, 0, 2, 1, 0)), 0, ioerr, ioerr, unsupp},
		{"a SCSI command", header(2, 0), 0, unsupp, unsupp, unsupp},
		{"a zone report without zones", header(16, 0), 512, unsupp, unsupp, unsupp},
		{"an unknown type", header(0xffffffff, 0), 0, unsupp, unsupp, unsupp},
		{"a legacy barrier", header(0x80000000, 0), 512, unsupp, unsupp, unsupp},
		{"a header of 15 bytes", header(BlkIn, 0)[:15], 512, ioerr, ioerr, ioerr},
		{"no header", nil, 512, ioerr, ioerr, ioerr},
	} {
		ro, bare := testDisk, BlkDisk{Capacity: testDisk.Capacity}
		ro.Features |= BlkFeatureRO
		for disk, want := range map[*BlkDisk]byte{&testDisk: c.want, &ro: c.ro, &bare: c.bare} {
			var rq BlkRequest
			in := make([]byte, c.in+1)
			ch := chain(slices.Clone(c.out), in)
			at := ch.StatusByte()
			if !disk.Parse(ch, &rq) {
				t.Fatalf("%s: no status", c.name)
			}
			if rq.Status != want || (rq.Why == "") != (want == BlkOK) {
				t.Errorf("%s, features %#x: status %d (%s), not %d", c.name, disk.Features, rq.Status, rq.Why, want)
			}
			if rq.Status != BlkOK && len(rq.Ranges) != 0 {
				t.Errorf("%s: ranges of a request that fails", c.name)
			}
			rq.complete(at, rq.Status)
			if in[c.in] != want {
				t.Errorf("%s: the status is at another place", c.name)
			}
		}
	}
}

// TestBlkNoStatus: a chain that has no writable byte cannot be answered.
func TestBlkNoStatus(t *testing.T) {
	var rq BlkRequest
	if testDisk.Parse(chain(header(BlkFlush, 0), nil), &rq) {
		t.Error("parsed")
	}
}

// TestBlkFraming cuts requests into pieces at every place, and into single
// bytes: the same request comes out (section 2.7.4.1).
func TestBlkFraming(t *testing.T) {
	payload := make([]byte, 1024)
	for i := range payload {
		payload[i] = byte(i * 7)
	}
	write := append(header(BlkOut, 3), payload...)
	zeroes := append(header(BlkWriteZeroes, 0), ranges(1, 2, 1, 5, 6, 0)...)
	cut := func(b []byte, sizes ...int) (v [][]byte) {
		for i := 0; len(b) > 0; i++ {
			n := min(sizes[min(i, len(sizes)-1)], len(b))
			v = append(v, b[:n:n])
			b = b[n:]
		}
		return v
	}
	for first := 1; first <= 40; first++ {
		for _, rest := range []int{1, 3, 16, 5000} {
			name := fmt.Sprintf("cut after %d and every %d", first, rest)
			var rq BlkRequest
			in := make([]byte, 3)
			c := &Chain{Out: cut(slices.Clone(write), first, rest), In: cut(in, 1), OutBytes: uint64(len(write)), InBytes: 3}
			at := c.StatusByte()
			if !testDisk.Parse(c, &rq) || rq.Status != BlkOK || rq.Op != BlkOut || rq.Off != 3*512 || rq.Len != 1024 || !bytes.Equal(content(rq.Data), payload) {
				t.Fatalf("write %s: %+v", name, rq)
			}
			if got := rq.complete(at, 0x5a); got != 0 || in[2] != 0x5a {
				t.Fatalf("write %s: written %d", name, got)
			}
			c = &Chain{Out: cut(slices.Clone(zeroes), first, rest), In: cut(in, 1), OutBytes: uint64(len(zeroes)), InBytes: 3}
			want := []BlkRange{{512, 1024, true}, {5 * 512, 6 * 512, false}}
			if !testDisk.Parse(c, &rq) || rq.Status != BlkOK || !slices.Equal(rq.Ranges, want) {
				t.Fatalf("zeroes %s: %+v", name, rq)
			}
			back := make([]byte, 513)
			c = &Chain{Out: cut(header(BlkIn, 9), first, rest), In: cut(back, first, rest), OutBytes: 16, InBytes: 513}
			at = c.StatusByte()
			if !testDisk.Parse(c, &rq) || rq.Status != BlkOK || rq.Off != 9*512 || rq.Len != 512 || len(content(rq.Data)) != 512 {
				t.Fatalf("read %s: %+v", name, rq)
			}
			if got := rq.complete(at, BlkUnsupported); got != 0 || back[512] != BlkUnsupported {
				t.Fatalf("read %s: written %d, status %d", name, got, back[512])
			}
		}
	}
}

// TestBlkWritten is what a driver is told of how much was written, which must
// not be more than was (section 2.7.8.2).
func TestBlkWritten(t *testing.T) {
	for _, c := range []struct {
		op     BlkOp
		in     int
		status byte
		want   uint32
	}{
		{BlkIn, 512, BlkOK, 513}, {BlkIn, 512, BlkIOErr, 0}, {BlkIn, 0, BlkOK, 1}, {BlkFlush, 0, BlkOK, 1}, {BlkFlush, 0, BlkIOErr, 1},
		{BlkGetID, 20, BlkOK, 21}, {BlkGetID, 5, BlkOK, 6}, {BlkGetID, 30, BlkOK, 20}, {BlkGetID, 0, BlkOK, 1},
		{BlkFlush, 7, BlkOK, 0}, {BlkFlush, 7, BlkIOErr, 0},
	} {
		var rq BlkRequest
		if !testDisk.Parse(chain(header(c.op, 0), make([]byte, c.in+1)), &rq) || rq.Status != BlkOK {
			t.Fatal(rq)
		}
		if c.op == BlkGetID {
			rq.CopyID("serial")
		}
		if got := rq.complete(make([]byte, 1), c.status); got != c.want {
			t.Errorf("%v of %d bytes, status %d: %d bytes written, not %d", c.op, c.in, c.status, got, c.want)
		}
	}
}

// TestBlkID: shorter buffers get what fits, longer ones 20 bytes.
func TestBlkID(t *testing.T) {
	long := strings.Repeat("x", 30)
	for _, c := range []struct {
		id   string
		in   int
		want string
	}{
		{"abc", 20, "abc" + strings.Repeat("\x00", 17)}, {long, 20, long[:20]}, {long, 25, long[:20] + "....."}, {"abc", 2, "ab"}, {"", 4, "\x00\x00\x00\x00"}, {"abc", 0, ""},
	} {
		in := bytes.Repeat([]byte("."), c.in+1)
		var rq BlkRequest
		testDisk.Parse(chain(header(BlkGetID, 0), in), &rq)
		rq.CopyID(c.id)
		if got := string(in[:c.in]); got != c.want {
			t.Errorf("%q in %d bytes: %q", c.id, c.in, got)
		}
	}
}

// TestBlkCapacity: a disk of no sector, and one that pretends to be negative.
func TestBlkCapacity(t *testing.T) {
	for _, capacity := range []int64{0, 511, -1, -1 << 63} {
		d := BlkDisk{Capacity: capacity}
		var rq BlkRequest
		if !d.Parse(chain(header(BlkIn, 0), make([]byte, 513)), &rq) || rq.Status != BlkIOErr {
			t.Errorf("capacity %d: status %d", capacity, rq.Status)
		}
	}
	d := BlkDisk{Capacity: 1<<63 - 1}
	var rq BlkRequest
	sector := uint64(1<<63-1)/512 - 1
	if !d.Parse(chain(header(BlkIn, sector), make([]byte, 513)), &rq) || rq.Status != BlkOK || rq.Off != int64(sector)*512 || rq.Off < 0 {
		t.Errorf("the last sector of the largest disk: %+v", rq)
	}
}

// TestBlkMaxRanges: whatever the configuration promises, no more than that.
func TestBlkMaxRanges(t *testing.T) {
	d := testDisk
	d.MaxDiscardSeg = 1 << 31
	for n, want := range map[int]byte{BlkMaxRanges: BlkOK, BlkMaxRanges + 1: BlkIOErr} {
		var rq BlkRequest
		out := header(BlkDiscard, 0)
		for range n {
			out = append(out, ranges(1, 1, 0)...)
		}
		if !d.Parse(chain(out, make([]byte, 1)), &rq) || rq.Status != want {
			t.Errorf("%d ranges: status %d", n, rq.Status)
		}
	}
}

func TestBlkOpNames(t *testing.T) {
	seen := map[string]bool{}
	for _, op := range []BlkOp{BlkIn, BlkOut, BlkFlush, BlkGetID, BlkGetLifetime, BlkDiscard, BlkWriteZeroes, BlkSecureErase, 99} {
		if s := op.String(); s == "" || seen[s] {
			t.Errorf("%d is called %q", op, s)
		} else {
			seen[s] = true
		}
	}
}

// TestBlkConfig compares a configuration space with its bytes, which are
// written out from struct virtio_blk_config (section 5.2.4).
func TestBlkConfig(t *testing.T) {
	c := BlkConfig{
		Capacity: 0x0102030405060708, SizeMax: 0x11121314, SegMax: 0x21222324, Cylinders: 0x3132, Heads: 0x33, Sectors: 0x34,
		BlkSize: 0x41424344, PhysicalBlockExp: 0x51, AlignmentOffset: 0x52, MinIOSize: 0x5354, OptIOSize: 0x55565758,
		Writeback: 0x61, NumQueues: 0x6364, MaxDiscardSectors: 0x71727374, MaxDiscardSeg: 0x75767778, DiscardSectorAlignment: 0x797a7b7c,
		MaxWriteZeroesSectors: 0x81828384, MaxWriteZeroesSeg: 0x85868788, WriteZeroesMayUnmap: 0x89,
		MaxSecureEraseSectors: 0x91929394, MaxSecureEraseSeg: 0x95969798, SecureEraseSectorAlignment: 0x999a9b9c,
	}
	want := []byte{
		8, 7, 6, 5, 4, 3, 2, 1,
		0x14, 0x13, 0x12, 0x11, 0x24, 0x23, 0x22, 0x21,
		0x32, 0x31, 0x33, 0x34,
		0x44, 0x43, 0x42, 0x41,
		0x51, 0x52, 0x54, 0x53, 0x58, 0x57, 0x56, 0x55,
		0x61, 0, 0x64, 0x63,
		0x74, 0x73, 0x72, 0x71, 0x78, 0x77, 0x76, 0x75, 0x7c, 0x7b, 0x7a, 0x79,
		0x84, 0x83, 0x82, 0x81, 0x88, 0x87, 0x86, 0x85, 0x89, 0, 0, 0,
		0x94, 0x93, 0x92, 0x91, 0x98, 0x97, 0x96, 0x95, 0x9c, 0x9b, 0x9a, 0x99,
		0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
	}
	var got [BlkConfigSize]byte
	c.Encode(&got)
	if !bytes.Equal(got[:], want) {
		t.Fatalf("encoded\n% x, not\n% x", got, want)
	}
	var back BlkConfig
	if back.Decode(got[:]); back != c {
		t.Errorf("decoded %+v", back)
	}
	for off := range BlkConfigSize + 3 {
		for n := range 20 {
			dst := bytes.Repeat([]byte{0xee}, n)
			ok := c.Read(dst, uint32(off))
			if ok != (off <= BlkConfigSize) {
				t.Fatalf("%d bytes at %d: %v", n, off, ok)
			}
			exp := append(slices.Clone(want), make([]byte, 40)...)[off : off+n]
			if ok && !bytes.Equal(dst, exp) || !ok && bytes.ContainsFunc(dst, func(r rune) bool { return r == 0 }) {
				t.Fatalf("%d bytes at %d: % x", n, off, dst)
			}
		}
	}
}

// TestBlkConfigCutShort: of a configuration space that is shorter, the fields
// that are whole count.
func TestBlkConfigCutShort(t *testing.T) {
	full := BlkConfig{Capacity: 1, SizeMax: 2, SegMax: 3, Cylinders: 4, Heads: 5, Sectors: 6, BlkSize: 7, NumQueues: 8, SecureEraseSectorAlignment: 9}
	var b [BlkConfigSize]byte
	full.Encode(&b)
	for n := range BlkConfigSize + 1 {
		var c BlkConfig
		c.Decode(b[:n])
		want := BlkConfig{}
		for _, f := range []struct {
			end int
			set func()
		}{
			{8, func() { want.Capacity = 1 }}, {12, func() { want.SizeMax = 2 }}, {16, func() { want.SegMax = 3 }}, {18, func() { want.Cylinders = 4 }},
			{19, func() { want.Heads = 5 }}, {20, func() { want.Sectors = 6 }}, {24, func() { want.BlkSize = 7 }}, {36, func() { want.NumQueues = 8 }},
			{72, func() { want.SecureEraseSectorAlignment = 9 }},
		} {
			if n >= f.end {
				f.set()
			}
		}
		if c != want {
			t.Fatalf("%d bytes: %+v, not %+v", n, c, want)
		}
	}
}

func TestBlkGeometry(t *testing.T) {
	for sectors, want := range map[uint64]uint16{0: 2, 1008: 2, 1 << 21: 2080, 16383 * 1008: 16383, 1 << 60: 16383} {
		if c, h, s := BlkGeometry(sectors); c != want || h != 16 || s != 63 {
			t.Errorf("%d sectors: %d/%d/%d", sectors, c, h, s)
		}
	}
}
