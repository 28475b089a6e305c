package serve

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/platter-storage/platter/serve/config"
)

// certificates are what connections are encrypted with. They can be replaced
// while the server runs: each handshake takes the newest.
type certificates struct{ now atomic.Pointer[tls.Config] }

// loadCertificates reads the files that t names; nil where there is no TLS.
func loadCertificates(t config.TLS) (*tls.Config, error) {
	if t.Mode == config.TLSOff {
		return nil, nil
	}
	cert, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, certificateError(t, err)
	}
	if now := time.Now(); now.After(cert.Leaf.NotAfter) || now.Before(cert.Leaf.NotBefore) {
		return nil, fmt.Errorf("tls-cert %s: the certificate is valid from %s to %s, not today: clients would refuse it; get a new one, or set the clock right",
			t.Cert, cert.Leaf.NotBefore.Format(time.DateOnly), cert.Leaf.NotAfter.Format(time.DateOnly))
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}}
	if t.VerifyClient {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("tls-ca: %w", err)
		}
		c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !c.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls-ca %s: there is no certificate in it: it must be PEM, with BEGIN CERTIFICATE lines", t.CA)
		}
	}
	return c, nil
}

// certificateError says which of the two files is at fault.
func certificateError(t config.TLS, err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		name := "tls-cert"
		if path.Path == t.Key && t.Key != t.Cert {
			name = "tls-key"
		}
		return fmt.Errorf("%s: %w", name, err)
	}
	return fmt.Errorf("tls-cert %s with tls-key %s: %w: both must be PEM and belong together", t.Cert, t.Key, err)
}

// server is the configuration that a server keeps: it looks up the newest one
// for each client.
func (c *certificates) server() *tls.Config {
	if c.now.Load() == nil {
		return nil
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.now.Load(), nil },
	}
}
