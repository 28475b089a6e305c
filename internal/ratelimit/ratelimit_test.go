package ratelimit

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
)

const second = int64(1e9)

// greedy asks for requests of n bytes one after the other as soon as it may, and
// returns when each began.
func greedy(b *Bucket, op block.Op, n int64, from int64, count int) []int64 {
	var at []int64
	for now := from; len(at) < count; {
		if wait := b.Admit(op, n, now); wait > 0 {
			now += wait
			continue
		}
		at = append(at, now)
	}
	return at
}

// However limits are chosen, and however long ago the clock began: no second
// has more than a burst, what the rate allows, and one request; and who never
// rests gets the rate.
func TestTheRateHolds(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 300 {
		l := Limit{Avg: 1 + rng.Int64N(1<<rng.IntN(30)), MaxLength: 1}
		if rng.IntN(2) == 0 {
			l.Max, l.MaxLength = l.Avg+rng.Int64N(l.Avg+1), 1+rng.Int64N(5)
		}
		burst := float64(l.Avg) / 10
		if l.Max > 0 {
			burst = float64(l.Max * l.MaxLength)
		}
		var lim Limits
		lim.Bytes[Total] = l
		n := max(int64(burst/20), 1)
		at := greedy(NewBucket(lim), block.OpRead, n, rng.Int64N(1<<rng.IntN(61)), 200)
		for first := range at {
			for last := first + 1; last < len(at); last += 1 + last/4 {
				got, span := float64(int64(last-first)*n), float64(at[last]-at[first])/1e9
				if most := (burst+float64(l.Avg)*span)*1.000001 + float64(n); got > most {
					t.Fatalf("case %d: %+v: %g bytes within %g s, %g may be", i, l, got, span, most)
				}
			}
		}
		sent, span := float64(200*n), float64(at[len(at)-1]-at[0])/1e9
		if least := float64(l.Avg)*(span-0.001) - float64(n); sent < least {
			t.Fatalf("case %d: %+v: only %g bytes in %g s", i, l, sent, span)
		}
	}
}

// A rate of billions of bytes is as exact after years as at the beginning.
func TestTheRateIsExactAfterYears(t *testing.T) {
	for _, from := range []int64{0, 400 * 86400 * second, 1 << 61} {
		var lim Limits
		lim.Bytes[Total] = Limit{Avg: 20e9, MaxLength: 1}
		b := NewBucket(lim)
		b.Admit(block.OpRead, 2e9, from) // a tenth of a second: nothing is saved up
		const count = 2_000_000
		at := greedy(b, block.OpRead, 512, from, count)
		span := float64(at[count-1]-from) / 1e9
		if got, want := count*512.0, 20e9*span; got < want*0.98 || got > want*1.02 {
			t.Errorf("from %d: %g bytes in %g s, want %g", from, got, span, want)
		}
	}
}

// A burst that may last longer runs at its own rate.
func TestABurstHasARate(t *testing.T) {
	var lim Limits
	lim.Requests[Total] = Limit{Avg: 100, Max: 1000, MaxLength: 3}
	at := greedy(NewBucket(lim), block.OpWrite, 4096, 0, 4000)
	if n := before(at, second); n < 1000 || n > 1110 {
		t.Errorf("%d requests in the first second of a burst of 1000 a second", n)
	}
	if n := before(at, 10*second); n < 3900 || n > 4001 {
		t.Errorf("%d requests in 10 seconds: 3000 of the burst and 100 a second are 4000", n)
	}
}

func before(at []int64, end int64) (n int) {
	for _, x := range at {
		if x < end {
			n++
		}
	}
	return n
}

// until is how long somebody who asks as told waits for his request, and
// whether each wait was within the bounds.
func until(t *testing.T, b *Bucket, op block.Op, n, now int64) (waited int64) {
	t.Helper()
	for {
		wait := b.Admit(op, n, now+waited)
		if wait == 0 {
			return waited
		}
		if wait < minWaitNs || wait > maxWaitNs {
			t.Fatalf("told to wait for %d ns", wait)
		}
		waited += wait
	}
}

// A request longer than all that is saved up passes, and those after it wait
// the longer.
func TestLongRequestsPass(t *testing.T) {
	var lim Limits
	lim.Bytes[Total] = Limit{Avg: 1 << 20, Max: 1 << 20, MaxLength: 1}
	b := NewBucket(lim)
	if w := b.Admit(block.OpRead, 16<<20, 0); w != 0 {
		t.Errorf("a long request waits %d ns though nothing was before it", w)
	}
	if w := until(t, b, block.OpRead, 1, 0); w < 15*second || w > 15*second+maxWaitNs {
		t.Errorf("the next byte waits %d ns; 16 s less one of burst were used up", w)
	}
}

// Reads and writes have limits of their own; a long request counts as several.
func TestDirectionsAndSizes(t *testing.T) {
	var lim Limits
	lim.Requests[Writes] = Limit{Avg: 10, MaxLength: 1}
	lim.RequestSize = 4096
	b := NewBucket(lim)
	for range 100 {
		for _, op := range []block.Op{block.OpRead, block.OpFlush, block.OpStatus} {
			if w := b.Admit(op, 1<<20, 0); w != 0 {
				t.Fatalf("%v waits %d ns for the limit of writes", op, w)
			}
		}
	}
	if w := b.Admit(block.OpWrite, 4096, 0); w != 0 {
		t.Errorf("the first write waits %d ns", w)
	}
	if w := b.Admit(block.OpZero, 5*4096, 0); w != 0 {
		t.Errorf("the second write waits %d ns: one may come before its time", w)
	}
	if w := b.Admit(block.OpDiscard, 1, 0); w != second*5/10 {
		t.Errorf("behind writes that count as 6 the next waits %d ns, not 0.5 s", w)
	}
	if b.Waits() != 1 {
		t.Errorf("%d times somebody was told to wait", b.Waits())
	}
}

// What waits for one limit takes nothing from another: reads that their bytes
// hold back leave the requests to the writes.
func TestReadsThatWaitDoNotDelayWrites(t *testing.T) {
	var lim Limits
	lim.Requests[Total] = Limit{Avg: 1000, MaxLength: 1}
	lim.Bytes[Reads] = Limit{Avg: 1 << 20, MaxLength: 1}
	b := NewBucket(lim)
	if w := b.Admit(block.OpRead, 10<<20, 0); w != 0 {
		t.Fatalf("the first read waits %d ns", w)
	}
	for i := range 1000 {
		if w := b.Admit(block.OpRead, 4096, int64(i)); w == 0 {
			t.Fatal("a read passed though ten seconds of reading are owed")
		}
	}
	if w := b.Admit(block.OpWrite, 4096, 1000); w != 0 {
		t.Errorf("a write waits %d ns behind reads that wait", w)
	}
	at := greedy(b, block.OpWrite, 4096, 1000, 1000)
	if took := at[len(at)-1] - at[0]; took > second {
		t.Errorf("1000 writes at 1000 a second took %d ns", took)
	}
}

// Requests that asked and were given up, however many and however large, leave
// nothing behind.
func TestWhoIsToldToWaitIsNotCounted(t *testing.T) {
	var lim Limits
	lim.Requests[Total] = Limit{Avg: 1000, MaxLength: 1}
	lim.Bytes[Total] = Limit{Avg: 1 << 20, MaxLength: 1}
	b := NewBucket(lim)
	if w := b.Admit(block.OpRead, 1<<20, 0); w != 0 {
		t.Fatalf("the first request waits %d ns", w)
	}
	want := b.Admit(block.OpRead, 512, 0)
	for range 100 {
		b.Admit(block.OpRead, 1<<30, 0)
	}
	if w := b.Admit(block.OpRead, 512, 0); w != want || w > second {
		t.Errorf("the next waits %d ns, %d before others had asked", w, want)
	}
}

// A request that is handed back is as if it had not been.
func TestReturn(t *testing.T) {
	var lim Limits
	lim.Requests[Total] = Limit{Avg: 10, MaxLength: 1}
	b := NewBucket(lim)
	for range 100 {
		if w := b.Admit(block.OpRead, 512, 0); w != 0 {
			t.Fatalf("a request waits %d ns though each before it was handed back", w)
		}
		b.Return(block.OpRead, 512)
	}
	b.Return(block.OpFlush, 0)
	if n := len(greedy(b, block.OpRead, 512, 0, 2)); n != 2 || b.Admit(block.OpRead, 512, 0) == 0 {
		t.Error("more may come at once than before: what was handed back counts twice")
	}
}

// New limits hold at once for who asks, also for who had long to wait.
func TestSet(t *testing.T) {
	var lim Limits
	lim.Requests[Total] = Limit{Avg: 1, MaxLength: 1}
	lim.RequestSize = 1
	b := NewBucket(lim)
	b.Admit(block.OpRead, 1<<30, 0)
	if w := b.Admit(block.OpRead, 512, 0); w != maxWaitNs {
		t.Errorf("who has long to wait is asked to come again after %d ns", w)
	}
	b.Set(Limits{})
	if w := b.Admit(block.OpRead, 512, 1); w != 0 {
		t.Errorf("without a limit a request waits %d ns", w)
	}
}

// Many who share a bucket get together what one would get, whoever asks when.
func TestManyShareTheRate(t *testing.T) {
	var lim Limits
	lim.Requests[Total] = Limit{Avg: 10000, MaxLength: 1}
	b := NewBucket(lim)
	next, got := make([]int64, 50), make([]int, 50)
	for now := int64(0); now < 10*second; now += minWaitNs / 2 {
		for i := range next {
			for next[i] <= now {
				wait := b.Admit(block.OpRead, 512, now)
				if next[i] = now + wait; wait == 0 {
					got[i]++
				}
				if wait == 0 && got[i]%3 == 0 {
					next[i]++ // back after this round
				}
			}
		}
	}
	all := 0
	for _, n := range got {
		all += n
	}
	if all < 100_000 || all > 101_100 {
		t.Errorf("%d requests in 10 s at 10000 a second and 1000 at once", all)
	}
}

// Those who ask at the same time neither race nor get more than there is.
func TestConcurrent(t *testing.T) {
	var lim Limits
	lim.Requests[Total] = Limit{Avg: 1000, MaxLength: 1}
	b := NewBucket(lim)
	var wg sync.WaitGroup
	got := make([]int, 4)
	for i := range got {
		wg.Go(func() {
			for now := range second / 1e6 {
				if b.Admit(block.OpWrite, 512, now*1e6) == 0 {
					got[i]++
				}
			}
		})
	}
	wg.Wait()
	if all := got[0] + got[1] + got[2] + got[3]; all < 101 || all > 1101 {
		t.Errorf("%d requests within a second of 1000, and 100 at once", all)
	}
}

func TestAdmitAllocatesNothing(t *testing.T) {
	var lim Limits
	lim.Requests[Total], lim.Bytes[Reads] = Limit{Avg: 1, MaxLength: 1}, Limit{Avg: 1 << 20, MaxLength: 1}
	b, now, passed := NewBucket(lim), int64(0), 0
	n := testing.AllocsPerRun(1000, func() {
		if b.Admit(block.OpRead, 512, now) == 0 {
			passed++
		}
		now += second / 2
	})
	if n != 0 || passed < 400 || passed > 700 {
		t.Errorf("%g allocations, %d passed", n, passed)
	}
}

func setting(t *testing.T, text string) Setting {
	t.Helper()
	vals, err := block.ParseOptions(text)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Parse(vals)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Members of a group have one bucket. Who comes later says the same limits or
// none, or sets them for all.
func TestGroups(t *testing.T) {
	defer Leave("a")
	first, err := Join(setting(t, "group=a,iops-total=10"))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"group=a", "group=a,iops-total=10"} {
		b, err := Join(setting(t, text))
		if err != nil || b != first {
			t.Errorf("%s: another bucket, %v", text, err)
		}
		Leave("a")
	}
	if _, err := Join(setting(t, "group=a,iops-total=11")); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("other limits for the same group: %v", err)
	}
	own, err := Join(setting(t, "iops-total=11"))
	if err != nil || own == first {
		t.Errorf("without a group: %v", err)
	}
	b, err := JoinAndSet(setting(t, "group=a,iops-total=11"))
	defer Leave("a")
	if err != nil || b != first || first.Limits().Requests[Total].Avg != 11 {
		t.Errorf("limits that are set: %v, %v", first.Limits(), err)
	}
}

// When the last member has left, the group is gone; and there are not more than
// so many at once.
func TestGroupsEnd(t *testing.T) {
	for i := range MaxGroups + 10 {
		name := fmt.Sprint("short-lived-", i)
		if _, err := Join(Setting{Group: name}); err != nil {
			t.Fatal(err)
		}
		Leave(name)
	}
	for i := range MaxGroups {
		name := fmt.Sprint("held-", i)
		if _, err := Join(Setting{Group: name}); err != nil {
			t.Fatalf("group %d: %v", i, err)
		}
		defer Leave(name)
	}
	if _, err := Join(Setting{Group: "one too many"}); err == nil {
		t.Error("there is no limit to the number of groups")
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for text, ok := range map[string]bool{
		"":                                     true,
		"iops-total=1000000000000000":          true,
		"iops-total=1000000000000001":          false,
		"iops-total=-1":                        false,
		"iops-total-max=5":                     false,
		"iops-total=6,iops-total-max=5":        false,
		"iops-total=5,iops-total-max=5":        true,
		"iops-total=5,iops-total-max-length=2": false,
		"iops-total=5,iops-total-max=5,iops-total-max-length=0":          false,
		"bps-read=1,bps-read-max=1000000000000,bps-read-max-length=1000": true,
		"bps-read=1,bps-read-max=1000000000000,bps-read-max-length=1001": false,
		"iops-total=5,iops-read=5":                                       false,
		"iops-write=5,iops-read=5":                                       true,
		"bps-total=5,bps-write=5":                                        false,
		"bps-total=5,iops-write=5":                                       true,
		"iops-size=4K":                                                   false,
		"iops-size=4K,iops-write=1":                                      true,
		"bps-total=5,iops-size=4K":                                       false,
		"bps-total=5,driver=throttle":                                    false,
		"bps-total=5,node-name=x":                                        false,
		"bps-total=5,file=x":                                             false,
	} {
		vals, err := block.ParseOptions(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(vals); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
	s := setting(t, "bps-read=2M,iops-write=7,iops-write-max=9,iops-write-max-length=3,group=g").String()
	if want := `iops-write=7 (9 for 3 s), bps-read=2097152, shared by the group "g"`; s != want {
		t.Errorf("%s, want %s", s, want)
	}
	if s := setting(t, "").String(); !strings.Contains(s, "no limit") {
		t.Error(s)
	}
}
