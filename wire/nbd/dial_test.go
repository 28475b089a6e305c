package nbd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// listen serves m on l until the test ends.
func listen(t *testing.T, l net.Listener, m *memServer, sc ServerConfig) {
	t.Helper()
	sc.Exports = disks{{Name: "mem", Size: uint64(len(m.data)), Flags: allFlags, Contexts: []string{ContextAllocation}}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				bounded(t, conn)
				if s, err := ServerHandshake(conn, &sc); err == nil {
					_ = m.serve(s) // ends as the client leaves
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
}

func listener(t *testing.T, network, address string) net.Listener {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// writeServerCA puts what vouches for the server into a folder.
func writeServerCA(t *testing.T, dir string) {
	t.Helper()
	cert, _ := certificate()
	b := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]})
	if err := os.WriteFile(filepath.Join(dir, "ca-cert.pem"), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestDial(t *testing.T) {
	dir := t.TempDir()
	writeServerCA(t, dir)
	plain, secure := ServerConfig{}, ServerConfig{TLS: TLSRequired, StartTLS: serverTLS}
	tcp, tcps := listener(t, "tcp", "127.0.0.1:0"), listener(t, "tcp", "127.0.0.1:0")
	unix, unixs := listener(t, "unix", filepath.Join(dir, "plain")), listener(t, "unix", filepath.Join(dir, "secure"))
	for l, sc := range map[net.Listener]ServerConfig{tcp: plain, tcps: secure, unix: plain, unixs: secure} {
		listen(t, l, &memServer{data: make([]byte, 1<<20)}, sc)
	}
	ca := "&tls-certificates=" + url.QueryEscape(dir)
	sock := func(l net.Listener) string { return "?socket=" + url.QueryEscape(l.Addr().String()) }
	withTLS, optional := Best, Best
	withTLS.TLSConfig = clientTLSConfig()
	optional.TLSConfig, optional.Handshake.TLS = clientTLSConfig(), TLSOptional
	for _, tt := range []struct {
		uri string
		cfg DialConfig
		tls bool
	}{
		{"nbd://" + tcp.Addr().String() + "/mem", Best, false},
		{"nbd+unix:///mem" + sock(unix), Best, false},
		{"nbd+unix:///" + sock(unix), DialConfig{}, false},
		{"nbds://" + tcps.Addr().String() + "/mem", withTLS, true},
		{"nbds+unix:///mem" + sock(unixs), withTLS, true},
		{"nbds+unix:///mem" + sock(unixs) + ca, Best, true},
		{"nbds://" + tcps.Addr().String() + "/mem?tls-hostname=localhost" + ca, Best, true},
		{"nbds://" + tcps.Addr().String() + "/mem?tls-verify-peer=0", Best, true},
		{"nbd+unix:///mem" + sock(unix), optional, false},
		{"nbd+unix:///mem" + sock(unixs), optional, true},
	} {
		c, err := Dial(t.Context(), tt.uri, tt.cfg)
		if err != nil {
			t.Error(err)
			continue
		}
		if _, is := c.Session().Conn.(*tls.Conn); is != tt.tls || c.Session().TLS != tt.tls || c.Session().Extended != tt.cfg.Handshake.WantExtended {
			t.Errorf("%s: session %+v", tt.uri, c.Session())
		}
		if err := errors.Join(c.Pwrite([]byte("x"), 0, 0), c.Pread(make([]byte, 1<<20), 0, 0), c.Disconnect()); err != nil {
			t.Errorf("%s: %v", tt.uri, err)
		}
	}
	for uri, text := range map[string]string{
		"nbd+unix:///mem" + sock(unixs):                                   "nbds://",
		"nbds+unix:///mem" + sock(unix):                                   "TLS is required",
		"nbds+unix:///mem" + sock(unixs):                                  "certificate",
		"nbds://" + tcps.Addr().String() + "/mem?tls-hostname=other" + ca: "certificate",
		"nbds+unix:///mem" + sock(unixs) + "&tls-type=psk":                "not supported",
		"nbds+unix:///mem" + sock(unixs) + "&tls-certificates=/none":      "ca-cert.pem",
		"nbd+unix:///none" + sock(unix):                                   "ERR_UNKNOWN",
		"nbd+unix:///mem?socket=" + dir + "/none":                         "no such file",
		"nbd://h/x?y=z": "not known",
	} {
		if _, err := Dial(t.Context(), uri, Best); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %q", uri, err, text)
		}
	}
}

func TestQuery(t *testing.T) {
	l := listener(t, "unix", filepath.Join(t.TempDir(), "s"))
	listen(t, l, &memServer{data: make([]byte, 4096)}, ServerConfig{})
	uri := "nbd+unix:///mem?socket=" + url.QueryEscape(l.Addr().String())
	cfg := Best
	if _, err := Query(t.Context(), uri, cfg); err == nil {
		t.Error("a query that would use the export is accepted")
	}
	cfg.Handshake.Mode = ModeInfo
	s, err := Query(t.Context(), uri, cfg)
	if err != nil || s.Export.Size != 4096 || len(s.Export.Contexts) != 1 {
		t.Errorf("info: %+v, %v", s, err)
	}
	cfg.Handshake.Mode = ModeList
	s, err = Query(t.Context(), uri, cfg)
	if err != nil || len(s.Exports) != 1 || s.Exports[0].Name != "mem" {
		t.Errorf("list: %+v, %v", s, err)
	}
}

// A server that says nothing must not hold the caller for longer than it wants.
func TestDialSilentServer(t *testing.T) {
	l := listener(t, "unix", filepath.Join(t.TempDir(), "s"))
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := Dial(ctx, "nbd+unix:///?socket="+url.QueryEscape(l.Addr().String()), Best)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestTLSConfig(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ca-cert.pem"), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (URI{TLSCertificates: dir}).tlsConfig(nil); err == nil || !strings.Contains(err.Error(), "PEM") {
		t.Error(err)
	}
	for _, tt := range []struct {
		u    URI
		base *tls.Config
		name string
	}{
		{URI{Host: "h"}, nil, "h"},
		{URI{Host: "h", TLSHostname: "x"}, &tls.Config{ServerName: "y"}, "x"},
		{URI{Host: "h"}, &tls.Config{ServerName: "y"}, "y"},
		{URI{Socket: "s"}, nil, "localhost"},
	} {
		cfg, err := tt.u.tlsConfig(tt.base)
		if err != nil || cfg.ServerName != tt.name || cfg.MinVersion != tls.VersionTLS12 || cfg.InsecureSkipVerify {
			t.Errorf("%+v: %+v, %v", tt.u, cfg, err)
		}
	}
	pool := x509.NewCertPool()
	base := &tls.Config{RootCAs: pool}
	if cfg, err := (URI{TLSNoVerify: true}).tlsConfig(base); err != nil || !cfg.InsecureSkipVerify || base.InsecureSkipVerify || cfg.RootCAs != pool {
		t.Error("the caller's configuration is changed, or not used")
	}
}
