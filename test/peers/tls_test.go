package peers

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/platter-storage/platter/internal/testutil"
)

// freePort is a TCP port of the loopback that nobody listens on now.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// serveTLS serves a memory disk with TLS required on a loopback port.
func serveTLS(t *testing.T, certs string, extra ...string) (s *testutil.Server, port int) {
	port = freePort(t)
	args := append([]string{"mem:64M", "--listen", fmt.Sprintf("127.0.0.1:%d", port), "--tls", "required",
		"--tls-cert", filepath.Join(certs, "server-cert.pem"), "--tls-key", filepath.Join(certs, "server-key.pem")}, extra...)
	return testutil.Serve(t, args...), port
}

func TestTLSClients(t *testing.T) {
	certs := testutil.Certs(t)
	s, port := serveTLS(t, certs, "--tls-ca", filepath.Join(certs, "ca-cert.pem"), "--tls-verify-client")
	defer s.Stop(t)

	creds := "tls-creds-x509,id=tls0,endpoint=client,dir=" + certs
	disk := fmt.Sprintf("driver=nbd,host=localhost,port=%d,tls-creds=tls0", port)
	out := testutil.Run(t, "qemu-io", "--object", creds, "--image-opts", disk, "-c", "write -P 7 1000 70000", "-c", "read -P 7 1000 70000", "-c", "flush")
	if strings.Contains(out, "failed") {
		t.Errorf("qemu-io over TLS: %s", out)
	}
	uri := fmt.Sprintf("nbds://localhost:%d/?tls-certificates=%s", port, certs)
	if got := strings.TrimSpace(testutil.Run(t, "nbdinfo", "--size", uri)); got != fmt.Sprint(64<<20) {
		t.Errorf("nbdinfo over TLS says %s", got)
	}
	back := filepath.Join(t.TempDir(), "back")
	testutil.Run(t, "nbdcopy", uri, back)
}

// TestTLSRefusals: neither plain text nor a client without a certificate gets
// anywhere, and the server goes on.
func TestTLSRefusals(t *testing.T) {
	certs, other := testutil.Certs(t), testutil.Certs(t)
	s, port := serveTLS(t, certs, "--tls-ca", filepath.Join(certs, "ca-cert.pem"), "--tls-verify-client")
	defer s.Stop(t)
	if out, err := testutil.Try("nbdinfo", "--size", fmt.Sprintf("nbd://localhost:%d", port)); err == nil {
		t.Errorf("plain text was served where TLS is required: %s", out)
	}
	if out, err := testutil.Try("nbdinfo", "--size", fmt.Sprintf("nbds://localhost:%d/?tls-certificates=%s", port, other)); err == nil {
		t.Errorf("a client of another authority was served: %s", out)
	}
	good := fmt.Sprintf("nbds://localhost:%d/?tls-certificates=%s", port, certs)
	testutil.Run(t, "nbdinfo", "--size", good)
}

// TestTCP serves on IPv4 and IPv6 loopback.
func TestTCP(t *testing.T) {
	p4, p6 := freePort(t), freePort(t)
	s := testutil.Serve(t, "mem:64M", "--listen", fmt.Sprintf("127.0.0.1:%d", p4), "--listen", fmt.Sprintf("[::1]:%d", p6))
	defer s.Stop(t)
	for _, uri := range []string{fmt.Sprintf("nbd://127.0.0.1:%d", p4), fmt.Sprintf("nbd://[::1]:%d", p6)} {
		if got := strings.TrimSpace(testutil.Run(t, "nbdinfo", "--size", uri)); got != fmt.Sprint(64<<20) {
			t.Errorf("%s: nbdinfo says %s", uri, got)
		}
	}
}
