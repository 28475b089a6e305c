package null

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
)

func open1(t testing.TB, vals block.Values) *blocktest.Client {
	t.Helper()
	return blocktest.NewClient(t, blocktest.Edge(t, blocktest.Open(t, blocktest.NewEnv(t), vals, nil)))
}

// Reads are zeroes in every lane, whatever read-zeroes says: what a read left
// alone would be other requests' data in the caller's buffer.
func TestReadsAreZeroes(t *testing.T) {
	for _, driver := range []string{"null", "null-co", "null-aio"} {
		for _, zeroes := range []string{"on", "off"} {
			cl := open1(t, block.Values{"driver": driver, "size": "1M", "read-zeroes": zeroes})
			for _, read := range []func(b []byte) error{
				func(b []byte) error { return cl.Read(100, b[:1000], b[1000:]) },
				func(b []byte) error { _, err := cl.ReadFast(4096, b); return err },
			} {
				b := bytes.Repeat([]byte{0xA5}, 4096)
				if err := read(b); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(b, make([]byte, 4096)) {
					t.Errorf("%s read-zeroes=%s: a read left the buffer's content", driver, zeroes)
				}
			}
			e, err := cl.Status(0, 1<<20)
			if want := zeroes == "on"; err != nil || e.Zero != want || e.Data == want || !e.EOF || e.Len != 1<<20 {
				t.Errorf("%s read-zeroes=%s: status %+v, %v", driver, zeroes, e, err)
			}
		}
	}
}

func TestURI(t *testing.T) {
	for uri, want := range map[string]string{"null:4G": "4G", "null://4G": "4G", "null-co://": "", "null:": "", "null-aio:512": "512"} {
		vals, err := parseURI(uri)
		if err != nil || vals["size"] != want {
			t.Errorf("%s: %v, %v, want size %q", uri, vals, err, want)
		}
	}
	if _, err := parseURI("null:much"); err == nil || !strings.Contains(err.Error(), "null:4G") {
		t.Errorf("null:much: %v", err)
	}
}

func TestLatencyIsBounded(t *testing.T) {
	env := blocktest.NewEnv(t)
	for ns, ok := range map[string]bool{"0": true, "60000000000": true, "60000000001": false, "-1": false} {
		_, err := blocktest.TryOpen(t, env, block.Values{"driver": "null", "latency-ns": ns}, nil, false)
		if (err == nil) != ok {
			t.Errorf("latency-ns=%s: %v", ns, err)
		}
	}
}

// A disk with latency takes it, and does not offer the fast lane, which may
// not wait.
func TestLatency(t *testing.T) {
	cl := open1(t, block.Values{"driver": "null", "latency-ns": "20000000"})
	b := make([]byte, 512)
	if ok, err := cl.ReadFast(0, b); ok || err != nil {
		t.Errorf("fast lane answered: %v %v", ok, err)
	}
	start := time.Now()
	if err := cl.Read(0, b); err != nil || time.Since(start) < 20*time.Millisecond {
		t.Errorf("read took %v, %v", time.Since(start), err)
	}
}

// The fast lane costs no allocation.
func TestFastLaneAllocations(t *testing.T) {
	cl := open1(t, block.Values{"driver": "null"})
	v := block.Vec{make([]byte, 4096)}
	if n := testing.AllocsPerRun(1000, func() {
		rq := cl.Queue.Begin()
		if _, ok := cl.Child.Map(rq, block.OpRead, 4096, v, 0); !ok {
			t.Fatal("declined")
		}
		err, again := cl.Child.Finish(rq, 4096, 4096, nil)
		if err != nil || again {
			t.Fatal(err, again)
		}
		cl.Queue.End(rq, block.OpRead, 4096, nil)
	}); n != 0 {
		t.Errorf("%v allocations a request", n)
	}
}
