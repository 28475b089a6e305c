package img

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Options are found wherever they stand and however they are joined.
func TestParse(t *testing.T) {
	table := spec("f:format= q:quiet p:progress l:list backing-chain b:base= O:")
	for text, want := range map[string]string{
		"-f raw a b":              "f=raw | a b",
		"a -fraw -qp b":           "f=raw q= p= | a b",
		"-qpf raw a":              "q= p= f=raw | a",
		"--format=raw --quiet a":  "f=raw q= | a",
		"--form raw --backing a":  "f=raw backing-chain= | a",
		"a -- -f raw":             "| a -f raw",
		"- -q":                    "q= | -",
		"-x":                      "error",
		"--nothing":               "error",
		"-f":                      "error",
		"--format":                "error",
		"--quiet=1":               "error",
		"--ba":                    "error", // of two
		"--f=a,b=c -b x=y -O one": "f=a,b=c b=x=y O= | one",
	} {
		got, rest, err := parse(table, strings.Fields(text))
		var parts []string
		for _, g := range got {
			parts = append(parts, g.name+"="+g.value)
		}
		s := strings.TrimSpace(strings.Join(append(append(parts, "|"), rest...), " "))
		if err != nil {
			s = "error"
		}
		if s != want {
			t.Errorf("%s: %s, want %s", text, s, want)
		}
	}
}

func TestItems(t *testing.T) {
	if d := cmp.Diff([]string{"a=1", "b=x,,y", "a=2"}, items("a=1,b=x,,y,a=2")); d != "" {
		t.Error(d)
	}
}

// Sizes read as the reference's do.
func TestSizes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "0.977 KiB", 4096: "4 KiB", 69632: "68 KiB", 1 << 20: "1 MiB", 5570560: "5.31 MiB", 1 << 40: "1 TiB"} {
		if got := shortSize(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 bytes", 1023: "1023 bytes", 1024: "1 KiB", 65535: "63.999 KiB", 1<<31 - 512: "2 GiB"} {
		if got := ioSize(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	for text, want := range map[string]int64{"0x10": 16, "1k": 1024, "1.5M": 3 << 19} {
		if got, err := parseBytes(text); got != want || err != nil {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("-f raw --quiet=x a")
	f.Add("--")
	table := spec("f:format= q:quiet l:list backing-chain")
	f.Fuzz(func(t *testing.T, text string) {
		args := strings.Split(text, " ")
		got, rest, err := parse(table, args)
		if err == nil && len(rest) > len(args) {
			t.Errorf("%q: %q and %q", args, got, rest)
		}
	})
}
