package block

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"strings"
	"testing"
)

func TestParseOptions(t *testing.T) {
	for in, want := range map[string]Values{
		"":                                 {},
		"driver=raw,file=x":                {"driver": "raw", "file": "x"},
		"driver=raw,read-only":             {"driver": "raw", "read-only": "on"},
		"a=1,,2":                           {"a": "1,2"},
		"a=1,,,b=2":                        {"a": "1,", "b": "2"},
		"a=,b==":                           {"a": "", "b": "="},
		"a=1,":                             {"a": "1"},
		"file.driver=file,file.filename=/": {"file.driver": "file", "file.filename": "/"},
	} {
		if got, err := ParseOptions(in); err != nil || !maps.Equal(got, want) {
			t.Errorf("%q: %v, %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{",", "=x", "a=1,a=2", "a,a", ",,=x", strings.Repeat("a", MaxOptionText+1)} {
		if got, err := ParseOptions(in); err == nil {
			t.Errorf("%.20q was taken: %v", in, got)
		}
	}
}

func TestParseJSONOptions(t *testing.T) {
	for in, want := range map[string]Values{
		`{}`: {},
		`{"driver":"raw","offset":512,"file":{"driver":"mem","size":"1G","x":true}}`: {
			"driver": "raw", "offset": "512", "file.driver": "mem", "file.size": "1G", "file.x": "on"},
		`{"children":["a",{"driver":"b"}],"backing":null}`: {"children.0": "a", "children.1.driver": "b", "backing": ""},
		`{"n":12345678901234567890,"f":1.5}`:               {"n": "12345678901234567890", "f": "1.5"},
		` {"file.driver":"a"} `:                            {"file.driver": "a"},
	} {
		if got, err := ParseJSONOptions([]byte(in)); err != nil || !maps.Equal(got, want) {
			t.Errorf("%s: %v, %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{``, `null`, `[]`, `"a"`, `{"a":1}}`, `{"a":1}]`, `{"a":1} {}`, `{"a":1} x`, `{"":1}`, `{"a":{"b":1},"a.b":2}`, `{"a=b":1}`, `{"a,b":1}`} {
		if got, err := ParseJSONOptions([]byte(in)); err == nil {
			t.Errorf("%s was taken: %v", in, got)
		}
	}
}

// The name of an option may be written in two ways at once; which of two
// values is meant must not depend on the order in which a map is walked.
func TestOptionGivenInTwoWays(t *testing.T) {
	for range 20 {
		if v, err := FlattenOptions(map[string]any{"file": map[string]any{"driver": "a"}, "file.driver": "b"}); err == nil {
			t.Fatalf("taken as %v", v)
		}
	}
}

// Descriptions are bounded in depth, number and length: at the limit they are
// taken, one past it they are not.
func TestOptionLimits(t *testing.T) {
	deep := func(n int) []byte {
		return []byte(strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n))
	}
	many := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "a%d=1,", i)
		}
		return b.String()
	}
	long := func(n int) string { return "a=" + strings.Repeat("x", n-2) }
	for name, err := range map[string][2]error{
		"depth":  {second(ParseJSONOptions(deep(MaxOptionDepth + 1))), second(ParseJSONOptions(deep(MaxOptionDepth + 2)))},
		"number": {second(ParseOptions(many(MaxOptions))), second(ParseOptions(many(MaxOptions + 1)))},
		"length": {second(ParseOptions(long(MaxOptionText))), second(ParseOptions(long(MaxOptionText + 1)))},
	} {
		if err[0] != nil || err[1] == nil {
			t.Errorf("%s: at the limit %v, one past it %v", name, err[0], err[1])
		}
	}
}

func second(_ Values, err error) error { return err }

func TestParseSize(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "1": 1, "512b": 512, " 4096 ": 4096, "1K": 1024, "1k": 1024, "1KiB": 1024, "1kb": 1024, "3MIB": 3 << 20,
		"1.5G": 3 << 29, "0.5K": 512, "7E": 7 << 60, "8191P": 8191 << 50, "9223372036854775807": 1<<63 - 1, "7.5E": 15 << 59,
	} {
		if got, err := ParseSize(in); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", " ", "K", "B", "iB", "-1", "+1", "-0", "1.5", "1.5B", ".5K", "1.K", "1I", "1iB", "1KI", "1KBB", "1 K", "8E", "8192P", "9223372036854775808",
		"1e3", "1e3K", "0x10", "inf", "nan", "1_000", "１", "1ſ", strings.Repeat("9", 400) + "K",
	} {
		if got, err := ParseSize(in); err == nil {
			t.Errorf("%q was taken as %d", in, got)
		} else if len(err.Error()) > 300 {
			t.Errorf("the error about %.10q… is %d bytes long", in, len(err.Error()))
		}
	}
}

func TestFormatSize(t *testing.T) {
	for in, want := range map[int64]string{0: "0 bytes", 1023: "1023 bytes", 1024: "1 KiB", 1536: "1.5 KiB", 1 << 30: "1 GiB", 1<<63 - 1: "8 EiB", 5 << 50: "5 PiB"} {
		if got := FormatSize(in); got != want {
			t.Errorf("%d: %q, want %q", in, got, want)
		}
	}
}

func TestCheckOptions(t *testing.T) {
	d := &Driver{Name: "d", Options: []Option{
		{Name: "file", Type: OptNode, Required: true, Help: "the child"},
		{Name: "size", Type: OptSize, Default: "1M"}, {Name: "on", Type: OptBool, Default: "off"},
		{Name: "n", Type: OptInt}, {Name: "how", Type: OptEnum, Enum: []string{"a", "b"}, Default: "a"}, {Name: "text"},
	}}
	for in, want := range map[string]string{
		"file=x": "", "file.driver=x,file.y=1": "", "file=x,size=1K,on=on,n=-3,how=b,text=": "", "driver=d,node-name=z,file=x": "",
		"size=1K": `needs the option "file"`, "file=x,file.driver=y": "names a node and describes one",
		"file=x,size=much": "not a size", "file=x,on=yes": "neither on nor off", "file=x,n=1.5": "not a whole number",
		"file=x,how=c": "choose one of a, b", "file=x,other=1": `no option "other"`, "file=x,size.a=1": `no option "size.a"`,
	} {
		vals, err := ParseOptions(in)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = d.Check(vals); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", in, err, want)
		}
	}
	o, err := d.Check(Values{"file": "x", "n": "7"})
	if err != nil || o.Size("size") != 1<<20 || o.Bool("on") || o.Int("n") != 7 || o.String("how") != "a" || o.Has("size") || !o.Has("n") || o.Int("text") != 0 {
		t.Errorf("defaults: %+v, %v", o, err)
	}
}

// What is wrong is reported the same each time, whatever a map's order.
func TestCheckOptionsIsDeterministic(t *testing.T) {
	d := &Driver{Name: "d"}
	_, want := d.Check(Values{"a": "", "b": "", "c": ""})
	for range 20 {
		if _, err := d.Check(Values{"c": "", "b": "", "a": ""}); err.Error() != want.Error() {
			t.Fatalf("%v, then %v", want, err)
		}
	}
}

func FuzzParseOptions(f *testing.F) {
	for _, s := range []string{"", "a", "a=b,c", "driver=raw,file.driver=file,file.filename=a,,b", ",=,,", "a=b=c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := ParseOptions(s)
		if err != nil {
			return
		}
		again, err := ParseOptions(v.String())
		if err != nil || !maps.Equal(v, again) {
			t.Errorf("%q is %v, written %q, which is %v, %v", s, v, v.String(), again, err)
		}
	})
}

func FuzzParseJSONOptions(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":{"b":[1,true,null,"x",{"c":1.5e9}]}}`, `{"a.b":1,"a":{"b":2}}`, `{"a":1}}`, `null`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := ParseJSONOptions(text)
		w, err2 := ParseJSONOptions(text)
		if fmt.Sprint(err) != fmt.Sprint(err2) || !maps.Equal(v, w) {
			t.Errorf("%q is %v, %v and then %v, %v", text, v, err, w, err2)
		}
		if err != nil {
			return
		}
		if !json.Valid(bytes.TrimSpace(text)) {
			t.Errorf("%q was taken and is not JSON", text)
		}
		if again, err := ParseOptions(v.String()); err != nil || !maps.Equal(v, again) {
			t.Errorf("%q is %v, written %q, which is %v, %v", text, v, v.String(), again, err)
		}
	})
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"0", "1.5G", "8191PiB", "7.999999999999999999E", "1kb"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseSize(s)
		if err != nil {
			return
		}
		digits := strings.TrimRight(strings.ToUpper(strings.TrimSpace(s)), "KMGTPEIB")
		shift := 0
		if rest := strings.ToUpper(strings.TrimSpace(s))[len(digits):]; rest != "" && rest != "B" {
			shift = 10 * (strings.Index("KMGTPE", rest[:1]) + 1)
		}
		want, ok := new(big.Rat).SetString(digits)
		if !ok {
			t.Fatalf("%q was taken as %d", s, n)
		}
		want.Mul(want, new(big.Rat).SetInt(new(big.Int).Lsh(big.NewInt(1), uint(shift))))
		off := new(big.Rat).Sub(want, new(big.Rat).SetInt64(n))
		// A fraction is read as a float64: 53 bits are right.
		bound := new(big.Rat).Add(big.NewRat(1, 1), new(big.Rat).Quo(want, big.NewRat(1<<52, 1)))
		if n < 0 || off.Abs(off).Cmp(bound) > 0 || !strings.Contains(digits, ".") && off.Sign() != 0 {
			t.Errorf("%q is %d, want %s", s, n, want.FloatString(3))
		}
	})
}
