package block_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
)

// An answer about status that is finer than its alignment says nothing of the
// part that was asked for: data then, and never a length below one.
func TestStatusFinerThanItsAlignment(t *testing.T) {
	n := &fine{}
	n.info.SetLimits(blocks())
	n.info.SetSize(1 << 20)
	c := bt.NewClient(t, bt.Edge(t, bt.Attach(t, bt.NewEnv(t), n, "fine")))
	for _, off := range []int64{4096, 4096 + 511, 4096 + 512, 4096 + 3000} {
		e, err := c.Status(off, 100)
		if err != nil || e.Len < 1 || e.Len > 100 || off >= 4096+512 && (!e.Data || e.Zero) {
			t.Errorf("status at %d: %+v, %v", off, e, err)
		}
	}
}

// fine answers in sectors though its alignment is 4096.
type fine struct{ sink }

func (n *fine) BlockStatus(_ *block.Req, _, l int64) (block.Extent, error) {
	return block.Extent{Len: min(512, l), Zero: true, Allocated: true, Host: -1}, nil
}

// Status at unaligned offsets is that of the aligned range, cut down.
func TestStatusIsCutToWhatWasAsked(t *testing.T) {
	n := &hosted{}
	n.info.SetLimits(blocks())
	n.info.SetSize(10000)
	c := bt.NewClient(t, bt.Edge(t, bt.Attach(t, bt.NewEnv(t), n, "hosted")))
	for _, x := range []struct{ off, n, len, host int64 }{{0, 10000, 10000, 1 << 20}, {1, 5, 5, 1<<20 + 1}, {5000, 1 << 40, 5000, 1<<20 + 5000}, {9999, 1, 1, 1<<20 + 9999}} {
		e, err := c.Status(x.off, x.n)
		if err != nil || e.Len != x.len || e.Host != x.host || e.EOF != (x.off+x.len == 10000) {
			t.Errorf("status of %d bytes at %d: %+v, %v", x.n, x.off, e, err)
		}
	}
}

// hosted answers with more than it was asked for, which the edge cuts.
type hosted struct{ sink }

func (n *hosted) BlockStatus(_ *block.Req, off, _ int64) (block.Extent, error) {
	return block.Extent{Len: 10000 - off, Data: true, Allocated: true, EOF: true, Host: 1<<20 + off}, nil
}

// Limits that no request can meet, or that rounding would break, are refused:
// each here is one step beyond what is legal.
func TestIllegalLimits(t *testing.T) {
	for name, f := range map[string]func(l *block.Limits){
		"alignment 0":                      func(l *block.Limits) { l.ReadAlign = 0 },
		"alignment 3":                      func(l *block.Limits) { l.WriteAlign = 3 },
		"alignment above the largest":      func(l *block.Limits) { l.ReadAlign = 2 * block.MaxAlign },
		"memory above the largest":         func(l *block.Limits) { l.MinMem, l.OptMem = 2*block.MaxAlign, 2*block.MaxAlign },
		"optimum memory above the largest": func(l *block.Limits) { l.OptMem = 2 * block.MaxAlign },
		"optimum below minimum":            func(l *block.Limits) { l.MinMem = 8192 },
		"segments above requests":          func(l *block.Limits) { l.ReadAlign, l.WriteAlign, l.SegmentAlign = 512, 4096, 1024 },
		"no segments":                      func(l *block.Limits) { l.MaxSegments = 0 },
		"too many segments":                func(l *block.Limits) { l.MaxSegments = block.MaxElements + 1 },
		"transfer below a block":           func(l *block.Limits) { l.WriteAlign, l.MaxTransfer = 4096, 4095 },
		"transfer below memory":            func(l *block.Limits) { l.MinMem, l.MaxTransfer = 4096, 2048 },
		"zeroes below their alignment":     func(l *block.Limits) { l.ZeroAlign, l.MaxZero = 4096, 4095 },
		"discard below its alignment":      func(l *block.Limits) { l.DiscardAlign, l.MaxDiscard = 4096, 4095 },
	} {
		if err := limits(f).Validate(); err == nil {
			t.Errorf("%s is legal", name)
		}
	}
	for name, f := range map[string]func(l *block.Limits){
		"bytes": func(*block.Limits) {},
		"largest": func(l *block.Limits) {
			l.ReadAlign, l.WriteAlign, l.SegmentAlign, l.MinMem, l.OptMem = block.MaxAlign, block.MaxAlign, block.MaxAlign, block.MaxAlign, block.MaxAlign
			l.MaxTransfer, l.ZeroAlign, l.DiscardAlign = block.MaxAlign, 1<<31, 1<<31
		},
	} {
		if err := limits(f).Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What one edge does and what another allows must fit, whichever came first.
func TestPermissionsOfEdges(t *testing.T) {
	_, c := emulate(t, bt.EmulatorConfig{})
	in := c.Child.Instance()
	c.Child.Close()
	alone, err := in.NewChild("job", block.RoleRoot, block.PermRead|block.PermWrite, block.PermRead)
	must(t, err)
	for _, x := range []struct {
		perm, shared block.Perm
		ok           bool
	}{
		{block.PermRead, block.PermAll, true},
		{block.PermRead, block.PermRead, false},  // does not allow the job's writes
		{block.PermWrite, block.PermAll, false},  // the job does not allow it
		{block.PermResize, block.PermAll, false}, // nor this
	} {
		e, err := in.NewChild("other", block.RoleRoot, x.perm, x.shared)
		if (err == nil) != x.ok || err != nil && (!errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "job")) {
			t.Errorf("%s, allowing %s: %v", x.perm, x.shared, err)
		}
		if err == nil {
			e.Close()
		}
	}
	alone.Close()
	all, err := in.NewChild("other", block.RoleRoot, block.PermAll, block.PermRead)
	must(t, err)
	all.Close()
}

// discard=ignore: nothing is discarded through that edge, and zeroes keep
// their space.
func TestIgnoreDiscard(t *testing.T) {
	e, c := emulate(t, bt.EmulatorConfig{ZeroFlags: block.MayUnmap})
	c.Child.IgnoreDiscard()
	must(t, c.Discard(0, 65536))
	must(t, c.Zero(0, 4096, block.MayUnmap))
	if calls := e.Calls(); len(calls) != 1 || calls[0].Op != block.OpZero || calls[0].Flags != 0 {
		t.Errorf("the storage was asked %+v", calls)
	}
}

// Sleep ends with the request's context; the timer that then comes late does
// not end the next sleep.
func TestSleepEndsWithTheContext(t *testing.T) {
	_, c := emulate(t, bt.EmulatorConfig{})
	env := c.Queue.Env()
	fire := make(chan func(), 2)
	env.After = func(_ int64, f func()) func() bool {
		fire <- f
		return func() bool { go f(); return false } // too late to stop
	}
	must(t, c.Do(block.OpRead, func(rq *block.Req) error {
		ctx, cancel := context.WithCancel(context.Background())
		rq.SetContext(ctx)
		cancel()
		if err := rq.Sleep(1); !errors.Is(err, context.Canceled) {
			t.Errorf("a sleep with a context that ended: %v", err)
		}
		<-fire
		rq.SetContext(context.Background())
		slept := make(chan error, 1)
		go func() { slept <- rq.Sleep(1) }()
		end := <-fire
		settle()
		select {
		case <-slept:
			t.Error("the late timer ended the next sleep")
		default:
			end()
			must(t, <-slept)
		}
		return nil
	}))
}

// A node that follows another's size has it, less what it skips.
func TestFollowSize(t *testing.T) {
	var below, above block.Info
	above.FollowSize(&below, 1000)
	for size, want := range map[int64]int64{0: 0, 999: 0, 1000: 0, 5000: 4000} {
		below.SetSize(size)
		if n := above.Size(); n != want {
			t.Errorf("%d less 1000 is %d", size, n)
		}
	}
}

// Messages name operation, node, place and cause; the errno is found inside.
func TestErrors(t *testing.T) {
	e, c := emulate(t, bt.EmulatorConfig{})
	fail(e, block.OpRead, 0, 0, syscall.EIO)
	for want, err := range map[string]error{
		"read of disk (emulated storage) at offset 512, length 100: input/output error": c.Read(512, make([]byte, 100)),
		"the size is 1048576 bytes": c.Write(1<<20, 0, []byte{1}),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if no := block.Errno(fmt.Errorf("around: %w", c.Read(0, make([]byte, 1)))); no != syscall.EIO {
		t.Errorf("errno %v", no)
	}
	if no := block.Errno(errors.New("no number")); no != syscall.EIO {
		t.Errorf("without an errno: %v", no)
	}
	for _, err := range []error{syscall.ENOTSUP, syscall.EOPNOTSUPP, errors.ErrUnsupported, block.Errorf(syscall.ENOTSUP, "x")} {
		if !block.IsNotSupported(err) {
			t.Errorf("%v is not taken for missing support", err)
		}
	}
}
