package nbd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"
)

// DialTimeout is how long Dial and Query take at most if their context has no
// deadline.
const DialTimeout = 30 * time.Second

// DialConfig is what Dial asks for beside the URI.
type DialConfig struct {
	// Handshake is taken as it is, except for Export, which the URI has,
	// and TLS and StartTLS: nbds requires TLS; with nbd, TLSOptional has
	// the server decide.
	Handshake ClientConfig
	// TLSConfig is the base for TLS; the URI's parameters change a copy.
	TLSConfig *tls.Config

	ClientOptions
}

// Best asks for everything that makes a client fast and well informed.
var Best = DialConfig{Handshake: ClientConfig{
	WantStructured: true, WantExtended: true, Contexts: []string{ContextAllocation},
}}

// Dial connects to the export that the URI names. ctx bounds the connecting
// and the handshake, not what comes after.
func Dial(ctx context.Context, uri string, cfg DialConfig) (*Client, error) {
	cfg.Handshake.Mode = ModeGo
	s, err := dial(ctx, uri, &cfg)
	if err != nil {
		return nil, err
	}
	c, err := NewClient(s, cfg.ClientOptions)
	if err != nil {
		_ = s.Conn.(io.Closer).Close()
		return nil, err
	}
	return c, nil
}

// Query asks a server about the export that the URI names, or for its exports:
// cfg.Handshake.Mode is ModeInfo or ModeList. The connection is closed again.
func Query(ctx context.Context, uri string, cfg DialConfig) (*ClientSession, error) {
	if cfg.Handshake.Mode == ModeGo {
		return nil, errors.New("nbd: Query needs ModeInfo or ModeList; to use an export there is Dial")
	}
	s, err := dial(ctx, uri, &cfg)
	if err != nil {
		return nil, err
	}
	_ = s.Conn.(io.Closer).Close()
	s.Conn = nil
	return s, nil
}

// dial connects and does the handshake.
func dial(ctx context.Context, uri string, cfg *DialConfig) (*ClientSession, error) {
	u, err := ParseURI(uri)
	if err != nil {
		return nil, err
	}
	hs := cfg.Handshake
	hs.Export = u.Export
	if u.TLS {
		hs.TLS = TLSRequired
	}
	if hs.TLS != TLSOff {
		tc, err := u.tlsConfig(cfg.TLSConfig)
		if err != nil {
			return nil, fmt.Errorf("%v: %w", u, err)
		}
		hs.StartTLS = startClientTLS(tc)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DialTimeout)
		defer cancel()
	}
	s, err := dialHandshake(ctx, u, hs)
	if err != nil {
		return nil, fmt.Errorf("%v: %w", u, err)
	}
	return s, nil
}

// dialHandshake gives up when ctx ends.
func dialHandshake(ctx context.Context, u URI, hs ClientConfig) (*ClientSession, error) {
	var d net.Dialer
	network, address := u.Address()
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	s, err := ClientHandshake(conn, hs)
	if !stop() && ctx.Err() != nil { // conn is closed, or about to be
		err = errors.Join(ctx.Err(), err)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return s, nil
}

// startClientTLS upgrades a net.Conn.
func startClientTLS(cfg *tls.Config) StartTLS {
	return func(rw io.ReadWriter) (io.ReadWriter, error) {
		conn := tls.Client(rw.(net.Conn), cfg)
		return conn, conn.Handshake()
	}
}

// tlsConfig is base, which may be nil, with what the URI says of TLS.
// ("Security considerations": TLS 1.2 at least)
func (u URI) tlsConfig(base *tls.Config) (*tls.Config, error) {
	if u.TLSType == "anon" || u.TLSType == "psk" {
		return nil, fmt.Errorf("tls-type %s is not supported: use certificates (x509)", u.TLSType)
	}
	cfg := &tls.Config{}
	if base != nil {
		cfg = base.Clone()
	}
	cfg.MinVersion = max(cfg.MinVersion, tls.VersionTLS12)
	switch {
	case u.TLSHostname != "":
		cfg.ServerName = u.TLSHostname
	case cfg.ServerName == "":
		cfg.ServerName = u.Host
	}
	if cfg.ServerName == "" {
		cfg.ServerName = "localhost"
	}
	cfg.InsecureSkipVerify = cfg.InsecureSkipVerify || u.TLSNoVerify
	if u.TLSCertificates == "" {
		return cfg, nil
	}
	return cfg, loadCertificates(cfg, u.TLSCertificates)
}

// loadCertificates reads the files of a folder as GnuTLS tools lay it out. The
// client's own certificate may be missing.
func loadCertificates(cfg *tls.Config, dir string) error {
	ca, err := os.ReadFile(filepath.Join(dir, "ca-cert.pem"))
	if err != nil {
		return err
	}
	cfg.RootCAs = x509.NewCertPool()
	if !cfg.RootCAs.AppendCertsFromPEM(ca) {
		return fmt.Errorf("%s holds no certificate in PEM form", filepath.Join(dir, "ca-cert.pem"))
	}
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "client-cert.pem"), filepath.Join(dir, "client-key.pem"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	cfg.Certificates = []tls.Certificate{cert}
	return nil
}
