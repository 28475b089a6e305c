package serve

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/platter-storage/platter/block"
)

func TestStatsTextAndJSON(t *testing.T) {
	now := int64(0)
	env := &block.Env{Now: func() int64 { return now }}
	group := block.NewQueueGroup()
	q := block.NewQueue(env, group)
	for range 3 {
		rq := q.Begin()
		rq.Took(block.PathSlow | block.PathPadded)
		now += 10e3
		q.End(rq, block.OpRead, 4096, nil)
	}
	rq := q.Begin()
	now += 5e6
	q.End(rq, block.OpFlush, 0, errors.New("lost"))
	s := &Stats{UptimeSeconds: 61.2, Connections: 2, InFlight: 1, Exports: []ExportStats{exportStats("", "vm", group.Stats()), exportStats("old", "", &block.Stats{})}}
	s.Buffers = BufferStats{Limit: 64 << 20, Peak: 1 << 20, Waits: 7}

	var b strings.Builder
	if err := s.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	want := `statistics after 1m1s, 2 clients connected, 1 requests in flight
export "" of disk vm
  operation  requests   amount  errors      p50      p99    p99.9      max
       read         3   12 KiB       0  10.2 µs  10.2 µs  10.2 µs  10.2 µs
      flush         1  0 bytes       1  5.24 ms  5.24 ms  5.24 ms  5.24 ms
  ways: slow_lane 3, padded 3
export "old" (no longer offered)
  no requests
buffers: 1 MiB of 64 MiB at most in use at once, 7 waits
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}

	b.Reset()
	if err := writeEvent(&b, "stats", s); err != nil {
		t.Fatal(err)
	}
	var back struct {
		Event string
		Stats
	}
	if err := json.Unmarshal([]byte(b.String()), &back); err != nil {
		t.Fatalf("%v in %s", err, b.String())
	}
	read := back.Exports[0].Operations["read"]
	if back.Event != "stats" || read.Requests != 3 || read.Bytes != 3*4096 || read.P50 != 10240 || back.Exports[0].Paths["padded"] != 3 {
		t.Errorf("read back: %+v", back)
	}
	if strings.Count(b.String(), "\n") != 1 {
		t.Errorf("an event is one line, not %q", b.String())
	}
}

func TestLatencyUnits(t *testing.T) {
	for ns, want := range map[int64]string{0: "0 ns", 320: "320 ns", 1280: "1.28 µs", 65536: "65.5 µs", 12345678: "12.3 ms", 68e9: "68 s"} {
		if got := latency(ns); got != want {
			t.Errorf("%d ns is %q, want %q", ns, got, want)
		}
	}
}
