package nbd_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/platter-storage/platter/wire/nbd"
)

// Other people's servers. scripts/deps.sh installs them.

const diskSize = 64 << 20

// serve starts a server in the foreground and ends it, by its id, with the
// test. It is ready once its socket takes connections.
func serve(t *testing.T, socket, name string, args ...string) {
	t.Helper()
	var output bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: scripts/deps.sh installs it", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it is killed in the end
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("%s: %s", name, output.Bytes())
		}
	})
	if !await(socket, ended) {
		t.Fatalf("%s ended early, or takes no connections after a minute: %s", name, output.Bytes())
	}
}

// await waits for a server to take connections, or to end.
func await(socket string, ended <-chan struct{}) bool {
	for range 6000 {
		if conn, err := net.Dial("unix", socket); err == nil {
			conn.Close()
			return true
		}
		select {
		case <-ended:
			return false
		case <-time.After(10 * time.Millisecond):
		}
	}
	return false
}

// daemon starts a server that detaches itself and writes its id to a file,
// named last among the arguments, and ends it by that id with the test.
func daemon(t *testing.T, socket, pidFile, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, append(args, pidFile)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s: scripts/deps.sh installs it", err, out)
	}
	var pid int
	for range 6000 {
		b, _ := os.ReadFile(pidFile)
		if _, err := fmt.Sscanf(string(b), "%d\n", &pid); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if pid == 0 {
		t.Fatalf("%s wrote no id to %s within a minute", name, pidFile)
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Signal(syscall.SIGTERM)
		for range 6000 {
			if p.Signal(syscall.Signal(0)) != nil { // it is gone
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		_ = p.Kill()
		t.Errorf("%s did not end within a minute of being asked", name)
	})
	if !await(socket, nil) {
		t.Fatalf("%s takes no connections after a minute", name)
	}
}

// image is a sparse file with data in its first MiB.
func image(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.img")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(diskSize), writeAt(f, bytes.Repeat([]byte{7}, 1<<20)), f.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

func writeAt(f *os.File, b []byte) error {
	_, err := f.WriteAt(b, 0)
	return err
}

func uriOf(socket, export string) string {
	return nbd.URI{Socket: socket, Export: export}.String()
}

// start starts one of the servers and gives the URI of its disk.
var servers = map[string]func(t *testing.T) (uri string){
	"qemu-nbd": func(t *testing.T) string {
		socket := filepath.Join(t.TempDir(), "s")
		serve(t, socket, "qemu-nbd", "-k", socket, "-x", "disk", "-D", "a disk", "-f", "raw", "-t", "-e", "8", "--discard=unmap", image(t))
		return uriOf(socket, "disk")
	},
	"nbdkit": func(t *testing.T) string {
		socket := filepath.Join(t.TempDir(), "s")
		serve(t, socket, "nbdkit", "-f", "-U", socket, "-e", "disk", "memory", "64M")
		return uriOf(socket, "disk")
	},
	"nbdkit without structured replies": func(t *testing.T) string {
		socket := filepath.Join(t.TempDir(), "s")
		serve(t, socket, "nbdkit", "-f", "--no-sr", "-U", socket, "memory", "64M")
		return uriOf(socket, "")
	},
	"nbdkit with EXPORT_NAME only": func(t *testing.T) string {
		socket := filepath.Join(t.TempDir(), "s")
		serve(t, socket, "nbdkit", "-f", "--mask-handshake=0", "-U", socket, "memory", "64M")
		return uriOf(socket, "")
	},
	"nbd-server": func(t *testing.T) string {
		dir := t.TempDir()
		socket, config := filepath.Join(dir, "s"), filepath.Join(dir, "config")
		text := fmt.Sprintf("[generic]\nunixsock = %s\nallowlist = true\n"+
			"[disk]\nexportname = %s\nflush = true\nfua = true\ntrim = true\n", socket, image(t))
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		daemon(t, socket, filepath.Join(dir, "pid"), "nbd-server", "-C", config, "-p")
		return uriOf(socket, "disk")
	},
}

// forms are what a client may ask for.
var forms = map[string]nbd.DialConfig{
	"best":       nbd.Best,
	"structured": {Handshake: nbd.ClientConfig{WantStructured: true, Contexts: []string{nbd.ContextAllocation}}},
	"simple":     {},
	"old":        {Handshake: nbd.ClientConfig{Old: true}},
	"careless":   {Handshake: nbd.ClientConfig{WantStructured: true, NoBlockSize: true}},
}

func TestInteropServers(t *testing.T) {
	for name, start := range servers {
		t.Run(name, func(t *testing.T) {
			uri := start(t)
			for form, cfg := range forms {
				t.Run(form, func(t *testing.T) {
					c, err := nbd.Dial(t.Context(), uri, cfg)
					if err != nil {
						t.Fatal(err)
					}
					defer c.Close()
					exercise(t, c)
					if err := c.Disconnect(); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
}

// exercise uses all that the server offers.
func exercise(t *testing.T, c *nbd.Client) {
	s := c.Session()
	if c.Size() != diskSize {
		t.Errorf("size %d", c.Size())
	}
	var wg sync.WaitGroup
	for w := range uint64(16) {
		wg.Go(func() {
			for i := range uint64(8) {
				off := 8<<20 + (w*8+i)*64<<10
				data := bytes.Repeat([]byte{byte(w), byte(i)}, 1024<<(i%5)) // 2 to 32 KiB
				got := make([]byte, len(data))
				if err := errors.Join(c.Pwrite(data, off, 0), c.Pread(got, off, 0)); err != nil || !bytes.Equal(got, data) {
					t.Errorf("at %d: %v", off, err)
				}
			}
		})
	}
	wg.Wait()
	big := bytes.Repeat([]byte{5}, 16<<20)
	if err := errors.Join(c.Pwrite(big, 32<<20, 0), c.Pread(big[:8<<20], 32<<20, 0)); err != nil || big[8<<20-1] != 5 {
		t.Error(err)
	}
	offered := func(fl nbd.TransmissionFlags, f func() error) {
		if err := f(); (err == nil) != (s.Flags&fl == fl) {
			t.Errorf("flags %#x of %#x: %v", fl, s.Flags, err)
		}
	}
	p := make([]byte, 4096)
	offered(nbd.FlagSendFlush, c.Flush)
	offered(nbd.FlagSendFUA, func() error { return c.Pwrite(p, 0, nbd.CmdFlagFUA) })
	offered(nbd.FlagSendTrim, func() error { return c.Trim(8<<20, 1<<20, 0) })
	offered(nbd.FlagSendCache, func() error { return c.Cache(8<<20, 1<<20) })
	offered(nbd.FlagSendDF, func() error { return c.Pread(p, 0, nbd.CmdFlagDF) })
	if s.Flags&nbd.FlagSendWriteZeroes != 0 {
		if err := errors.Join(c.WriteZeroes(32<<20, 4096, nbd.CmdFlagNoHole), c.Pread(p, 32<<20, 0)); err != nil || p[0] != 0 {
			t.Errorf("write zeroes: %v", err)
		}
	}
	checkStatus(t, c)
}

// checkStatus walks over the disk in statuses.
func checkStatus(t *testing.T, c *nbd.Client) {
	if len(c.Session().Contexts) == 0 {
		return
	}
	var holes, data uint64
	for off := uint64(0); off < diskSize; {
		st, err := c.BlockStatus(off, diskSize-off, 0)
		if err != nil {
			t.Fatal(err)
		}
		if st[0].Context.Name != nbd.ContextAllocation {
			t.Fatalf("status %v", st)
		}
		for _, e := range st[0].Extents {
			off += e.Length
			if e.Flags&nbd.StateHole != 0 {
				holes += e.Length
			} else {
				data += e.Length
			}
		}
	}
	if holes+data != diskSize || holes < 4<<20 || data < 16<<20-64<<10 {
		t.Errorf("%d bytes of holes, %d of data", holes, data)
	}
}

// The client must have agreed on what these servers are known to have.
func TestInteropNegotiated(t *testing.T) {
	for name, want := range map[string]struct{ structured, blockSizes bool }{
		"qemu-nbd":                          {true, true},
		"nbdkit":                            {true, false},
		"nbdkit without structured replies": {false, false},
		"nbdkit with EXPORT_NAME only":      {false, false},
	} {
		c, err := nbd.Dial(t.Context(), servers[name](t), nbd.Best)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if s := c.Session(); s.Structured != want.structured || s.BlockSizes != want.blockSizes || want.structured != (len(s.Contexts) == 1) {
			t.Errorf("%s: session %+v", name, s)
		}
		if err := c.Disconnect(); err != nil {
			t.Error(err)
		}
	}
}

func TestInteropQuery(t *testing.T) {
	for name, export := range map[string]string{"qemu-nbd": "disk", "nbdkit": "", "nbd-server": "disk"} {
		uri := servers[name](t)
		cfg := nbd.Best
		cfg.Handshake.Mode = nbd.ModeList
		s, err := nbd.Query(t.Context(), uri, cfg)
		if err != nil || !slices.ContainsFunc(s.Exports, func(e nbd.ExportInfo) bool { return e.Name == export }) {
			t.Errorf("%s: exports %+v, %v", name, s, err)
		}
		cfg.Handshake.Mode = nbd.ModeInfo
		s, err = nbd.Query(t.Context(), uri, cfg)
		size := uint64(diskSize)
		if name == "nbd-server" { // it opens the disk only once it is to be used
			size = 0
		}
		if err != nil || s.Export.Size != size || s.Structured != slices.Contains(s.Export.Contexts, nbd.ContextAllocation) {
			t.Errorf("%s: info %+v, %v", name, s, err)
		}
	}
}

func TestInteropNoSuchExport(t *testing.T) {
	for _, name := range []string{"qemu-nbd", "nbd-server"} {
		u, err := nbd.ParseURI(servers[name](t))
		if err != nil {
			t.Fatal(err)
		}
		u.Export = "none"
		var refused *nbd.OptionError
		if _, err := nbd.Dial(t.Context(), u.String(), nbd.Best); !errors.As(err, &refused) || refused.Reply != nbd.RepErrUnknown {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// certificates fills a folder as GnuTLS tools like it.
func certificates(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	caKey, ca := sign(t, nil, nil, "ca")
	save(t, dir, "ca", nil, ca)
	for _, who := range []string{"server", "client"} {
		key, cert := sign(t, ca, caKey, "localhost")
		save(t, dir, who, key, cert)
	}
	return dir
}

func sign(t *testing.T, ca *x509.Certificate, caKey *ecdsa.PrivateKey, name string) (*ecdsa.PrivateKey, *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
	}
	if ca == nil {
		ca, caKey = tmpl, key
		tmpl.IsCA, tmpl.KeyUsage, tmpl.ExtKeyUsage = true, x509.KeyUsageCertSign, nil
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, ca, &key.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return key, cert
}

func save(t *testing.T, dir, who string, key *ecdsa.PrivateKey, cert *x509.Certificate) {
	t.Helper()
	write := func(name, kind string, der []byte) {
		b := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(who+"-cert.pem", "CERTIFICATE", cert.Raw)
	if key == nil {
		return
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(who+"-key.pem", "PRIVATE KEY", der)
}

// TLS with certificates on both sides, against GnuTLS.
func TestInteropTLS(t *testing.T) {
	dir := certificates(t)
	for name, args := range map[string][]string{
		"nbdkit": {"-f", "--tls=require", "--tls-verify-peer", "--tls-certificates=" + dir, "memory", "64M", "-U"},
		"qemu-nbd": {"--object", "tls-creds-x509,id=tls,endpoint=server,verify-peer=on,dir=" + dir, "--tls-creds", "tls",
			"-f", "raw", "-t", "-e", "8", "--discard=unmap", image(t), "-k"},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s")
			serve(t, socket, name, append(args, socket)...)
			uri := "nbds+unix:///?socket=" + url.QueryEscape(socket) + "&tls-certificates=" + url.QueryEscape(dir)
			c, err := nbd.Dial(t.Context(), uri, nbd.Best)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			exercise(t, c)
			if err := c.Disconnect(); err != nil {
				t.Error(err)
			}
			if _, err := nbd.Dial(t.Context(), uriOf(socket, ""), nbd.Best); err == nil || !strings.Contains(err.Error(), "nbds://") {
				t.Errorf("without TLS: %v", err)
			}
		})
	}
}
