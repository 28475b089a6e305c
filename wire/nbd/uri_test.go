package nbd

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestURI(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want URI
		out  string // in, if empty
		addr string // network and address
	}{
		// the document's table
		{"nbd://example.com/disk", URI{Host: "example.com", Export: "disk"}, "", "tcp example.com:10809"},
		{"nbd+unix:///disk?socket=sock", URI{Socket: "sock", Export: "disk"}, "", "unix sock"},
		{"nbd://example.com/", URI{Host: "example.com"}, "", "tcp example.com:10809"},
		{"nbd://example.com", URI{Host: "example.com"}, "nbd://example.com/", "tcp example.com:10809"},
		{"nbd://example.com//disk", URI{Host: "example.com", Export: "/disk"}, "", "tcp example.com:10809"},
		{"nbd://example.com/hello%20world", URI{Host: "example.com", Export: "hello world"}, "", "tcp example.com:10809"},
		{"nbd+unix:///?socket=%00/abstract", URI{Socket: "\x00/abstract"}, "nbd+unix:///?socket=%00%2Fabstract", "unix @/abstract"},

		{"nbds://example.com:1234/disk", URI{TLS: true, Host: "example.com", Port: 1234, Export: "disk"}, "", "tcp example.com:1234"},
		{"nbds+unix:///?socket=/run/s", URI{TLS: true, Socket: "/run/s"}, "nbds+unix:///?socket=%2Frun%2Fs", "unix /run/s"},
		{"nbd+tcp://h/x", URI{Host: "h", Export: "x"}, "nbd://h/x", "tcp h:10809"},
		{"nbds+tcp://h/x", URI{TLS: true, Host: "h", Export: "x"}, "nbds://h/x", "tcp h:10809"},
		{"NBD://h/x", URI{Host: "h", Export: "x"}, "nbd://h/x", "tcp h:10809"},
		{"nbd://[::1]/x", URI{Host: "::1", Export: "x"}, "", "tcp [::1]:10809"},
		{"nbd://[::1]:10810/x", URI{Host: "::1", Port: 10810, Export: "x"}, "", "tcp [::1]:10810"},
		{"nbd:///x", URI{Export: "x"}, "", "tcp :10809"},
		{"nbd:////x", URI{Export: "/x"}, "", "tcp :10809"},
		{"nbd+unix:////x?socket=s", URI{Socket: "s", Export: "/x"}, "", "unix s"},
		{"nbd+unix:///x?socket=@s", URI{Socket: "@s", Export: "x"}, "nbd+unix:///x?socket=%40s", "unix ./@s"},
		{"nbd://:99/x", URI{Port: 99, Export: "x"}, "", "tcp :99"},
		{"nbds://alice@h/x?tls-type=psk", URI{TLS: true, Host: "h", User: "alice", Export: "x", TLSType: "psk"}, "", "tcp h:10809"},
		{"nbds://h/?tls-hostname=other&tls-type=x509&tls-verify-peer=0", URI{TLS: true, Host: "h", TLSHostname: "other", TLSType: "x509", TLSNoVerify: true}, "", "tcp h:10809"},
		{"nbds://h/?tls-certificates=/etc/pki&tls-verify-peer=1", URI{TLS: true, Host: "h", TLSCertificates: "/etc/pki"}, "nbds://h/?tls-certificates=%2Fetc%2Fpki", "tcp h:10809"},
		{"nbd://h/a%2Fb%3Fc%23d%25", URI{Host: "h", Export: "a/b?c#d%"}, "nbd://h/a/b%3Fc%23d%25", "tcp h:10809"},
		{"nbd://h/caf%C3%A9", URI{Host: "h", Export: "café"}, "", "tcp h:10809"},
	} {
		u, err := ParseURI(tt.in)
		if err != nil {
			t.Error(err)
			continue
		}
		if d := cmp.Diff(tt.want, u); d != "" {
			t.Errorf("%s: %s", tt.in, d)
		}
		out := tt.out
		if out == "" {
			out = tt.in
		}
		if got := u.String(); got != out {
			t.Errorf("%s is written %s, want %s", tt.in, got, out)
		}
		if n, a := u.Address(); n+" "+a != tt.addr {
			t.Errorf("%s: address %s %s, want %s", tt.in, n, a, tt.addr)
		}
	}
}

func TestURIErrors(t *testing.T) {
	for in, text := range map[string]string{
		"http://h/x":                             "scheme",
		"/path":                                  "scheme",
		"":                                       "scheme",
		"nbd:unix:/path":                         "//",
		"nbd://h:0/x":                            "port",
		"nbd://h:65536/x":                        "port",
		"nbd://h:x/x":                            "port",
		"nbd://h/x#y":                            "fragment",
		"nbd://u:secret@h/x":                     "password",
		"nbd://h/a%00b":                          "NUL",
		"nbd://h/%ff":                            "UTF-8",
		"nbd://h/%zz":                            "escape",
		"nbd://h/" + strings.Repeat("x", 4097):   "4097",
		"nbd://h/x?socket=s":                     "nbd+unix",
		"nbd://h/x?tls-typ=x509":                 "not known",
		"nbd://h/x?tls-type=ssl":                 "anon, x509 or psk",
		"nbd://h/x?tls-verify-peer=no":           "0 or 1",
		"nbd://h/x?tls-hostname=a&tls-hostname=": "2 times",
		"nbd://h/x?a;b":                          "parameters",
		"nbd+unix:///x":                          "socket=PATH",
		"nbd+unix:///x?socket=":                  "socket=PATH",
		"nbd+unix:///x?socket=a%00":              "NUL",
		"nbd+unix://h/x?socket=s":                "host",
	} {
		if u, err := ParseURI(in); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%.40s: %+v, error %v, want %q", in, u, err, text)
		}
	}
}
