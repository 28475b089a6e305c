package block_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/inject"
)

// A FUA write that fails may have consumed the only report of another write's
// loss: neither is it tried again, nor may the next flush promise anything. In
// both lanes, with and without a page cache.
func TestFailedFUAIsNotForgotten(t *testing.T) {
	for _, fast := range []bool{false, true} {
		for _, cached := range []bool{false, true} {
			e, c := emulate(t, bt.EmulatorConfig{Limits: sectors(), Fast: fast, WriteFlags: block.FUA})
			e.Info().Cached = cached
			e.Inject(&bt.Fault{Rule: inject.Rule{Ops: bt.OpBit(block.OpWrite), Times: 1}, Err: syscall.EIO})
			b := bt.Pattern(bt.Memory(t, 4096), 1)
			var err error
			if fast {
				var ok bool
				if ok, err = c.WriteFast(0, block.FUA, b); !ok {
					t.Fatal("the fast lane declined")
				}
			} else {
				err = c.Write(0, block.FUA, b)
			}
			if n := e.Count(block.OpWrite); !errors.Is(err, syscall.EIO) || n != 1 {
				t.Errorf("fast lane %v, cached %v: the write gave %v after %d calls", fast, cached, err, n)
			}
			if err := c.Flush(); !errors.Is(err, syscall.EIO) {
				t.Errorf("fast lane %v, cached %v: a flush after it gave %v", fast, cached, err)
			}
			if err := c.Write(0, 0, b); err != nil {
				t.Errorf("fast lane %v, cached %v: a plain write after it gave %v", fast, cached, err)
			}
		}
	}
}

// Thin storage that has no room for what the page cache has taken: the cache
// drops it and says so once.
func TestNoSpaceForThePageCacheIsNotForgotten(t *testing.T) {
	for _, cached := range []bool{false, true} {
		e, c := emulate(t, bt.EmulatorConfig{Limits: sectors()})
		e.Info().Cached = cached
		e.Inject(&bt.Fault{Rule: inject.Rule{Ops: bt.OpBit(block.OpFlush), Times: 1}, Err: syscall.ENOSPC})
		if err := c.Flush(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("cached %v: the first flush gave %v", cached, err)
		}
		if err := c.Flush(); cached != (err != nil) {
			t.Errorf("cached %v: the next flush gave %v", cached, err)
		}
	}
}
