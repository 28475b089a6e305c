package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/platter-storage/platter/block"
)

func init() {
	block.Register(&block.Driver{Name: "file", Options: []block.Option{
		{Name: "cache", Type: block.OptEnum, Enum: []string{"auto", "none", "writeback"}},
		{Name: "aio", Type: block.OptEnum, Enum: []string{"auto", "io_uring", "threads"}},
	}})
}

// build parses text as a file and puts it under flags.
func build(t *testing.T, text string, flags *Layer) (*Config, error) {
	t.Helper()
	file, err := Parse("serve.yaml", []byte(text))
	if err != nil {
		return nil, err
	}
	if flags == nil {
		flags = &Layer{}
	}
	return Build(file, flags)
}

var onlyValues = cmp.Options{
	cmpopts.IgnoreFields(Config{}, "Settings", "File"), cmpopts.IgnoreTypes(Place{}), cmpopts.IgnoreUnexported(Disk{}), cmpopts.EquateEmpty(),
}

func TestWholeFile(t *testing.T) {
	got, err := build(t, `
# everything once
listen: [auto, "unix:/run/x.sock", "0.0.0.0:10809"]
cache: none
tls: optional
tls-cert: c.pem
tls-key: k.pem
max-connections: 12
handshake-timeout: 7
buffer-memory: 128M
stats: true
disks:
  - /srv/plain.img
  - path: /srv/vm 1.img
    name: vm1
    format: raw
    cache: writeback
    read-only: yes
    create: 10G
    discard: ignore
    options:
      locking: off
    export:
      - name: first
        description: "the: first"
      - {name: again, read-only: on}
  - node:
      driver: raw
      file: {driver: mem, size: 1G}
`, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		Listen:         []Listen{{}, {Kind: ListenUnix, Path: "/run/x.sock"}, {Kind: ListenTCP, Address: "0.0.0.0:10809"}},
		TLS:            TLS{Mode: TLSOptional, Cert: "c.pem", Key: "k.pem"},
		MaxConnections: 12, HandshakeTimeout: 7 * time.Second, BufferMemory: 128 << 20, Stats: true,
		Disks: []Disk{
			{Name: "plain", Path: Text{Value: "/srv/plain.img"}, Defaults: block.Values{"cache": "none"}, Exports: []Export{{Name: "plain"}}},
			{Name: "vm1", Path: Text{Value: "/srv/vm 1.img"}, Format: "raw", ReadOnly: true, Create: 10 << 30, IgnoreDiscard: true,
				Options: block.Values{"cache": "writeback", "locking": "off"},
				Exports: []Export{{Name: "first", Description: "the: first"}, {Name: "again", ReadOnly: true}}},
			{Name: "mem", Path: Text{Value: "driver=raw,file.driver=mem,file.size=1G"}, Defaults: block.Values{"cache": "none"}, Exports: []Export{{Name: "mem"}}},
		},
	}
	if d := cmp.Diff(want, got, onlyValues); d != "" {
		t.Error(d)
	}
}

func TestFlagsOverFile(t *testing.T) {
	flags := &Layer{}
	flags.Set("listen", Text{":1", Place{Flag: "listen"}})
	flags.Set("cache", Text{"writeback", Place{Flag: "cache"}})
	flags.Set("export", Text{"name=x,read-only=on", Place{Flag: "export"}})
	flags.AddDisk("b.img")
	c, err := build(t, "listen: ':2'\ncache: none\nstats: on\ndisks: [{path: a.img, cache: none}]\n", flags)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Listen) != 1 || c.Listen[0].Address != ":1" || !c.Stats {
		t.Errorf("listen %v, stats %v: the flag replaces, the rest stays", c.Listen, c.Stats)
	}
	a, b := c.Disks[0], c.Disks[1]
	if a.Options["cache"] != "none" || b.Options["cache"] != "" || b.Defaults["cache"] != "writeback" {
		t.Errorf("cache of a %v, of b %v: a disk's own setting wins, then the flag", a.Options, b.Defaults)
	}
	if a.Exports[0].Name != "x" || !a.Exports[0].ReadOnly || b.Exports[0].Name != "b" {
		t.Errorf("exports %v and %v: the first --export is for the first disk", a.Exports, b.Exports)
	}
}

func TestNames(t *testing.T) {
	for path, want := range map[string]string{
		"/a/disk.img": "disk", "/dev/sdb": "sdb", "null:4G": "null", "mem:1G": "mem", "7.raw": "disk-7", ".hidden": "disk-.hidden",
		"driver=raw,file.driver=file,file.filename=/x/y.qcow": "y", `json:{"driver":"null","size":"1G"}`: "null",
		"driver=raw,node-name=me,file.driver=null": "me", "/ü/ö.img": "disk--", strings.Repeat("x", 99): strings.Repeat("x", 31),
		"nbd://host/name": "nbd", "driver=": "disk-.", "driver=,": "disk-.", "/": "disk--",
	} {
		if got := nameOf(path); got != want {
			t.Errorf("%s is called %q, want %q", path, got, want)
		}
		if got := nameOf(path); !nodeName.MatchString(got) {
			t.Errorf("%q is not a node's name", got)
		}
	}
	taken := map[string]Place{}
	long := strings.Repeat("y", 31)
	for _, want := range []string{long, long[:29] + "-2", long[:29] + "-3"} {
		got := unused(long, taken)
		taken[got] = Place{}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestDefaultExport(t *testing.T) {
	for text, want := range map[string]string{
		"disks: [a.img]":                                    "a",
		"disks: [a.img, b.img]":                             "a",
		"disks: [{path: a, export: z}]":                     "z",
		"disks: [{path: a}, {path: b, export: {name: ''}}]": "",
	} {
		c, err := build(t, text, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := c.DefaultExport(); !ok || got != want {
			t.Errorf("%s: default export %q, want %q", text, got, want)
		}
	}
	if _, ok := (&Config{}).DefaultExport(); ok {
		t.Error("there is a default export without a disk")
	}
}

func TestMistakesInFile(t *testing.T) {
	for text, want := range map[string]string{
		"cahce: none":                                             `serve.yaml:1:1: there is no setting "cahce": choose one of disks, create, `,
		"cahce: none ":                                            `; did you mean cache?`,
		"cache: nonn":                                             `serve.yaml:1:8: cache "nonn" is not possible: choose one of auto, none, writeback; did you mean none?`,
		"stats: maybe":                                            `serve.yaml:1:8: "maybe" is neither on nor off`,
		"max-connections: 0":                                      `serve.yaml:1:18: "0" is not a whole number from 1 to 65536`,
		"max-connections: 65537":                                  `"65537" is not a whole number`,
		"handshake-timeout: soon":                                 `serve.yaml:1:20: "soon" is not a duration`,
		"handshake-timeout: 0":                                    `is not a duration`,
		"buffer-memory: 1K":                                       `"1K" is too small: at least 1 MiB`,
		"buffer-memory: x":                                        `"x" is not a size`,
		"disks:\n  - path: a\n    cach: none":                     `serve.yaml:3:5: a disk has no setting "cach": choose one of path, name, node, options, create, `,
		"disks:\n  - path: a\n    listen: x":                      `serve.yaml:3:5: a disk has no setting "listen"`,
		"disks:\n  - name: a":                                     `serve.yaml:2:5: a disk has no path`,
		"disks: ['']":                                             `a disk has no path`,
		"disks:\n - [a]":                                          `a disk is written as name: value lines, not as a list`,
		"disks:\n  - {path: a, node: {driver: b}}":                `serve.yaml:2:15: path and node are two ways`,
		"disks:\n  - {node: {driver: b}, path: a}":                `path and node are two ways`,
		"disks:\n  - node: {x: b}":                                `the description of a node begins with driver:`,
		"disks: [{path: a, name: '1'}]":                           `name "1": a letter, then`,
		"disks: [{path: a, name: b}, {path: c, name: b}]":         `a disk is called "b" already (serve.yaml:1:10)`,
		"disks: [{path: a, export: {nmae: b}}]":                   `an export has no "nmae": choose one of name, description, read-only; did you mean name?`,
		"disks: [{path: a, export: {read-only: b}}]":              `read-only "b" of the export: write on or off`,
		"disks: [{path: a, export: b}, {path: c, export: b}]":     `an export is called "b" already (serve.yaml:1:27)`,
		"disks: [{path: a, cache: none, options: {cache: none}}]": `cache is given both as a setting of the disk and below options`,
		"disks: [{path: a, options: {x: {y: 1}, x.y: 2}}]":        `option x.y is given twice`,
		"export: x":                                               `serve.yaml:1:1: export stands at a disk`,
		"listen: /run/x":                                          `serve.yaml:1:9: "/run/x" is not an address: for a Unix socket write unix:/run/x`,
		"listen: [auto, auto]":                                    `serve.yaml:1:16: auto is listened on twice`,
		"listen: {a: b}":                                          `listen is one value, not a mapping`,
		"stats: [on]":                                             `stats is one value, not a list`,
		"tls: required":                                           `serve.yaml:1:6: TLS needs a certificate and its key`,
		"tls-cert: c":                                             `serve.yaml:1:11: the certificate needs its key`,
		"tls-key: c":                                              `the key needs its certificate`,
		"tls: on":                                                 `tls "on" is not possible: choose one of off, optional, required`,
		"tls-cert: c\ntls-key: k\ntls-ca: a":                      `serve.yaml:3:9: an authority is for verifying clients`,
		"tls-cert: c\ntls-key: k\ntls-verify-client: on":          `serve.yaml:3:20: clients are verified against an authority`,
		"a: [1":                             `serve.yaml:1:4: this is not YAML: `,
		"stats: on\nstats: off":             `serve.yaml:2:1: this is not YAML: mapping key "stats" already defined`,
		"- a":                               `serve.yaml:1:1: a configuration is written as name: value lines, not as a list`,
		"stats: on\n---\na: b\n":            `a second document begins here`,
		"stats: &x on":                      `stats is one value, not an anchor`,
		"1: b":                              `serve.yaml:1:1: a name is plain text here`,
		"disks: [{path: }]":                 `path is one value, not nothing`,
		strings.Repeat("#", MaxFileBytes+1): `serve.yaml: the file is longer than 1 MiB`,
		"disks: [" + strings.Repeat("a,", MaxDisks) + "a]":                                                `there are more than 1024 disks`,
		"disks: [{path: a, options: " + strings.Repeat("{a: ", 66) + "1" + strings.Repeat("}", 66) + "}]": `options are nested deeper than 64`,
		"listen: [" + many(MaxListen+1) + "]":                                                             `there are more than 64 listeners`,
		"disks: [{path: a, export: [" + many(MaxExports+1) + "]}]":                                        `disk a has more than 64 exports`,
	} {
		_, err := build(t, text, nil)
		if err == nil {
			t.Errorf("%.60q is accepted", text)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q gives\n%s\nwant\n%s", text, err, want)
		}
	}
}

// many lists n addresses.
func many(n int) string {
	var s []string
	for i := range n {
		s = append(s, "'a"+strings.Repeat("x", i)+":1'")
	}
	return strings.Join(s, ",")
}

func TestBoundsAreReached(t *testing.T) {
	for _, text := range []string{
		strings.Repeat("#", MaxFileBytes),
		"disks: [" + strings.Repeat("a,", MaxDisks-1) + "a]",
		"disks: [{path: a, options: " + strings.Repeat("{a: ", 64) + "1" + strings.Repeat("}", 64) + "}]",
		"listen: [" + many(MaxListen) + "]",
		"disks: [{path: a, export: [" + many(MaxExports) + "]}]",
		"max-connections: 65536",
		"",
		"# nothing\n",
	} {
		if _, err := build(t, text, nil); err != nil {
			t.Errorf("%.60q: %v", text, err)
		}
	}
}

func TestMistakesInFlags(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"cache", "nonn", `--cache: "nonn" is not possible: choose one of auto, none, writeback; did you mean none?`},
		{"export", "nam=x", `--export: an export has no "nam"`},
		{"export", "name=x,name=y", `--export: option "name" is given twice`},
		{"log-level", "chatty", `--log-level: "chatty" is not possible: choose one of debug, info, warn, error`},
		{"create", "0", `--create: "0" is too small: at least 1 byte`},
		{"listen", "10809", `--listen: "10809" is not an address: for this machine only write localhost:10809`},
		{"listen", "", `--listen: "" is not an address`},
		{"listen", "a:b:c", `"a:b:c" is not an address`},
		{"listen", "h:65536", `the port "65536" is not a number`},
		{"listen", "fd:2", `write fd: and the number`},
		{"listen", "unix:" + strings.Repeat("x", MaxSocketPath+1), `has at most 107 bytes`},
		{"listen", "unix:", `"unix:" lacks the socket's path: write unix:/run/disk.sock`},
		{"pid-file", "", `--pid-file: the value is empty`},
	} {
		err := Find(c.name).Check(Text{c.value, Place{Flag: c.name}})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("--%s %q: %v, want %s", c.name, c.value, err, c.want)
		}
	}
	l := &Layer{}
	l.AddDisk("a")
	l.AddDisk("b")
	for range 3 {
		l.Set("export", Text{"name=x", Place{Flag: "export"}})
	}
	if _, err := Build(l); err == nil || !strings.Contains(err.Error(), "more exports than disks") {
		t.Errorf("three exports for two disks: %v", err)
	}
}

func TestListenForms(t *testing.T) {
	for text, want := range map[string]string{
		"auto": "auto", "unix:/a:b": "unix:/a:b", "localhost": "localhost:10809", "::1": "[::1]:10809", "[::1]": "[::1]:10809",
		"[::1]:5": "[::1]:5", ":5": ":5", "*:5": ":5", "*": ":10809", "tcp:h:5": "h:5", "tcp://h:5": "h:5", "systemd": "systemd", "systemd:nbd": "systemd:nbd", "fd:3": "fd:3",
		"unix:" + strings.Repeat("x", MaxSocketPath): "unix:" + strings.Repeat("x", MaxSocketPath), "autohost:1": "autohost:1", "unix.example:1": "unix.example:1",
	} {
		l, err := ParseListen(Text{Value: text})
		if err != nil || l.String() != want {
			t.Errorf("%s is %s (%v), want %s", text, l, err, want)
		}
		if again, err := ParseListen(Text{Value: l.String()}); err != nil || again != l {
			t.Errorf("%s read again is %v (%v)", l, again, err)
		}
	}
}

func TestNearest(t *testing.T) {
	list := []string{"cache", "create", "read-only", "aio"}
	for given, want := range map[string]string{
		"cahce": "cache", "cach": "cache", "Cache": "cache", "readonly": "read-only", "xyz": "", "ai": "aio", "creat": "create", strings.Repeat("c", 65): "",
	} {
		if got := Nearest(given, list); got != want {
			t.Errorf("nearest to %q is %q, want %q", given, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"disks: [a, {path: b, options: {x: [1, {y: 2}]}}]", "listen: ['::1', auto]\ntls: off", "a: |\n  b\n", "? a\n: b", "a: *x", "!!x y", "\t", "a: 'x",
		"- - - a", "{a: {b: {c: d}}}", "<<: {a: b}", "a: ~\n", "%YAML 1.2\n---\na: b\n...\n", "a: &a [*a, *a]", "disks:\n- node: {driver: x, ? y : z}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := Parse("f", text)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f:") {
				t.Errorf("%q has no place", err)
			}
			return
		}
		c, err := Build(l)
		if err != nil {
			return
		}
		for i := range c.Disks {
			if !nodeName.MatchString(c.Disks[i].Name) || len(c.Disks[i].Exports) == 0 {
				t.Errorf("disk %+v", c.Disks[i])
			}
		}
	})
}
