package serve

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
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
	cert, err := loadPair(t)
	if err != nil {
		return nil, err
	}
	if now := time.Now(); now.After(cert.Leaf.NotAfter) || now.Before(cert.Leaf.NotBefore) {
		return nil, fmt.Errorf("tls-cert %s: the certificate is valid from %s to %s, not today: clients would refuse it; get a new one, or set the clock right",
			t.Cert, cert.Leaf.NotBefore.Format(time.DateOnly), cert.Leaf.NotAfter.Format(time.DateOnly))
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}}
	if t.VerifyClient {
		pem, err := readPEM("tls-ca", t.CA)
		if err != nil {
			return nil, err
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls-ca %s: there is no certificate in it: it must be PEM, with BEGIN CERTIFICATE lines", t.CA)
		}
		verifyClients(c, pool)
	}
	return c, nil
}

// maxPEM bounds what is read of a file with certificates: a chain or a set of
// authorities has a few hundred KiB at most. The file may be a FIFO, as a shell
// makes them of a command's output.
const maxPEM = 1 << 20

// readPEM reads the file that a setting names.
func readPEM(setting, path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fileError(setting, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxPEM+1))
	switch {
	case err != nil:
		return nil, fileError(setting, err)
	case len(text) > maxPEM:
		return nil, fmt.Errorf("%s: %s: has more than %d bytes, the most that is read of certificates: check the path, and leave away what is not needed", setting, path, maxPEM)
	}
	return text, nil
}

// loadPair reads the server's certificate and its key, which may stand in one
// file.
func loadPair(t config.TLS) (cert tls.Certificate, err error) {
	chain, err := readPEM("tls-cert", t.Cert)
	if err != nil {
		return cert, err
	}
	key := chain
	if t.Key != t.Cert {
		if key, err = readPEM("tls-key", t.Key); err != nil {
			return cert, err
		}
	}
	if cert, err = tls.X509KeyPair(chain, key); err != nil {
		return cert, fmt.Errorf("tls-cert %s with tls-key %s: both must be PEM and belong together: %s", t.Cert, t.Key, strings.TrimPrefix(err.Error(), "tls: "))
	}
	return cert, nil
}

// verifyClients lets only clients in whose certificates an authority of pool
// has signed. The authorities are not named to the client (ClientCAs), and so
// not checked by crypto/tls: to a server that names them and that separates the
// signatures of certificates from those of the handshake (RFC 8446, section
// 4.2.3; Go does), GnuTLS 3.7 sends no RSA certificate, because it files
// rsa_pss_rsae_* under another kind of key. Without names it sends the one that
// it has. Resumed sessions are verified as well, against the newest authorities.
func verifyClients(c *tls.Config, pool *x509.CertPool) {
	c.ClientAuth = tls.RequireAnyClientCert
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		if len(cs.PeerCertificates) == 0 {
			return errors.New("the client has shown no certificate, and tls-verify-client asks for one")
		}
		others := x509.NewCertPool()
		for _, cert := range cs.PeerCertificates[1:] {
			others.AddCert(cert)
		}
		leaf := cs.PeerCertificates[0]
		_, err := leaf.Verify(x509.VerifyOptions{Roots: pool, Intermediates: others, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		if err != nil {
			return fmt.Errorf("the client's certificate (%s) is refused: %w; tls-ca has the authorities that are accepted", leaf.Subject, err)
		}
		return nil
	}
}

// fileError says in one line why a file that a setting names cannot be read.
func fileError(setting string, err error) error {
	var path *os.PathError
	if !errors.As(err, &path) {
		return fmt.Errorf("%s: %w", setting, err)
	}
	return fmt.Errorf("%s: %s: %w", setting, path.Path, config.ReadError(err))
}

// sameCertificate reports whether clients see the same certificate.
func sameCertificate(a, b *tls.Config) bool {
	return a != nil && b != nil && slices.EqualFunc(a.Certificates, b.Certificates, func(a, b tls.Certificate) bool {
		return slices.EqualFunc(a.Certificate, b.Certificate, bytes.Equal)
	})
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
