package nbd

import (
	"bytes"
	"encoding/json"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// run runs somebody else's client. scripts/deps.sh installs it.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s (scripts/deps.sh installs the tools)", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Other people's clients against this server's handshake.
func TestInteropClients(t *testing.T) {
	for name, sc := range map[string]ServerConfig{
		"all":           {},
		"no extended":   {NoExtended: true},
		"no structured": {NoStructured: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l := listener(t, "unix", filepath.Join(dir, "s"))
			m := &memServer{data: make([]byte, 4<<20)}
			listen(t, l, m, sc)
			uri := "nbd+unix:///mem?socket=" + url.QueryEscape(l.Addr().String())
			checkClients(t, m, dir, uri)
		})
	}
}

func checkClients(t *testing.T, m *memServer, dir, uri string) {
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	data := bytes.Repeat([]byte("platter "), len(m.data)/8)
	if err := os.WriteFile(in, data, 0o600); err != nil {
		t.Fatal(err)
	}
	var info struct {
		Exports []struct {
			Name string `json:"export-name"`
			Size int64  `json:"export-size"`
		} `json:"exports"`
	}
	for _, args := range [][]string{{"--json", uri}, {"--json", "--list", uri}} {
		if err := json.Unmarshal([]byte(run(t, "nbdinfo", args...)), &info); err != nil {
			t.Fatal(err)
		}
		if e := info.Exports; len(e) != 1 || e[0].Name != "mem" || e[0].Size != int64(len(m.data)) {
			t.Errorf("nbdinfo %v: %+v", args, e)
		}
	}
	run(t, "nbdcopy", in, uri)
	if !bytes.Equal(m.data, data) {
		t.Error("nbdcopy wrote something else")
	}
	run(t, "nbdcopy", uri, out)
	if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, data) {
		t.Errorf("nbdcopy read something else: %v", err)
	}
	run(t, "qemu-img", "compare", "-f", "raw", "-F", "raw", in, uri)
	run(t, "qemu-io", "-f", "raw", "-c", "write -P 9 4096 8192", "-c", "write -z 65536 65536", "-c", "discard 1M 1M", "-c", "flush", "-c", "read -P 9 4096 8192", uri)
	if m.data[4096] != 9 || m.data[65536] != 0 || m.data[1<<20] != 0 {
		t.Error("qemu-io wrote something else")
	}
	if s := run(t, "qemu-img", "info", "--output=json", uri); !strings.Contains(s, `"virtual-size": 4194304`) {
		t.Errorf("qemu-img info: %s", s)
	}
	run(t, "qemu-img", "map", "-f", "raw", uri)
}

// The same over TLS, against GnuTLS.
func TestInteropClientsTLS(t *testing.T) {
	dir := t.TempDir()
	writeServerCA(t, dir)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &memServer{data: make([]byte, 1<<20)}
	listen(t, l, m, ServerConfig{TLS: TLSRequired, StartTLS: serverTLS})
	uri := "nbds://" + l.Addr().String() + "/mem?tls-certificates=" + url.QueryEscape(dir)
	if s := run(t, "nbdinfo", "--size", uri); s != "1048576\n" {
		t.Errorf("nbdinfo: %s", s)
	}
	host, port, _ := net.SplitHostPort(l.Addr().String())
	run(t, "qemu-io", "--object", "tls-creds-x509,id=t,endpoint=client,dir="+dir, "-c", "write -P 3 0 4096", "--image-opts",
		"driver=raw,file.driver=nbd,file.host="+host+",file.port="+port+",file.export=mem,file.tls-creds=t,file.tls-hostname=localhost")
	if m.data[0] != 3 {
		t.Error("qemu-io wrote something else")
	}
	if out, err := exec.Command("nbdinfo", "nbd://"+l.Addr().String()+"/mem").CombinedOutput(); err == nil || !strings.Contains(string(out), "TLS") {
		t.Errorf("nbdinfo without TLS: %v: %s", err, out)
	}
}
