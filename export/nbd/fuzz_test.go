package nbd

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/platter-storage/platter/block/blocktest"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// FuzzServe sends any bytes after a handshake, to disks of every way of
// serving. Nothing panics, nothing is held afterwards, what is held meanwhile
// is bounded, and the connection ends.
func FuzzServe(f *testing.F) {
	env := blocktest.NewEnv(f)
	em := blocktest.NewEmulator(f, blocktest.EmulatorConfig{Size: mib, Limits: alignedTo(4096), Fast: true})
	r := newRig(f, env, Config{MaxInFlight: 4, Memory: MinMemory, MaxInFlightBytes: mib},
		Export{Name: "mem", Child: disk(f, env, "mem", mib), AllocationDepth: true},
		Export{Name: "async", Child: blocktest.Edge(f, blocktest.Attach(f, env, em, "emulator")), AllocationDepth: true})
	for _, s := range fuzzSeeds() {
		f.Add(byte(0), s)
		f.Add(byte(1), s)
		f.Add(byte(3), s)
	}
	for _, s := range fuzzSeedsExtended() {
		f.Add(byte(4), s)
		f.Add(byte(5), s)
	}
	f.Fuzz(func(t *testing.T, how byte, data []byte) {
		cfg := modes[int(how>>1)%len(modes)].cfg
		cfg.Export = [2]string{"mem", "async"}[how&1]
		nc, err := net.Dial("unix", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if err := nc.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := wire.ClientHandshake(nc, cfg); err != nil {
			t.Fatal(err)
		}
		go func() {
			_, _ = nc.Write(data) // the server may have hung up
			_ = nc.(*net.UnixConn).CloseWrite()
		}()
		if _, err := io.Copy(io.Discard, nc); err != nil && !gone(err) {
			t.Fatalf("the connection did not end: %v", err)
		}
		if held := r.mem.held.Load(); held > MinMemory {
			t.Fatalf("%d bytes are held", held)
		}
		for range 60000 { // a minute: test machines are slow
			if len(r.Connections()) == 0 && r.mem.held.Load() == 0 {
				return
			}
			time.Sleep(time.Millisecond)
		}
		t.Fatalf("%d connections and %d bytes are left", len(r.Connections()), r.mem.held.Load())
	})
}

// fuzzSeeds are valid and nearly valid streams of requests.
func fuzzSeeds() [][]byte {
	payload := make([]byte, 70000)
	write := append(request(wire.CmdWrite, wire.CmdFlagFUA, 1, 4096, 512), payload[:512]...)
	big := append(request(wire.CmdWrite, 0, 2, 0, 70000), payload...)
	var all []byte
	for t := wire.CmdRead; t <= wire.CmdResize; t++ {
		if t != wire.CmdWrite && t != wire.CmdDisc {
			all = append(all, request(t, 0, uint64(t), 512, 8192)...)
		}
	}
	all = append(append(all, write...), request(wire.CmdDisc, 0, 9, 0, 0)...)
	return [][]byte{
		all, write, big, big[:1000], append(big, all...),
		request(wire.CmdRead, 0, 1, 0, mib), request(wire.CmdRead, wire.CmdFlagDF, 1, 0, mib),
		request(wire.CmdBlockStatus, wire.CmdFlagReqOne, 1, 0, mib), request(wire.CmdWriteZeroes, wire.CmdFlagFastZero, 1, 7, mib-7),
		request(wire.CmdRead, 0, 1, 1<<63, 1<<31), request(wire.CmdWrite, 0, 1, 0, 1<<32-1), []byte("GET / HTTP/1.1\r\n\r\n"),
	}
}

func fuzzSeedsExtended() [][]byte {
	req := func(t wire.Cmd, fl wire.CmdFlags, off, n uint64, payload ...byte) []byte {
		b := make([]byte, wire.ExtendedRequestLen)
		wire.PutRequest(b, &wire.Request{Type: t, Flags: fl, Cookie: 5, Offset: off, Length: n}, true)
		return append(b, payload...)
	}
	ids := wire.AppendBlockStatusPayload(nil, 8192, []uint32{0, 1})
	return [][]byte{
		req(wire.CmdBlockStatus, wire.CmdFlagPayloadLen, 0, uint64(len(ids)), ids...),
		req(wire.CmdBlockStatus, wire.CmdFlagPayloadLen, 0, 4096, make([]byte, 4096)...),
		req(wire.CmdBlockStatus, 0, 0, 1<<40), req(wire.CmdTrim, wire.CmdFlagPayloadLen, 0, 100, make([]byte, 100)...),
		req(wire.CmdWriteZeroes, 0, 0, 1<<62), req(wire.CmdWrite, wire.CmdFlagPayloadLen, 0, 512, make([]byte, 512)...),
		req(wire.CmdRead, 0, 0, mib), req(wire.CmdCache, 0, 0, mib),
	}
}
