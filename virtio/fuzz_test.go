package virtio

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
)

// Guest memory of a fuzzed ring: two regions side by side and one apart, 16 KiB
// in all. The ring is in the first.
const (
	fuzzBase = 0x1000
	fuzzA    = 8192
	fuzzB    = 4096
	fuzzC    = 4096
	fuzzGap  = 0x8000
)

// fuzzed is a ring whose memory and use come from a fuzzer's bytes.
type fuzzed struct {
	*testing.T
	mem     []byte
	m       *Map
	l       Layout
	records []byte
	ring    *Ring
	disk    BlkDisk
	chain   Chain
	rq      BlkRequest
	held    []Handle
	ops     []byte
	rest    []byte // what memory is changed to, again and again
}

// newFuzzed takes data apart: features, size, as many operations as the third
// byte says, and memory.
func newFuzzed(t *testing.T, data []byte, packed bool) *fuzzed {
	if len(data) < 4 {
		return nil
	}
	f := &fuzzed{T: t, mem: make([]byte, fuzzA+fuzzB+fuzzC), disk: testDisk}
	features := FeatureVersion1
	for i, bit := range []uint64{FeatureEventIdx, FeatureIndirectDesc, FeatureInOrder} {
		if data[0]>>i&1 != 0 {
			features |= bit
		}
	}
	size := uint16(1) << (data[1] % 6)
	if packed {
		features |= FeatureRingPacked
		size = 1 + uint16(data[1]%40)
	}
	if data[0]&8 != 0 {
		f.records = make([]byte, max(InflightSize(size, packed), 1<<15)) // page-aligned
	}
	n := min(int(data[2]), len(data)-3)
	f.ops, f.rest = data[3:3+n], data[3+n:]
	copy(f.mem, f.rest)
	var err error
	f.m, err = NewMap([]Region{
		{fuzzBase, 0, f.mem[:fuzzA]}, {fuzzBase + fuzzA, fuzzA, f.mem[fuzzA : fuzzA+fuzzB]}, {fuzzBase + fuzzGap, fuzzGap, f.mem[fuzzA+fuzzB:]},
	})
	if err != nil {
		t.Fatal(err)
	}
	desc, driver, device := AreaSizes(size, features)
	f.l = Layout{Size: size, Features: features, Desc: f.mem[:desc], Driver: f.mem[1024 : 1024+driver], Device: f.mem[2048 : 2048+device]}
	if !f.start() {
		return nil
	}
	return f
}

// start makes a ring where the last one stopped; with contradictory records
// there may be none.
func (f *fuzzed) start() bool {
	o := Options{Base: StartBase(f.l.Features)}
	var err error
	if f.records != nil {
		if o.Inflight, err = NewInflight(f.records, f.l.Size, f.l.packed()); err != nil {
			return false
		}
	}
	f.held = nil
	f.ring, err = NewRing(f.l, f.m, o)
	if err != nil && !errors.Is(err, ErrInflight) {
		f.Fatal(err)
	}
	return err == nil
}

// run does what the operations say, and checks what must hold whatever is in
// memory.
func (f *fuzzed) run() {
	for i, op := range f.ops {
		switch op % 8 {
		case 0, 1, 2:
			f.pop()
		case 3:
			if len(f.held) > 0 {
				k := int(op/8) % len(f.held)
				f.ring.Push(f.held[k], uint32(op))
				f.held = slices.Delete(f.held, k, k+1)
			}
		case 4:
			f.ring.Publish()
		case 5:
			f.ring.Disarm()
			f.ring.Arm()
		case 6:
			f.change(i, int(op/8))
		case 7:
			if op >= 0x80 && !f.start() {
				return
			}
		}
		if f.ring.Out() > f.ring.Size() {
			f.Fatalf("%d chains are out of a ring of %d", f.ring.Out(), f.ring.Size())
		}
	}
}

// change writes some of the fuzzer's bytes somewhere into the ring.
func (f *fuzzed) change(i, n int) {
	if len(f.rest) == 0 {
		return
	}
	for k := range n {
		b := f.rest[(i*31+k*7)%len(f.rest)]
		f.mem[(int(b)*16+i*5+k)%(3*1024)] = b
	}
}

func (f *fuzzed) pop() {
	ok, err := f.ring.Pop(&f.chain)
	var e *Error
	if err != nil && (!errors.As(err, &e) || e.Error() == "" || ok == e.Fatal) {
		f.Fatalf("%v, %v", ok, err)
	}
	if !ok {
		return
	}
	f.held = append(f.held, f.chain.Handle)
	c := &f.chain
	if len(c.Out)+len(c.In) > MaxSegs {
		f.Fatalf("%d and %d pieces", len(c.Out), len(c.In))
	}
	for i, v := range [][][]byte{c.Out, c.In} {
		n := uint64(0)
		for _, b := range v {
			if _, ok := f.m.Address(b); !ok {
				f.Fatal("a piece that is not the guest's")
			}
			n += uint64(len(b))
		}
		if n != [2]uint64{c.OutBytes, c.InBytes}[i] {
			f.Fatalf("%d bytes, not %d and %d", n, c.OutBytes, c.InBytes)
		}
	}
	if err != nil {
		c.StatusByte()[0] = BlkIOErr
		return
	}
	f.parse()
}

// parse checks what a request may ask of a disk.
func (f *fuzzed) parse() {
	status := f.chain.StatusByte()
	if !f.disk.Parse(&f.chain, &f.rq) {
		return
	}
	checkRequest(f.T, &f.disk, &f.rq)
	f.rq.complete(status, f.rq.Status)
}

// checkRequest looks that a request that may be executed stays inside the disk.
func checkRequest(t *testing.T, d *BlkDisk, rq *BlkRequest) {
	if rq.Status != BlkOK {
		if rq.Why == "" || len(rq.Ranges) > 0 {
			t.Fatalf("%+v", rq)
		}
		return
	}
	end := d.Capacity / SectorSize * SectorSize
	if rq.Off < 0 || rq.Len < 0 || (rq.Op == BlkIn || rq.Op == BlkOut) && (rq.Off+rq.Len > end || rq.Len%SectorSize != 0 || rq.Len != int64(len(content(rq.Data)))) {
		t.Fatalf("%v of %d bytes at %d", rq.Op, rq.Len, rq.Off)
	}
	for _, r := range rq.Ranges {
		if r.Off < 0 || r.Len <= 0 || r.Off+r.Len > end || r.Unmap && rq.Op != BlkWriteZeroes {
			t.Fatalf("%v: %+v", rq.Op, r)
		}
	}
}

// runAgainst does the same while somebody else changes the memory.
func (f *fuzzed) runAgainst() {
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		scribble(f.mem[:3*1024], f.rest, &stop)
	}()
	for range 8 {
		f.run()
		if f.ring == nil {
			break
		}
	}
	stop.Store(true)
	<-done
}

// scribble changes memory until it is told to stop. It is the guest, of which
// the race detector knows nothing.
//
//go:norace
func scribble(mem, from []byte, stop *atomic.Bool) {
	for i := 0; len(from) > 0 && !stop.Load(); i++ {
		b := from[i%len(from)]
		mem[(i*13+int(b)*16)%len(mem)] = b ^ byte(i>>8)
	}
}

// seedRing is what a driver that keeps to the rules leaves in memory, as input
// for the fuzz targets.
func seedRing(tb testing.TB, packed bool, flags, size byte, ops string) []byte {
	data := append([]byte{flags, size, byte(len(ops))}, ops...)
	f := newFuzzed(&testing.T{}, append(slices.Clone(data), 0), packed)
	d, err := NewDriver(f.l, Tables{Guest: fuzzBase + 4096, Mem: f.mem[4096:8192], Len: 4096 / descSize / int(f.l.Size)})
	if err != nil {
		tb.Fatal(err)
	}
	for i, op := range []BlkOp{BlkIn, BlkOut, BlkFlush, BlkWriteZeroes, BlkGetID} {
		at := 3072 + i*64
		copy(f.mem[at:], header(op, 1))
		copy(f.mem[at+16:], ranges(0, 1, 1))
		gpa := uint64(fuzzBase + at)
		out := []Seg{{gpa, 16}}
		if op == BlkOut || op == BlkWriteZeroes {
			out = append(out, Seg{gpa + 16, 16})
		}
		if op == BlkOut {
			out[1] = Seg{fuzzBase + fuzzA - 256, 512} // in two regions
		}
		if _, ok := d.Add(out, []Seg{{fuzzBase + fuzzGap, 512}, {gpa + 40, 1}}, flags&2 != 0); !ok {
			break
		}
	}
	d.Kick()
	return append(data, bytes.TrimRight(f.mem, "\x00")...)
}

func fuzzRing(f *testing.F, packed bool) {
	for flags := range byte(16) {
		f.Add(seedRing(f, packed, flags, 4, "\x00\x00\x03\x04\x05\x00\x0b\x04\xff\x00\x00\x03\x03\x04"))
	}
	f.Add(seedRing(f, packed, 0x12, 3, "\x00\x16\x00\x3e\x00\x03\x04\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := newFuzzed(t, data, packed)
		switch {
		case r == nil:
		case data[0]&0x10 != 0:
			r.runAgainst()
		default:
			r.run()
		}
	})
}

// FuzzSplit is a device of a split ring in memory that is the fuzzer's, which
// it changes between operations or, by a bit of the input, all the time.
func FuzzSplit(f *testing.F) { fuzzRing(f, false) }

// FuzzPacked is the same for a packed ring.
func FuzzPacked(f *testing.F) { fuzzRing(f, true) }

// FuzzBlkRequest parses requests cut into pieces in any way, and compares with
// what a parser of one piece of bytes makes of them.
func FuzzBlkRequest(f *testing.F) {
	f.Add(byte(0), uint16(512), []byte{16, 1}, append(header(BlkIn, 1), 1))
	f.Add(byte(1), uint16(0), []byte{3}, append(header(BlkOut, 1), make([]byte, 512)...))
	f.Add(byte(0xff), uint16(0), []byte{200, 8}, append(header(BlkWriteZeroes, 0), ranges(0, 1, 1, 5, 6, 0)...))
	f.Add(byte(0xff), uint16(0), []byte{16}, append(header(BlkDiscard, 0), ranges(0, 1, 0)...))
	f.Add(byte(0xff), uint16(0), []byte{16}, append(header(BlkSecureErase, 0), ranges(99, 1, 0)...))
	f.Add(byte(0), uint16(20), []byte{}, header(BlkGetID, 0))
	f.Add(byte(8), uint16(6), []byte{1}, header(BlkGetLifetime, 0))
	f.Fuzz(func(t *testing.T, features byte, in uint16, cuts, out []byte) {
		d := testDisk
		d.Features = uint64(features) * BlkFeatureDiscard // and the bits above it
		if features&0x10 != 0 {
			d.Features |= BlkFeatureRO
		}
		pieces := func(b []byte) (v [][]byte) {
			for i := 0; len(b) > 0; i++ {
				n := len(b)
				if len(cuts) > 0 {
					n = min(n, 1+int(cuts[i%len(cuts)]))
				}
				v = append(v, b[:n:n])
				b = b[n:]
			}
			return v
		}
		room := make([]byte, in)
		c := &Chain{Out: pieces(slices.Clone(out)), In: pieces(room), OutBytes: uint64(len(out)), InBytes: uint64(in)}
		var rq BlkRequest
		at := c.StatusByte()
		if ok := d.Parse(c, &rq); ok != (in > 0) {
			t.Fatalf("parsed: %v", ok)
		}
		if in == 0 {
			return
		}
		checkRequest(t, &d, &rq)
		if want := plainStatus(&d, out, int64(in)-1); rq.Status != want {
			t.Fatalf("status %d (%s), not %d", rq.Status, rq.Why, want)
		}
		if rq.Status == BlkOK && rq.Op == BlkOut && !bytes.Equal(content(rq.Data), out[16:]) {
			t.Fatal("other data")
		}
		if w := rq.complete(at, 0x5a); int(w) > int(in) || room[in-1] != 0x5a {
			t.Fatalf("%d of %d bytes written, status %d", w, in, room[in-1])
		}
	})
}

// plainStatus is what the specification answers to a request in one piece.
func plainStatus(d *BlkDisk, out []byte, in int64) byte {
	if len(out) < 16 {
		return BlkIOErr
	}
	le := binary.LittleEndian
	op, sector, data := BlkOp(le.Uint32(out)), le.Uint64(out[8:]), out[16:]
	ro := d.Features&BlkFeatureRO != 0
	transfer := func(n int64) byte {
		if n%512 != 0 || sector > 100 || sector+uint64(n/512) > 100 {
			return BlkIOErr
		}
		return BlkOK
	}
	feature, sectors, segs := map[BlkOp]uint64{BlkDiscard: BlkFeatureDiscard, BlkWriteZeroes: BlkFeatureWriteZeroes, BlkSecureErase: BlkFeatureSecureErase}[op],
		map[BlkOp]uint32{BlkDiscard: 50, BlkWriteZeroes: 60, BlkSecureErase: 70}[op], map[BlkOp]int{BlkDiscard: 2, BlkWriteZeroes: 3, BlkSecureErase: 1}[op]
	switch {
	case op == BlkIn:
		return transfer(in)
	case op == BlkOut && ro:
		return BlkIOErr
	case op == BlkOut:
		return transfer(int64(len(data)))
	case op == BlkFlush || op == BlkGetID || op == BlkGetLifetime && d.Features&BlkFeatureLifetime != 0:
		return BlkOK
	case feature == 0 || d.Features&feature == 0:
		return BlkUnsupported
	case ro || len(data) == 0 || len(data)%16 != 0 || len(data)/16 > segs:
		return BlkIOErr
	}
	status := BlkOK
	for ; len(data) > 0; data = data[16:] {
		s, n, flags := le.Uint64(data), le.Uint32(data[8:]), le.Uint32(data[12:])
		if flags > 1 || flags == 1 && op != BlkWriteZeroes {
			return BlkUnsupported
		}
		if n > sectors || s > 100 || s+uint64(n) > 100 {
			status = BlkIOErr
		}
	}
	return status
}

// FuzzInflight takes up records that are the fuzzer's, for a ring that is, too:
// an error, or chains that are whole, each once, and no more than the ring has.
func FuzzInflight(f *testing.F) {
	for flags := range byte(8) {
		for _, packed := range []bool{false, true} {
			data := seedRing(f, packed, 8|flags, 4, "\x00\x00\x00\x03\x04")
			f.Add(packed, data, seedRecords(f, data, packed))
		}
	}
	f.Fuzz(func(t *testing.T, packed bool, data, records []byte) {
		if len(data) > 0 {
			data = slices.Clone(data)
			data[0] |= 8
		}
		r := newFuzzed(t, data, packed)
		if r == nil {
			return
		}
		clear(r.records)
		copy(r.records, records)
		if !r.start() {
			return
		}
		again := r.ring.Out()
		for i := range again {
			r.pop()
			if r.ring.fault.Fatal {
				return
			}
			if len(r.held) != i+1 || !r.chain.Resubmit {
				t.Fatalf("%d chains of %d are given out again", len(r.held), again)
			}
		}
		r.run()
	})
}

// seedRecords are the records that input leaves behind.
func seedRecords(tb testing.TB, data []byte, packed bool) []byte {
	f := newFuzzed(&testing.T{}, data, packed)
	if f == nil {
		tb.Fatal("no ring from the seed")
	}
	f.run()
	return bytes.TrimRight(f.records[:InflightSize(f.l.Size, packed)], "\x00")
}
