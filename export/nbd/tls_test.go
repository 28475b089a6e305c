package nbd

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/testutil"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// credentials are those of a server and of a client, from one authority.
func credentials(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	dir := testutil.Certs(t)
	pair := func(who string) tls.Certificate {
		c, err := tls.LoadX509KeyPair(filepath.Join(dir, who+"-cert.pem"), filepath.Join(dir, who+"-key.pem"))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	pem, err := os.ReadFile(filepath.Join(dir, "ca-cert.pem"))
	if err != nil {
		t.Fatal(err)
	}
	ca := x509.NewCertPool()
	ca.AppendCertsFromPEM(pem)
	server = &tls.Config{Certificates: []tls.Certificate{pair("server")}, ClientCAs: ca, MinVersion: tls.VersionTLS12}
	client = &tls.Config{Certificates: []tls.Certificate{pair("client")}, RootCAs: ca, ServerName: "localhost"}
	return server, client
}

// withTLS is cfg for a client that starts TLS.
func withTLS(cfg wire.ClientConfig, mode TLSMode, tc *tls.Config) wire.ClientConfig {
	cfg.TLS = mode
	cfg.StartTLS = func(rw io.ReadWriter) (io.ReadWriter, error) {
		c := tls.Client(rw.(net.Conn), tc)
		return c, c.Handshake()
	}
	return cfg
}

// All commands work through TLS, on disks in memory and on others, and a client
// may do without it only where it is optional.
func TestTLS(t *testing.T) {
	server, client := credentials(t)
	for _, mode := range []TLSMode{TLSOptional, TLSRequired} {
		for _, kind := range []string{"mem", "file"} {
			for _, m := range modes {
				t.Run(kind+"/"+m.name, func(t *testing.T) {
					env := blocktest.NewEnv(t)
					r := newRig(t, env, Config{TLS: server, TLSMode: mode}, Export{Child: disk(t, env, kind, 8*mib)})
					if _, err := wire.ClientHandshake(r.connect(), m.cfg); (err == nil) != (mode == TLSOptional) {
						t.Errorf("without TLS: %v", err)
					}
					c := r.dial(withTLS(m.cfg, TLSRequired, client), wire.ClientOptions{})
					waitFor(t, "status to show TLS", func() bool { l := r.Connections(); return l[len(l)-1].TLS })
					bystanderAt(t, c, 0, 2)
					if err := c.Trim(0, 65536, 0); err != nil {
						t.Error(err)
					}
					if err := c.Flush(); err != nil {
						t.Error(err)
					}
					if len(c.Session().Contexts) > 0 {
						if _, err := c.BlockStatus(0, 8*mib, 0); err != nil {
							t.Error(err)
						}
					}
					if err := c.Disconnect(); err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}

// A server that demands certificates of its clients turns others away, and says
// so in its log.
func TestTLSClientCertificates(t *testing.T) {
	server, client := credentials(t)
	server.ClientAuth = tls.RequireAndVerifyClientCert
	stranger := client.Clone()
	stranger.Certificates = nil
	env := blocktest.NewEnv(t)
	r := newRig(t, env, Config{TLS: server, TLSMode: TLSRequired}, Export{Child: disk(t, env, "mem", 8*mib)})
	if c, err := wire.ClientHandshake(r.connect(), withTLS(modes[0].cfg, TLSRequired, stranger)); err == nil {
		t.Errorf("a client without a certificate was let in: %+v", c)
	}
	waitFor(t, "the log to say so", func() bool { return bytes.Contains([]byte(r.log.String()), []byte("handshake failed")) })
	bystanderAt(t, r.dial(withTLS(modes[0].cfg, TLSRequired, client), wire.ClientOptions{}), 0, 1)
}

// TLS is refused where it is off.
func TestTLSOff(t *testing.T) {
	_, client := credentials(t)
	env := blocktest.NewEnv(t)
	off := newRig(t, env, Config{}, Export{Child: disk(t, env, "mem", mib)})
	if _, err := wire.ClientHandshake(off.connect(), withTLS(modes[0].cfg, TLSRequired, client)); err == nil {
		t.Error("TLS on a server without it")
	}
	if c, err := wire.ClientHandshake(off.connect(), withTLS(modes[0].cfg, TLSOptional, client)); err != nil || c.TLS {
		t.Errorf("a client to which TLS is optional: %v", err)
	}
}

// A client that never finishes its handshake is turned away in time.
func TestTLSStalled(t *testing.T) {
	server, client := credentials(t)
	env := blocktest.NewEnv(t)
	r := newRig(t, env, Config{TLS: server, TLSMode: TLSRequired, HandshakeTimeout: 100 * time.Millisecond}, Export{Child: disk(t, env, "mem", mib)})
	nc := r.connect()
	stuck := withTLS(modes[0].cfg, TLSRequired, client)
	stuck.StartTLS = func(rw io.ReadWriter) (io.ReadWriter, error) {
		_, err := rw.Read(make([]byte, 1)) // the server waits for us
		return nil, err
	}
	if _, err := wire.ClientHandshake(nc, stuck); err == nil {
		t.Error("a stalled handshake succeeded")
	}
	waitFor(t, "the connection to be gone", func() bool { return len(r.Connections()) == 0 })
}

// A client behind TLS that does not read does not hold up the shutdown.
func TestTLSShutdownWithClientThatDoesNotRead(t *testing.T) {
	server, client := credentials(t)
	env := blocktest.NewEnv(t)
	r := newRig(t, env, Config{TLS: server, TLSMode: TLSRequired}, Export{Child: disk(t, env, "file", 64*mib)})
	c := r.raw(withTLS(wire.ClientConfig{}, TLSRequired, client))
	for i := range uint64(8) {
		c.send(request(wire.CmdRead, 0, i, 0, 32*mib))
	}
	c.recv(1)
	shutdownWithin(t, r, 30*time.Millisecond)
}
