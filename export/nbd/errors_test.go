package nbd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/inject"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// What a client must not ask for is answered as the document says, and the
// connection goes on.
func TestRefusals(t *testing.T) {
	const size = 1 * mib
	tests := []struct {
		name    string
		typ     wire.Cmd
		fl      wire.CmdFlags
		off, n  uint64
		ro      bool
		want    wire.Errno // with simple replies
		wantNew wire.Errno // with chunks, where it differs
	}{
		{name: "read to the end", typ: wire.CmdRead, off: size - 512, n: 512},
		{name: "read one past", typ: wire.CmdRead, off: size - 511, n: 512, want: wire.EINVAL},
		{name: "read of nothing", typ: wire.CmdRead, want: wire.EINVAL},
		{name: "read that wraps", typ: wire.CmdRead, off: math.MaxUint64 - 10, n: 512, want: wire.EINVAL},
		{name: "read of more than the maximum", typ: wire.CmdRead, n: wire.MaxPayload + 1, want: wire.EINVAL, wantNew: wire.EOVERFLOW},
		{name: "read with an unknown flag", typ: wire.CmdRead, fl: 1 << 15, n: 512, want: wire.EINVAL},
		{name: "write one past", typ: wire.CmdWrite, off: size - 511, n: 512, want: wire.ENOSPC},
		{name: "write beyond", typ: wire.CmdWrite, off: 1 << 40, n: 100000, want: wire.ENOSPC},
		{name: "write, read-only", typ: wire.CmdWrite, n: 70000, ro: true, want: wire.EPERM},
		{name: "trim, read-only", typ: wire.CmdTrim, n: 512, ro: true, want: wire.EPERM},
		{name: "zeroes, read-only", typ: wire.CmdWriteZeroes, n: 512, ro: true, want: wire.EPERM},
		{name: "trim one past", typ: wire.CmdTrim, off: 512, n: size - 511, want: wire.EINVAL},
		{name: "zeroes one past", typ: wire.CmdWriteZeroes, off: 512, n: size - 511, want: wire.ENOSPC},
		{name: "zeroes of all", typ: wire.CmdWriteZeroes, n: size},
		{name: "cache one past", typ: wire.CmdCache, off: size, n: 1, want: wire.EINVAL},
		{name: "status one past", typ: wire.CmdBlockStatus, off: size, n: 1, want: wire.EINVAL},
	}
	for _, kind := range []string{"mem", "file"} {
		for _, m := range modes {
			t.Run(kind+"/"+m.name, func(t *testing.T) {
				env := blocktest.NewEnv(t)
				child := disk(t, env, kind, size)
				r := newRig(t, env, Config{}, Export{Name: "rw", Child: child}, Export{Name: "ro", Child: child, ReadOnly: true})
				cs := map[bool]*wire.Client{}
				for _, name := range []string{"rw", "ro"} {
					cfg := m.cfg
					cfg.Export = name
					cs[name == "ro"] = r.dial(cfg, wire.ClientOptions{Unchecked: true})
				}
				for _, tc := range tests {
					want := tc.want
					if m.name != "simple" && tc.wantNew != 0 {
						want = tc.wantNew
					}
					err := ask(cs[tc.ro], tc.typ, tc.fl, tc.off, tc.n)
					if want == 0 && err != nil {
						t.Errorf("%s: %v", tc.name, err)
					} else if want != 0 {
						var ce *wire.CommandError
						if !errors.As(err, &ce) || ce.Local || ce.Errno != want {
							t.Errorf("%s: %v, want %v", tc.name, err, want)
						} else if m.name != "simple" && ce.Message == "" {
							t.Errorf("%s: no message", tc.name)
						}
					}
				}
			})
		}
	}
}

// ask sends one command.
func ask(c *wire.Client, typ wire.Cmd, fl wire.CmdFlags, off, n uint64) error {
	switch typ {
	case wire.CmdRead:
		return c.Pread(make([]byte, n), off, fl)
	case wire.CmdWrite:
		return c.Pwrite(make([]byte, n), off, fl)
	case wire.CmdTrim:
		return c.Trim(off, n, fl)
	case wire.CmdWriteZeroes:
		return c.WriteZeroes(off, n, fl)
	case wire.CmdCache:
		return c.Cache(off, n)
	case wire.CmdBlockStatus:
		_, err := c.BlockStatus(off, n, fl)
		return err
	}
	return c.Flush()
}

// Commands that nobody knows, or with what they must not have, are refused too.
func TestUnknownCommands(t *testing.T) {
	env := blocktest.NewEnv(t)
	r := newRig(t, env, Config{}, Export{Child: disk(t, env, "mem", mib)})
	c := r.raw(wire.ClientConfig{})
	for i, b := range [][]byte{
		request(wire.CmdResize, 0, 0, 0, 512), request(77, 0, 1, 0, 512),
		request(wire.CmdFlush, 0, 2, 0, 512), request(wire.CmdBlockStatus, 0, 3, 0, 512),
		append(request(wire.CmdWrite, wire.CmdFlagDF, 4, 0, 512), make([]byte, 512)...),
		append(request(wire.CmdWrite, 1<<14, 5, 0, 100000), make([]byte, 100000)...),
	} {
		c.send(b)
		if rep := c.simple(); rep.Errno != wire.EINVAL || rep.Cookie != uint64(i) {
			t.Errorf("request %d: reply %+v, want EINVAL", i, rep)
		}
	}
}

// There is no reply to a disconnect, not even to one with flags that nobody
// knows.
func TestDisconnectIsNotAnswered(t *testing.T) {
	env := blocktest.NewEnv(t)
	r := newRig(t, env, Config{}, Export{Child: disk(t, env, "mem", mib)})
	c := r.raw(wire.ClientConfig{})
	c.send(request(wire.CmdDisc, 1<<14, 1, 7, 7))
	if n, err := c.Read(make([]byte, 1)); n != 0 || !gone(err) {
		t.Errorf("%d bytes, %v after a disconnect", n, err)
	}
}

// What breaks the protocol ends the connection, with one line that says why.
func TestProtocolViolations(t *testing.T) {
	env := blocktest.NewEnv(t)
	r := newRig(t, env, Config{}, Export{Child: disk(t, env, "mem", mib)})
	for name, b := range map[string][]byte{
		"wrong magic":        append([]byte("GET / HTTP/1.1\r\n\r\n"), make([]byte, 16)...),
		"write too long":     request(wire.CmdWrite, 0, 1, 0, wire.MaxPayload+1),
		"write far too long": request(wire.CmdWrite, 0, 1, 0, math.MaxUint32),
	} {
		t.Run(name, func(t *testing.T) {
			before := strings.Count(r.log.String(), "client broke the protocol")
			c := r.raw(wire.ClientConfig{})
			c.send(request(wire.CmdRead, 0, 7, 0, 512))
			if rep := c.simple(); rep.Cookie != 7 || rep.Errno != 0 {
				t.Fatalf("reply %+v", rep)
			}
			c.recv(512)
			c.send(b)
			if n, err := c.Read(make([]byte, 1)); n != 0 || !gone(err) {
				t.Errorf("%d bytes, error %v after a violation", n, err)
			}
			waitFor(t, "the log to say so", func() bool {
				return strings.Count(r.log.String(), "client broke the protocol") == before+1
			})
		})
	}
}

// gone says whether err means that the server has closed the connection.
func gone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed)
}

// fail makes requests that touch a range fail from now on.
func fail(em *blocktest.Emulator, op block.Op, off, n int64, err error) {
	em.Inject(&blocktest.Fault{Rule: inject.Rule{Ops: blocktest.OpBit(op), Off: off, Len: n}, Err: err})
}

// The disk's errors reach the client, with words where it understands them, but
// without names of files; the log has one line for each.
func TestDiskErrors(t *testing.T) {
	for _, fast := range []bool{false, true} {
		for _, m := range modes {
			t.Run(fmt.Sprintf("fast=%v/%s", fast, m.name), func(t *testing.T) { testDiskErrors(t, fast, m.name == "simple", m.cfg) })
		}
	}
}

func testDiskErrors(t *testing.T, fast, simple bool, cfg wire.ClientConfig) {
	env := blocktest.NewEnv(t)
	em := blocktest.NewEmulator(t, blocktest.EmulatorConfig{Size: 8 * mib, Fast: fast})
	r := newRig(t, env, Config{}, Export{Child: blocktest.Edge(t, blocktest.Attach(t, env, em, "secret"))})
	c := r.dial(cfg, wire.ClientOptions{})
	fail(em, block.OpRead, 4*mib, 512, syscall.EIO)
	fail(em, block.OpWrite, 4*mib, 512, syscall.ENOSPC)
	fail(em, block.OpZero, 4*mib, 512, syscall.EFBIG)
	for what, tc := range map[string]struct {
		err  error
		want wire.Errno
	}{
		"read":         {c.Pread(make([]byte, 4096), 4*mib, 0), wire.EIO},
		"long read":    {c.Pread(make([]byte, 6*mib), mib, 0), wire.EIO},
		"write":        {c.Pwrite(make([]byte, 4096), 4*mib, 0), wire.ENOSPC},
		"long write":   {c.Pwrite(make([]byte, 6*mib), mib, 0), wire.ENOSPC},
		"write zeroes": {c.WriteZeroes(4*mib, 4096, 0), wire.ENOSPC},
	} {
		var ce *wire.CommandError
		if !errors.As(tc.err, &ce) || ce.Errno != tc.want {
			t.Errorf("%s: %v, want %v", what, tc.err, tc.want)
			continue
		}
		if strings.Contains(ce.Message, "secret") || !simple && !strings.Contains(ce.Message, "log") {
			t.Errorf("%s: message %q", what, ce.Message)
		}
		if what == "long read" && !simple && (!ce.HasErrOffset || ce.ErrOffset < 3*mib || ce.ErrOffset > 4*mib) {
			t.Errorf("%s: error at %d (%v)", what, ce.ErrOffset, ce.HasErrOffset)
		}
	}
	if n := strings.Count(r.log.String(), "request failed"); n < 5 || n > 8 {
		t.Errorf("%d lines about failed requests", n)
	}
	if err := c.Pread(make([]byte, 4096), 0, 0); err != nil {
		t.Errorf("the connection does not go on: %v", err)
	}
}

// The range of a failed part is not overwritten, and what could be written is.
func TestLongWriteFailsInTheMiddle(t *testing.T) {
	env := blocktest.NewEnv(t)
	em := blocktest.NewEmulator(t, blocktest.EmulatorConfig{Size: 8 * mib})
	r := newRig(t, env, Config{}, Export{Child: blocktest.Edge(t, blocktest.Attach(t, env, em, "e"))})
	c := r.dial(wire.ClientConfig{}, wire.ClientOptions{})
	fail(em, block.OpWrite, 4*mib, 512, syscall.EIO)
	p := pattern(6*mib, 3)
	wantErrno(t, c.Pwrite(p, mib, 0), wire.EIO)
	b := make([]byte, 2*mib)
	if err := c.Pread(b, mib, 0); err != nil || !bytes.Equal(b, p[:2*mib]) {
		t.Errorf("what was before the failed part was not written (%v)", err)
	}
}
