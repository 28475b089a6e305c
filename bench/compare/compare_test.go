package compare

import (
	"strings"
	"testing"

	"github.com/platter-storage/platter/bench/sample"
)

func outcomeOf(ours, peer, again float64) Outcome {
	c := func(name string, rate float64) Cell {
		return Cell{Server: name, Rate: sample.Rounds{rate}, CPU: sample.Rounds{1e6 / rate}}
	}
	o := Outcome{Row: "r4k-d1", Block: 4 * 1024, Cells: []Cell{c("platter", ours), c("slow", peer/2), c("fast", peer), c("platter-again", again)}}
	o.Cells[3].Again = true
	return o
}

func TestVerdictsAgainstTheBestPeer(t *testing.T) {
	for _, c := range []struct {
		ours, peer, again float64
		want              string
	}{
		{200, 100, 201, "rate 2.00x ahead, CPU 0.50x ahead"},
		{80, 100, 81, "rate 0.80x BEHIND, CPU 1.25x BEHIND"},
		{98, 100, 90, "rate 0.98x even, CPU 1.02x even"},
	} {
		o := outcomeOf(c.ours, c.peer, c.again)
		v := o.verdicts()
		if v[0] != c.want || v[1] != "" || v[2] != "fastest peer, least CPU" || !strings.HasPrefix(v[3], "(A/A") {
			t.Errorf("%+v: verdicts %q, want %q first", c, v, c.want)
		}
		var out strings.Builder
		o.Print(&out)
		if n := strings.Count(out.String(), "\n"); n != 4 || !strings.Contains(out.String(), c.want) {
			t.Errorf("printed %d lines:\n%s", n, out.String())
		}
	}
}

func TestServerThatDoesOtherwiseIsNotComparedWith(t *testing.T) {
	o := outcomeOf(100, 200, 100)
	o.Cells[2].Unlike = true
	if v := o.verdicts(); !strings.HasPrefix(v[0], "rate 1.00x") || v[2] != "not compared" || v[1] != "fastest peer, least CPU" {
		t.Errorf("verdicts %q", v)
	}
}

func TestRatesAreInTheRowsUnit(t *testing.T) {
	if got := (Outcome{Block: 4 * 1024}).rate(12345); got != "12.3k/s" {
		t.Errorf("small requests: %s", got)
	}
	if got := (Outcome{Block: 1 << 20}).rate(2048); got != "2048 MiB/s" {
		t.Errorf("large requests: %s", got)
	}
}

func TestChoose(t *testing.T) {
	all := []string{"one", "two", "three"}
	name := func(s string) string { return s }
	got, err := Choose("row", all, name, "three,one")
	if err != nil || len(got) != 2 || got[0] != "one" {
		t.Errorf("got %v, %v; want the two in the order of all", got, err)
	}
	if got, err := Choose("row", all, name, ""); err != nil || len(got) != 3 {
		t.Errorf("got %v, %v; want all", got, err)
	}
	if _, err := Choose("row", all, name, "nothing"); err == nil || !strings.Contains(err.Error(), "two") {
		t.Errorf("error %v, want one that lists them", err)
	}
}
