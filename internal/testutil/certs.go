package testutil

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// KeyKind is what certificates' keys are made by.
type KeyKind string

// The kinds of keys.
const (
	ECDSA KeyKind = "ECDSA"
	RSA   KeyKind = "RSA"
)

// Certs is CertsOf with ECDSA keys.
func Certs(t testing.TB) (dir string) {
	t.Helper()
	return CertsOf(t, ECDSA)
}

// CertsOf makes a certificate authority, a server certificate for localhost and
// a client certificate in a directory, with the file names that the reference
// and libnbd look for: ca-cert.pem, server-cert.pem, server-key.pem,
// client-cert.pem, client-key.pem.
func CertsOf(t testing.TB, kind KeyKind) (dir string) {
	t.Helper()
	dir = t.TempDir()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	caKey := newKey(t, kind)
	issue(t, dir, "ca", ca, ca, caKey, caKey)
	for i, who := range []string{"server", "client"} {
		cert := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i) + 2), Subject: pkix.Name{CommonName: who},
			NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			DNSNames:    []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		}
		issue(t, dir, who, cert, ca, newKey(t, kind), caKey)
	}
	return dir
}

func newKey(t testing.TB, kind KeyKind) (key crypto.Signer) {
	t.Helper()
	var err error
	if kind == RSA {
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	} else {
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// issue signs cert by parent and writes NAME-cert.pem and NAME-key.pem.
func issue(t testing.TB, dir, name string, cert, parent *x509.Certificate, key, parentKey crypto.Signer) {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, key.Public(), parentKey)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, filepath.Join(dir, name+"-cert.pem"), "CERTIFICATE", der)
	writePEM(t, filepath.Join(dir, name+"-key.pem"), "PRIVATE KEY", keyDER)
}

func writePEM(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}
