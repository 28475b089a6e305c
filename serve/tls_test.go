package serve

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/internal/testutil"
	"github.com/platter-storage/platter/serve/config"
)

// expired writes a certificate that ended yesterday, with its key.
func expired(t *testing.T, dir string) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().AddDate(0, 0, -9), NotAfter: time.Now().AddDate(0, 0, -1)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "old.pem"), filepath.Join(dir, "old-key.pem")
	for name, b := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

func TestBadCertificates(t *testing.T) {
	dir := testutil.Certs(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	oldCert, oldKey := expired(t, dir)
	for _, c := range []struct {
		name string
		tls  config.TLS
		want string
	}{
		{"no certificate", config.TLS{Cert: at("none.pem"), Key: at("server-key.pem")}, "tls-cert: " + at("none.pem") + ": it does not exist: check the path"},
		{"no key", config.TLS{Cert: at("server-cert.pem"), Key: at("none.pem")}, "tls-key: " + at("none.pem") + ": it does not exist"},
		{"another's key", config.TLS{Cert: at("server-cert.pem"), Key: at("client-key.pem")}, "both must be PEM and belong together"},
		{"swapped", config.TLS{Cert: at("server-key.pem"), Key: at("server-cert.pem")}, "both must be PEM and belong together"},
		{"expired", config.TLS{Cert: oldCert, Key: oldKey}, "the certificate is valid from "},
		{"no authority", config.TLS{Cert: at("server-cert.pem"), Key: at("server-key.pem"), VerifyClient: true, CA: at("none.pem")}, "tls-ca: " + at("none.pem") + ": it does not exist"},
		{"authority without certificate", config.TLS{Cert: at("server-cert.pem"), Key: at("server-key.pem"), VerifyClient: true, CA: at("server-key.pem")}, "there is no certificate in it"},
	} {
		c.tls.Mode = config.TLSRequired
		if _, err := loadCertificates(c.tls); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	good, err := loadCertificates(config.TLS{Mode: config.TLSOptional, Cert: at("server-cert.pem"), Key: at("server-key.pem"), VerifyClient: true, CA: at("ca-cert.pem")})
	if err != nil || len(good.Certificates) != 1 || good.ClientAuth != tls.RequireAnyClientCert || good.VerifyConnection == nil || good.ClientCAs != nil {
		t.Errorf("good certificates: %v", err)
	}
	if c, err := loadCertificates(config.TLS{Cert: "none"}); c != nil || err != nil {
		t.Errorf("without TLS: %v, %v", c, err)
	}
}

// TestCertificatesAreReadWithinBounds: at most so much, also of what has no end;
// and from a FIFO, which a shell makes of a command's output.
func TestCertificatesAreReadWithinBounds(t *testing.T) {
	dir := testutil.Certs(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	good := config.TLS{Mode: config.TLSRequired, Cert: at("server-cert.pem"), Key: at("server-key.pem"), VerifyClient: true, CA: at("ca-cert.pem")}
	pad := func(n int) string {
		text, err := os.ReadFile(good.Cert)
		if err != nil {
			t.Fatal(err)
		}
		path := at("padded.pem")
		if err := os.WriteFile(path, append(text, strings.Repeat("\n", n-len(text))...), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	full := good
	full.Cert = pad(maxPEM)
	if _, err := loadCertificates(full); err != nil {
		t.Errorf("as long as it may be: %v", err)
	}
	pad(maxPEM + 1)
	for setting, long := range map[string]func(*config.TLS) *string{
		"tls-cert": func(c *config.TLS) *string { return &c.Cert },
		"tls-key":  func(c *config.TLS) *string { return &c.Key },
		"tls-ca":   func(c *config.TLS) *string { return &c.CA },
	} {
		for _, path := range []string{"/dev/zero", at("padded.pem")} {
			c := good
			*long(&c) = path
			if _, err := loadCertificates(c); err == nil || !strings.Contains(err.Error(), setting+": "+path+": has more than 1048576 bytes") {
				t.Errorf("%s: %v", setting, err)
			}
		}
	}
	fromPipe := good
	fromPipe.Cert = at("fifo")
	if err := unix.Mkfifo(fromPipe.Cert, 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(good.Cert)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		if err := os.WriteFile(fromPipe.Cert, text, 0); err != nil {
			t.Error(err)
		}
	}()
	if _, err := loadCertificates(fromPipe); err != nil {
		t.Errorf("from a FIFO: %v", err)
	}
}
