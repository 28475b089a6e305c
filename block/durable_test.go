package block_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/inject"
)

// failFUA opens an emulator whose next write fails with EIO, and, if flushFails,
// whose flushes do too; it makes one FUA write in the lane that is asked for.
func failFUA(t *testing.T, cached, fast, flushFails bool) (c *bt.Client, err error) {
	e, c := emulate(t, bt.EmulatorConfig{Limits: sectors(), Fast: fast, WriteFlags: block.FUA})
	e.Info().Cached = cached
	e.Inject(&bt.Fault{Rule: inject.Rule{Ops: bt.OpBit(block.OpWrite), Times: 1}, Err: syscall.EIO})
	if flushFails {
		e.Inject(&bt.Fault{Rule: inject.Rule{Ops: bt.OpBit(block.OpFlush), Times: 1}, Err: syscall.EIO})
	}
	b := bt.Pattern(bt.Memory(t, 4096), 1)
	if !fast {
		return c, c.Write(0, block.FUA, b)
	}
	ok, err := c.WriteFast(0, block.FUA, b)
	if !ok {
		t.Fatal("the fast lane declined")
	}
	return c, err
}

// In the page cache a FUA write that fails may have consumed the only report of
// another write's loss: what is lost must not be promised by the next flush.
func TestFailedFUAInThePageCacheIsNotForgotten(t *testing.T) {
	for _, fast := range []bool{false, true} {
		c, err := failFUA(t, true, fast, false)
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("fast lane %v: the write gave %v", fast, err)
		}
		if err := c.Flush(); !errors.Is(err, syscall.EIO) {
			t.Errorf("fast lane %v: a flush after it gave %v", fast, err)
		}
	}
}

// Without a page cache the storage is asked by a flush.
func TestFailedFUAIsFollowedByAFlush(t *testing.T) {
	for _, fast := range []bool{false, true} {
		for _, flushFails := range []bool{false, true} {
			c, err := failFUA(t, false, fast, flushFails)
			// A fast-lane write whose flush works is tried once more.
			if mended := fast && !flushFails; mended != (err == nil) {
				t.Errorf("fast lane %v, flush fails %v: the write gave %v", fast, flushFails, err)
			}
			if err := c.Flush(); flushFails != errors.Is(err, syscall.EIO) {
				t.Errorf("fast lane %v, flush fails %v: the next flush gave %v", fast, flushFails, err)
			}
		}
	}
}
