package nbd

import (
	"maps"
	"strings"
	"testing"

	"github.com/platter-storage/platter/block"
)

// driver is ours, as registered.
func driver(t testing.TB) *block.Driver {
	t.Helper()
	d, err := block.FindDriver("nbd")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestURIs(t *testing.T) {
	for uri, want := range map[string]block.Values{
		"nbd://host":      {"server.type": "inet", "server.host": "host", "export": ""},
		"nbd://[::1]:1/a": {"server.type": "inet", "server.host": "::1", "server.port": "1", "export": "a"},
		"nbds://h/x?tls-hostname=n&tls-verify-peer=0": {"server.type": "inet", "server.host": "h", "export": "x", "tls": "on", "tls-hostname": "n", "tls-verify-peer": "off"},
		"nbd+unix:///e?socket=/run/s":                 {"server.type": "unix", "server.path": "/run/s", "export": "e"},
		"nbds+unix:///?socket=/s&tls-certificates=/c": {"server.type": "unix", "server.path": "/s", "export": "", "tls": "on", "tls-certificates": "/c"},
		"nbd:h:10:exportname=a:b":                     {"server.type": "inet", "server.host": "h", "server.port": "10", "export": "a:b"},
		"nbd:[::1]:10":                                {"server.type": "inet", "server.host": "::1", "server.port": "10", "export": ""},
		"nbd:unix:/run/s:exportname=e":                {"server.type": "unix", "server.path": "/run/s", "export": "e"},
	} {
		d := block.DriverForURI(uri)
		if d == nil || d.Name != "nbd" {
			t.Errorf("%s: no driver", uri)
			continue
		}
		got, err := d.ParseURI(uri)
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%s: %v, %v, want %v", uri, got, err, want)
		}
		o, err := d.Check(got)
		if err != nil {
			t.Errorf("%s: %v", uri, err)
			continue
		}
		if want["tls-certificates"] == "" {
			if _, err := configOf(&block.OpenArgs{Options: o}); err != nil {
				t.Errorf("%s: %v", uri, err)
			}
		}
	}
	for _, uri := range []string{"nbd:", "nbd:host", "nbd:host:", "nbd:unix:", "nbd+unix:///", "nbd://u:p@h", "nbds://u@h", "nbds://h?tls-type=psk", "nbd://h?no=1"} {
		if got, err := parseURI(uri); err == nil {
			t.Errorf("%s: %v, want an error", uri, got)
		}
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "where is the server",
		"host=h,path=p":                      "not both",
		"server.type=unix,host=h":            "has a path",
		"server.type=inet,path=p":            "not both",
		"host=h,server.host=h":               "one option",
		"host=h,port=0":                      "1 to 65535",
		"host=h,port=70000":                  "1 to 65535",
		"host=h/../x":                        "NBD URI",
		"path=p,connections=17":              "0..16",
		"path=p,reconnect-delay=86401":       "0..86400",
		"path=p,open-timeout=-1":             "0..86400",
		"path=p,tls-cert=a":                  "belong together",
		"path=p,tls-ca=/no/such/file":        "no such file",
		"path=p,tls-certificates=/,tls-ca=x": "not both",
		"path=p,tls=off,tls-hostname=x":      "contradict",
		"path=p,after-loss=hope":             "choose one of",
	} {
		vals, err := block.ParseOptions(text)
		if err != nil {
			t.Fatal(err)
		}
		o, err := driver(t).Check(vals)
		if err == nil {
			_, err = configOf(&block.OpenArgs{Options: o})
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// Whatever a user or an image writes becomes options or an error.
func FuzzURI(f *testing.F) {
	for _, uri := range []string{"nbd://h:1/e", "nbd+unix:///e?socket=/s", "nbd:h:1:exportname=e", "nbd:unix:/s", "nbds://h?tls-hostname=n", "nbd:[::1]:1", "nbd::"} {
		f.Add(uri)
	}
	d, err := block.FindDriver("nbd")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		vals, err := parseURI(uri)
		if err != nil {
			return
		}
		o, err := d.Check(vals)
		if err != nil {
			t.Fatalf("%q became %v: %v", uri, vals, err)
		}
		if u, err := addressOf(o); err == nil && u.Export != vals["export"] {
			t.Fatalf("%q: export %q became %q", uri, vals["export"], u.Export)
		}
	})
}
