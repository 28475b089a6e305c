package logpace

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	p := New(3)
	at := p.last
	for i, want := range []bool{true, true, true, false, false} {
		if _, ok := p.allow(at); ok != want {
			t.Errorf("line %d: %v", i, ok)
		}
	}
	if held, ok := p.allow(at.Add(Period)); !ok || held != 2 {
		t.Errorf("after a period: %v, %d held back; want true, 2", ok, held)
	}
	if _, ok := p.allow(at.Add(Period)); ok {
		t.Error("a second line within the period")
	}
	for i := range 3 { // never more than the burst
		if _, ok := p.allow(at.Add(time.Hour)); !ok {
			t.Errorf("line %d after an hour was held back", i)
		}
	}
	if _, ok := p.allow(at.Add(time.Hour)); ok {
		t.Error("more than the burst after an hour")
	}
}

func TestLines(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	p := New(1)
	p.Warn(log, "first", "n", 1)
	p.Info(log, "second")
	p.last = p.last.Add(-Period)
	p.Info(log, "third")
	got := out.String()
	if !strings.Contains(got, "level=WARN msg=first n=1") || strings.Contains(got, "second") || !strings.Contains(got, "msg=third lines_left_out_before=1") {
		t.Errorf("%s", got)
	}
}
