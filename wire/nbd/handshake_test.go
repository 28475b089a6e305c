package nbd

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// certificate is made once: for localhost, signed by itself.
var certificate = sync.OnceValues(func() (tls.Certificate, *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	tmpl := x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, &tmpl, &tmpl, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
})

func serverTLS(rw io.ReadWriter) (io.ReadWriter, error) {
	cert, _ := certificate()
	c := tls.Server(rw.(net.Conn), &tls.Config{Certificates: []tls.Certificate{cert}})
	return c, c.Handshake()
}

func clientTLSConfig() *tls.Config {
	_, pool := certificate()
	return &tls.Config{RootCAs: pool, ServerName: "localhost"}
}

// unixPair is a connection over a Unix domain socket.
func unixPair(t testing.TB) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err = net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return bounded(t, client), bounded(t, server)
}

// pipePair is a connection without any buffer.
func pipePair(t testing.TB) (client, server net.Conn) {
	client, server = net.Pipe()
	return bounded(t, client), bounded(t, server)
}

// bounded closes the connection with the test, and makes a deadlock fail.
func bounded(t testing.TB, c net.Conn) net.Conn {
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return c
}

// shake does both sides of a handshake.
func shake(t testing.TB, client, server net.Conn, cc ClientConfig, sc ServerConfig) (cs *ClientSession, ss *Session, cerr, serr error) {
	t.Helper()
	if sc.Exports == nil {
		sc.Exports = testDisks
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if ss, serr = ServerHandshake(server, &sc); serr != nil {
			server.Close()
		}
	})
	if cs, cerr = ClientHandshake(client, cc); cerr != nil || cc.Mode != ModeGo {
		client.Close()
	}
	wg.Wait()
	return cs, ss, cerr, serr
}

// Every combination of what can be negotiated: both sides must agree on it.
func TestHandshakeCombinations(t *testing.T) {
	for i := range 1 << 7 {
		bit := func(n int) bool { return i>>n&1 != 0 }
		cc := ClientConfig{Export: "disk", WantStructured: bit(0), WantExtended: bit(1), Old: bit(2)}
		sc := ServerConfig{NoExtended: bit(3)}
		if bit(4) {
			cc.Contexts = []string{ContextBitmapPrefix + "b1", ContextAllocation, "x-none:here"}
		}
		if bit(5) {
			cc.TLS, cc.StartTLS = TLSRequired, startClientTLS(clientTLSConfig())
			sc.TLS, sc.StartTLS = TLSOptional, serverTLS
			if bit(0) {
				sc.TLS = TLSRequired
			}
		}
		cc.NoBlockSize = bit(6)
		name := fmt.Sprintf("structured=%v,extended=%v,old=%v,serverext=%v,contexts=%v,tls=%v,sizes=%v", bit(0), bit(1), bit(2), !bit(3), bit(4), bit(5), !bit(6))
		t.Run(name, func(t *testing.T) {
			pair := unixPair
			if !bit(5) && i%2 == 0 {
				pair = pipePair
			}
			client, server := pair(t)
			cs, ss, cerr, serr := shake(t, client, server, cc, sc)
			if cerr != nil || serr != nil {
				t.Fatalf("client %v, server %v", cerr, serr)
			}
			checkAgreement(t, cc, sc, cs, ss)
		})
	}
}

func checkAgreement(t *testing.T, cc ClientConfig, sc ServerConfig, cs *ClientSession, ss *Session) {
	t.Helper()
	extended := cc.WantExtended && !sc.NoExtended && !cc.Old
	structured := cc.WantStructured || extended
	var contexts []MetaContext
	if structured && len(cc.Contexts) > 0 {
		contexts = []MetaContext{{0, ContextAllocation}, {3, ContextBitmapPrefix + "b1"}}
	}
	sizes := !cc.Old && !cc.NoBlockSize
	for side, s := range map[string]*Session{"client": &cs.Session, "server": ss} {
		if s.Extended != extended || s.Structured != structured || s.TLS != (cc.TLS == TLSRequired) ||
			s.BlockSizeAsked != sizes || s.Export.Size != 1<<30 || s.Export.Name != "disk" || s.Name != "disk" {
			t.Errorf("%s: %+v", side, s)
		}
		if d := cmp.Diff(contexts, s.Contexts); d != "" {
			t.Errorf("%s: %s", side, d)
		}
	}
	if cs.Flags != ss.Flags || cs.MinBlock != ss.MinBlock {
		t.Errorf("client has flags %#x and minimum block %d, server %#x and %d", cs.Flags, cs.MinBlock, ss.Flags, ss.MinBlock)
	}
	if df := ss.Flags&FlagSendDF != 0; df != structured {
		t.Errorf("flags %#x", ss.Flags)
	}
	if p := ss.Flags&FlagBlockStatusPayload != 0; p != (extended && contexts != nil) {
		t.Errorf("flags %#x", ss.Flags)
	}
	if !cc.Old && (cs.Export.Description != "a disk" || !cs.BlockSizes || cs.Export.PrefBlock != 4096 || cs.MaxPayload != 1<<20) {
		t.Errorf("client: %+v", cs)
	}
}

func TestHandshakeInfo(t *testing.T) {
	client, server := unixPair(t)
	cs, _, cerr, serr := shake(t, client, server, ClientConfig{Export: "", Mode: ModeInfo, WantExtended: true}, ServerConfig{})
	if cerr != nil || !errors.Is(serr, ErrAborted) {
		t.Fatalf("client %v, server %v", cerr, serr)
	}
	want := testDisks[0]
	want.Handle, want.Flags = nil, allFlags&^FlagBlockStatusPayload // no contexts are selected
	if d := cmp.Diff(want, cs.Export); d != "" {
		t.Error(d)
	}
	if cs.Name != "" || !cs.Extended {
		t.Errorf("session %+v", cs)
	}
}

func TestHandshakeList(t *testing.T) {
	client, server := unixPair(t)
	cc := ClientConfig{Mode: ModeList, TLS: TLSOptional, StartTLS: startClientTLS(clientTLSConfig())}
	cs, _, cerr, serr := shake(t, client, server, cc, ServerConfig{})
	if cerr != nil || !errors.Is(serr, ErrAborted) {
		t.Fatalf("client %v, server %v", cerr, serr)
	}
	if d := cmp.Diff([]ExportInfo{{Name: "disk", Description: "a disk"}, {Name: "ro"}}, cs.Exports); d != "" {
		t.Error(d)
	}
}

// What the client cannot have ends in an error that says what to do, and the
// client leaves as it should.
func TestHandshakeRefused(t *testing.T) {
	tlsOn := ServerConfig{TLS: TLSRequired, StartTLS: serverTLS}
	for _, tt := range []struct {
		name string
		cc   ClientConfig
		sc   ServerConfig
		rep  Rep
		text string
	}{
		{"no such export", ClientConfig{Export: "nil"}, ServerConfig{}, RepErrUnknown, "list the server's exports"},
		{"no such export, with contexts", ClientConfig{Export: "nil", WantStructured: true, Contexts: []string{ContextAllocation}}, ServerConfig{}, RepErrUnknown, "list"},
		{"info of no such export", ClientConfig{Export: "nil", Mode: ModeInfo}, ServerConfig{}, RepErrUnknown, "list"},
		{"server requires TLS", ClientConfig{Export: "disk"}, tlsOn, RepErrTLSReqd, "nbds://"},
		{"server requires TLS for options", ClientConfig{Export: "disk", WantExtended: true}, tlsOn, RepErrTLSReqd, "nbds://"},
		{"client requires TLS", ClientConfig{TLS: TLSRequired, StartTLS: plainTLS}, ServerConfig{}, RepErrPolicy, "TLS is required"},
		{"block sizes demanded", ClientConfig{Export: "disk", NoBlockSize: true}, ServerConfig{RequireBlockSize: true}, RepErrBlockSizeReqd, "keep to them"},
		{"list forbidden", ClientConfig{Mode: ModeList}, ServerConfig{NoList: true}, RepErrPolicy, "by name"},
		{"shutting down", ClientConfig{WantStructured: true}, ServerConfig{Shutdown: func() bool { return true }}, RepErrShutdown, "later"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			client, server := unixPair(t)
			_, _, cerr, serr := shake(t, client, server, tt.cc, tt.sc)
			var oe *OptionError
			if !errors.As(cerr, &oe) || oe.Reply != tt.rep || !strings.Contains(cerr.Error(), tt.text) {
				t.Errorf("client: %v", cerr)
			}
			if !errors.Is(serr, ErrAborted) {
				t.Errorf("server: %v", serr)
			}
		})
	}
}

func TestHandshakeExportNameRefused(t *testing.T) {
	client, server := unixPair(t)
	_, _, cerr, serr := shake(t, client, server, ClientConfig{Export: "nil", Old: true}, ServerConfig{})
	if serr == nil || !errors.Is(cerr, io.EOF) || !strings.Contains(cerr.Error(), `"nil"`) {
		t.Errorf("client %v, server %v", cerr, serr)
	}
}

func TestHandshakeWrongCertificate(t *testing.T) {
	client, server := unixPair(t)
	cc := ClientConfig{Export: "disk", TLS: TLSOptional, StartTLS: startClientTLS(&tls.Config{ServerName: "localhost", RootCAs: x509.NewCertPool()})}
	_, _, cerr, serr := shake(t, client, server, cc, ServerConfig{TLS: TLSOptional, StartTLS: serverTLS})
	var unknown x509.UnknownAuthorityError
	if !errors.As(cerr, &unknown) || serr == nil {
		t.Errorf("client %v, server %v: plain text is no way out once TLS has begun", cerr, serr)
	}
}

// Messages of a server, for the scripts below.

func greeting(fl HandshakeFlags) []byte {
	b := be.AppendUint64(nil, MagicInit)
	b = be.AppendUint64(b, MagicOption)
	return be.AppendUint16(b, uint16(fl))
}

func rep(t Option, r Rep, data string) []byte {
	b := be.AppendUint64(nil, MagicOptionReply)
	b = be.AppendUint32(b, uint32(t))
	b = be.AppendUint32(b, uint32(r))
	b = be.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}

func infoExport(size uint64, fl TransmissionFlags) []byte {
	return rep(OptGo, RepInfo, "\x00\x00"+string(be.AppendUint16(be.AppendUint64(nil, size), uint16(fl))))
}

func infoSizes(minimum, preferred, maximum uint32) []byte {
	return rep(OptGo, RepInfo, "\x00\x03"+string(be.AppendUint32(be.AppendUint32(be.AppendUint32(nil, minimum), preferred), maximum)))
}

const bothHandshakeFlags = FlagFixedNewstyle | FlagNoZeroes

// meet runs a client against the given bytes.
func meet(cc ClientConfig, in ...[]byte) (*ClientSession, []byte, error) {
	s := &script{in: bytes.NewReader(bytes.Join(in, nil))}
	cs, err := ClientHandshake(s, cc)
	return cs, s.out.Bytes(), err
}

// Servers that break the protocol.
func TestClientDistrusts(t *testing.T) {
	hello := greeting(bothHandshakeFlags)
	good := infoExport(4096, FlagHasFlags)
	ack := rep(OptGo, RepAck, "")
	giant := rep(OptGo, RepInfo, "")
	be.PutUint32(giant[16:], 1<<32-1)
	badMagic := bytes.Clone(ack)
	badMagic[0]++
	extAck, strAck, metaAck := rep(OptExtendedHeaders, RepAck, ""), rep(OptStructuredReply, RepAck, ""), rep(OptSetMetaContext, RepAck, "")
	meta := func(id byte, name string) []byte {
		return rep(OptSetMetaContext, RepMetaContext, string([]byte{0, 0, 0, id})+name)
	}
	withMeta := ClientConfig{WantStructured: true, Contexts: []string{"a:b", "c:d"}}
	list := ClientConfig{Mode: ModeList}
	for _, tt := range []struct {
		name string
		cc   ClientConfig
		in   [][]byte
		text string
	}{
		{"no NBD server", ClientConfig{}, [][]byte{[]byte("HTTP/1.1 400 Bad Request\r\n\r\n")}, "no NBD server"},
		{"wrong second magic number", ClientConfig{}, [][]byte{hello[:8], hello[:8]}, "out of step"},
		{"reply to another option", ClientConfig{}, [][]byte{hello, rep(OptInfo, RepAck, "")}, "replies to INFO"},
		{"wrong magic number of a reply", ClientConfig{}, [][]byte{hello, badMagic}, "out of step"},
		{"giant reply", ClientConfig{}, [][]byte{hello, giant}, "4294967295"},
		{"reply one past the limit", ClientConfig{}, [][]byte{hello, rep(OptGo, RepErrUnknown, strings.Repeat("x", MaxOptionReply+1))}, "8197"},
		{"flood of replies", ClientConfig{}, [][]byte{hello, bytes.Repeat(good, MaxOptionReplies+1)}, "4096 replies"},
		{"success without size", ClientConfig{}, [][]byte{hello, ack}, "without the size"},
		{"success with data", ClientConfig{}, [][]byte{hello, good, rep(OptGo, RepAck, "x")}, "does not belong"},
		{"another kind of reply", ClientConfig{}, [][]byte{hello, rep(OptGo, RepServer, "\x00\x00\x00\x00")}, "does not belong"},
		{"unknown kind of reply", ClientConfig{}, [][]byte{hello, rep(OptGo, 77, "")}, "does not belong"},
		{"information without type", ClientConfig{}, [][]byte{hello, rep(OptGo, RepInfo, "x")}, "does not belong"},

		{"size of another length", ClientConfig{}, [][]byte{hello, rep(OptGo, RepInfo, "\x00\x00123456789")}, "10 bytes"},
		{"too large", ClientConfig{}, [][]byte{hello, infoExport(1<<63, FlagHasFlags), ack}, "9223372036854775807"},
		{"no flags", ClientConfig{}, [][]byte{hello, infoExport(4096, FlagReadOnly), ack}, "HAS_FLAGS"},
		{"name with NUL", ClientConfig{}, [][]byte{hello, rep(OptGo, RepInfo, "\x00\x01a\x00")}, "NUL"},
		{"name too long", ClientConfig{}, [][]byte{hello, rep(OptGo, RepInfo, "\x00\x01"+strings.Repeat("x", MaxString+1))}, "4097"},
		{"description not UTF-8", ClientConfig{}, [][]byte{hello, rep(OptGo, RepInfo, "\x00\x02\xff")}, "UTF-8"},
		{"block sizes of another length", ClientConfig{}, [][]byte{hello, rep(OptGo, RepInfo, "\x00\x0312345678901")}, "12 bytes"},
		{"minimum of 0", ClientConfig{}, [][]byte{hello, good, infoSizes(0, 4096, 1<<20), ack}, "is 0"},
		{"minimum no power of two", ClientConfig{}, [][]byte{hello, good, infoSizes(3, 4096, 1<<20), ack}, "power of two"},
		{"minimum too large", ClientConfig{}, [][]byte{hello, good, infoSizes(128<<10, 128<<10, 1<<20), ack}, "minimum"},
		{"preferred below minimum", ClientConfig{}, [][]byte{hello, good, infoSizes(4096, 512, 1<<20), ack}, "preferred"},
		{"maximum below preferred", ClientConfig{}, [][]byte{hello, good, infoSizes(1, 4096, 1024), ack}, "maximum"},
		{"STRUCTURED_REPLY answered with information", withMeta, [][]byte{hello, rep(OptStructuredReply, RepInfo, "\x00\x00")}, "does not belong"},
		{"context not asked for", withMeta, [][]byte{hello, strAck, meta(0, "e:f"), metaAck}, "not asked for"},
		{"context twice", withMeta, [][]byte{hello, strAck, meta(0, "a:b"), meta(1, "a:b"), metaAck}, "twice"},
		{"id twice", withMeta, [][]byte{hello, strAck, meta(0, "a:b"), meta(0, "c:d"), metaAck}, "twice"},
		{"context without id", withMeta, [][]byte{hello, strAck, rep(OptSetMetaContext, RepMetaContext, "abc")}, "does not belong"},
		{"flood of contexts", ClientConfig{WantStructured: true, Mode: ModeInfo},
			[][]byte{hello, strAck, bytes.Repeat(rep(OptListMetaContext, RepMetaContext, "\x00\x00\x00\x00a:b"), MaxContexts+1)}, "256 contexts"},
		{"no GO in spite of extended headers", ClientConfig{WantExtended: true}, [][]byte{hello, extAck, rep(OptGo, RepErrUnsup, "")}, "does not know GO"},
		{"name longer than its reply", list, [][]byte{hello, rep(OptList, RepServer, "\x00\x00\x00\x02x")}, "does not belong"},
		{"giant name in a list", list, [][]byte{hello, rep(OptList, RepServer, "\xff\xff\xff\xffx")}, "does not belong"},
		{"list of bad names", list, [][]byte{hello, rep(OptList, RepServer, "\x00\x00\x00\x01\x00")}, "NUL"},
		{"flood of exports", list, [][]byte{hello, bytes.Repeat(rep(OptList, RepServer, "\x00\x00\x00\x01x"), MaxOptionReplies+1)}, "4096 replies"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cs, _, err := meet(tt.cc, tt.in...)
			if cs != nil || !errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), tt.text) {
				t.Fatalf("session %+v, error %v", cs, err)
			}
		})
	}
}

func TestClientLimits(t *testing.T) {
	hello := greeting(bothHandshakeFlags)
	in := [][]byte{hello, bytes.Repeat(rep(OptList, RepServer, "\x00\x00\x00\x01x"), MaxOptionReplies), rep(OptList, RepAck, "")}
	cs, _, err := meet(ClientConfig{Mode: ModeList}, in...)
	if err != nil || len(cs.Exports) != MaxOptionReplies {
		t.Errorf("exports at the limit: %v", err)
	}
	many := make([]string, MaxMetaQueries+1)
	for _, cc := range []ClientConfig{{Export: "\x00"}, {Export: strings.Repeat("x", MaxString+1)}, {Contexts: many}, {Contexts: []string{"\xff"}}, {TLS: TLSOptional}} {
		if _, out, err := meet(cc, hello); err == nil || len(out) != 0 {
			t.Errorf("%.60v: sent % x, error %v", cc, out, err)
		}
	}
}

func TestClientOldstyle(t *testing.T) {
	b := be.AppendUint64(be.AppendUint64(nil, MagicInit), MagicOldstyle)
	_, _, err := meet(ClientConfig{}, append(b, make([]byte, 136)...))
	if !errors.Is(err, ErrOldstyle) {
		t.Error(err)
	}
}

// Servers that know less, and what becomes of it.
func TestClientFallsBack(t *testing.T) {
	sizeAndFlags := "\x00\x00\x00\x00\x00\x00\x10\x00\x00\x01"
	zeroes := strings.Repeat("\x00", 124)
	unsup := func(o Option) []byte { return rep(o, RepErrUnsup, "what?") }
	want := ClientConfig{Export: "x", WantStructured: true, WantExtended: true, Contexts: []string{"a:b"}}
	fixed := greeting(bothHandshakeFlags)
	for _, tt := range []struct {
		name     string
		cc       ClientConfig
		in       [][]byte
		flags    ClientFlags
		opts     []Option
		contexts int
	}{
		{"newstyle, not fixed", want, [][]byte{greeting(0), []byte(sizeAndFlags + zeroes)}, 0, []Option{OptExportName}, 0},
		{"newstyle, not fixed, no zeroes", want, [][]byte{greeting(FlagNoZeroes), []byte(sizeAndFlags)}, FlagCNoZeroes, []Option{OptExportName}, 0},
		{"EXPORT_NAME only", want, [][]byte{fixed, unsup(OptExtendedHeaders), unsup(OptStructuredReply), unsup(OptGo), []byte(sizeAndFlags)}, bothFlags,
			[]Option{OptExtendedHeaders, OptStructuredReply, OptGo, OptExportName}, 0},
		{"EXPORT_NAME with zeroes", want, [][]byte{greeting(FlagFixedNewstyle), unsup(OptExtendedHeaders), unsup(OptStructuredReply), unsup(OptGo), []byte(sizeAndFlags + zeroes)},
			FlagCFixedNewstyle, []Option{OptExtendedHeaders, OptStructuredReply, OptGo, OptExportName}, 0},
		{"no extended headers", want, [][]byte{fixed, unsup(OptExtendedHeaders), rep(OptStructuredReply, RepAck, ""), rep(OptSetMetaContext, RepMetaContext, "\x00\x00\x00\x07a:b"),
			rep(OptSetMetaContext, RepAck, ""), infoExport(4096, FlagHasFlags), rep(OptGo, RepAck, "")}, bothFlags,
			[]Option{OptExtendedHeaders, OptStructuredReply, OptSetMetaContext, OptGo}, 1},
		{"contexts refused after one", want, [][]byte{fixed, rep(OptExtendedHeaders, RepAck, ""), rep(OptSetMetaContext, RepMetaContext, "\x00\x00\x00\x07a:b"),
			rep(OptSetMetaContext, RepErrInvalid, ""), infoExport(4096, FlagHasFlags), rep(OptGo, RepAck, "")}, bothFlags,
			[]Option{OptExtendedHeaders, OptSetMetaContext, OptGo}, 0},
		{"unknown handshake flags and information", ClientConfig{Export: "x"}, [][]byte{greeting(0xffff), rep(OptGo, RepInfo, "\x00\x63?"), infoExport(4096, 0xffff), rep(OptGo, RepAck, "")},
			bothFlags, []Option{OptGo}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cs, out, err := meet(tt.cc, tt.in...)
			if err != nil {
				t.Fatal(err)
			}
			if fl := ClientFlags(be.Uint32(out)); fl != tt.flags {
				t.Errorf("client flags %d, want %d", fl, tt.flags)
			}
			var opts []Option
			for b := out[4:]; len(b) > 0; b = b[16+be.Uint32(b[12:]):] {
				opts = append(opts, Option(be.Uint32(b[8:])))
			}
			if d := cmp.Diff(tt.opts, opts); d != "" {
				t.Error(d)
			}
			if cs.Export.Size != 4096 || cs.Export.Name != "x" || len(cs.Contexts) != tt.contexts || cs.BlockSizes {
				t.Errorf("session %+v", cs)
			}
			if cs.Flags&(FlagSendDF|FlagBlockStatusPayload) != 0 {
				t.Errorf("flags %#x, which were not negotiated", cs.Flags)
			}
		})
	}
}

// A server that does not know fixed newstyle cannot do what needs options.
func TestClientNotFixed(t *testing.T) {
	for _, cc := range []ClientConfig{{TLS: TLSRequired, StartTLS: plainTLS}, {Mode: ModeInfo}, {Mode: ModeList}} {
		if _, _, err := meet(cc, greeting(0)); err == nil || !strings.Contains(err.Error(), "unfixed newstyle") {
			t.Errorf("%+v: %v", cc, err)
		}
	}
}

// Each prefix of what a good server says ends in an error.
func TestClientTruncated(t *testing.T) {
	whole := bytes.Join([][]byte{greeting(bothHandshakeFlags), rep(OptExtendedHeaders, RepAck, ""), rep(OptSetMetaContext, RepMetaContext, "\x00\x00\x00\x00a:b"),
		rep(OptSetMetaContext, RepAck, ""), infoExport(4096, FlagHasFlags), infoSizes(1, 4096, 1<<20), rep(OptGo, RepInfo, "\x00\x02text"), rep(OptGo, RepAck, "")}, nil)
	cc := ClientConfig{WantExtended: true, Contexts: []string{"a:b"}}
	for i := range whole {
		if _, _, err := meet(cc, whole[:i]); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("after %d bytes: %v", i, err)
		}
	}
	s := &script{in: bytes.NewReader(append(whole, "more"...))}
	if _, err := ClientHandshake(s, cc); err != nil {
		t.Fatal(err)
	}
	if s.in.Len() != 4 {
		t.Errorf("%d bytes are left of those after the handshake, want 4", s.in.Len())
	}
}
