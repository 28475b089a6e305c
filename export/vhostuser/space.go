package vhostuser

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/virtio"
	wire "github.com/platter-storage/platter/wire/vhostuser"
)

// What the configuration space promises, beside what the node's limits say.
const (
	// maxSegs is as the reference has it: what a ring of 128 takes with header
	// and status. maxSegBytes keeps maxSegs of them below block.MaxRequest.
	maxSegs     = 126
	maxSegBytes = 16 << 20

	// Ranges of one discard or write zeroes, and their length in bytes: the
	// edge splits what is too long for the node.
	maxRanges     = 32
	maxRangeBytes = 1 << 30
)

// limits are what requests of the guest are held against.
func (c *Config) limits() (sectors, ranges uint32) {
	return maxRangeBytes / virtio.SectorSize, maxRanges
}

// space is the configuration space as of now. (5.2.4)
func (c *Config) space(writeback bool) virtio.BlkConfig {
	size := max(c.Child.Size(), 0) / int64(c.BlockSize) * int64(c.BlockSize)
	lim := c.Child.Limits()
	blk := uint32(c.BlockSize)
	physical := max(blk, powerOfTwo(max(lim.PhysicalBlock, lim.WriteAlign, lim.ReadAlign)))
	sectors, ranges := c.limits()
	s := virtio.BlkConfig{
		Capacity: uint64(size) / virtio.SectorSize,
		SizeMax:  maxSegBytes, SegMax: uint32(min(maxSegs, max(c.QueueSize-2, 1))),
		BlkSize:          blk,
		PhysicalBlockExp: uint8(bits.TrailingZeros32(physical / blk)),
		MinIOSize:        uint16(physical / blk), OptIOSize: lim.OptTransfer / blk,
		NumQueues:         uint16(c.Queues),
		MaxDiscardSectors: sectors, MaxDiscardSeg: ranges,
		DiscardSectorAlignment: max(powerOfTwo(lim.DiscardAlign), blk) / virtio.SectorSize,
		MaxWriteZeroesSectors:  sectors, MaxWriteZeroesSeg: ranges, WriteZeroesMayUnmap: 1,
	}
	s.Cylinders, s.Heads, s.Sectors = virtio.BlkGeometry(s.Capacity)
	if writeback {
		s.Writeback = 1
	}
	return s
}

// powerOfTwo is the largest power of two up to n, at least 1.
func powerOfTwo(n uint32) uint32 { return 1 << (bits.Len32(max(n, 1)) - 1) }

// getConfig answers with as many bytes as were asked for, beyond the end of the
// space zeroes. ("VHOST_USER_GET_CONFIG")
func (s *session) getConfig(m *wire.Message) error {
	c, err := m.Config()
	if err != nil {
		return err
	}
	answer := wire.Config{Offset: c.Offset, Flags: c.Flags, Data: make([]byte, len(c.Data))}
	space := s.d.cfg.space(s.wce)
	if !space.Read(answer.Data, c.Offset) {
		return fmt.Errorf("offset %d is beyond the %d bytes of the configuration space", c.Offset, virtio.BlkConfigSize)
	}
	if covers(c, virtio.BlkConfigWriteback) && !s.told && s.doubt == nil {
		s.told = true
		s.keepMode()
		if err := s.applyWriteback(); err != nil {
			return err
		}
	}
	return s.conn.Reply(m, answer.Append(nil))
}

func covers(c wire.Config, at uint32) bool {
	return c.Offset <= at && at-c.Offset < uint32(len(c.Data))
}

// setConfig takes the one byte that a guest may write, and from a migration
// that byte among others. ("VHOST_USER_SET_CONFIG")
func (s *session) setConfig(m *wire.Message) error {
	c, err := m.Config()
	if err != nil {
		return err
	}
	switch {
	case c.Flags > wire.ConfigMigration:
		return fmt.Errorf("flags %#x are not known", c.Flags)
	case c.Flags != wire.ConfigMigration && (c.Offset != virtio.BlkConfigWriteback || len(c.Data) != 1):
		return fmt.Errorf("%d bytes at offset %d: a guest may write one byte, at offset %d (writeback)", len(c.Data), c.Offset, virtio.BlkConfigWriteback)
	case !covers(c, virtio.BlkConfigWriteback):
		return nil
	case c.Flags != wire.ConfigMigration && s.features&virtio.BlkFeatureConfigWCE == 0:
		return errors.New("the cache mode is changed without VIRTIO_BLK_F_CONFIG_WCE")
	}
	v := c.Data[virtio.BlkConfigWriteback-c.Offset]
	if v > 1 {
		return fmt.Errorf("cache mode %d: it is 0 (writethrough) or 1 (writeback)", v)
	}
	s.settle()
	s.wce, s.told = v == 1, true
	s.keepMode()
	return s.applyWriteback()
}

// writeback is whether the guest flushes what it wants to keep: then writes
// need not be durable by themselves. A guest that has not taken the flush, or
// has switched to writethrough, does not (5.2.6.2). Nor can one be relied on
// whose front end took it up from another process of ours and has not said what
// it was told.
func (s *session) writeback() bool {
	switch {
	case s.features&virtio.BlkFeatureFlush == 0:
		return false
	case s.features&virtio.BlkFeatureConfigWCE == 0:
		return true
	}
	return s.told && s.wce
}

// doubtEvery is how often it is looked whether a guest flushes.
const doubtEvery = time.Second

// meet looks at a ring that starts for the first time here. One that goes on
// from elsewhere has a guest that came by migration, or whose front end came
// without a record: what it was told of the cache mode, and may have switched
// since, was said to others.
func (s *session) meet(v *vring) error {
	first := v.q == nil && v.hasBase && v.base != virtio.StartBase(s.features)
	if !first || s.heir || s.doubt != nil || s.features&virtio.BlkFeatureConfigWCE == 0 || s.features&virtio.BlkFeatureFlush == 0 {
		return nil
	}
	s.log.Info("a guest goes on here that began elsewhere: each write is made durable until it flushes or says how it uses the cache", "queue", v.index)
	s.told, s.flushed = false, s.d.cfg.Group.Stats().Requests[block.OpFlush]
	s.keepMode()
	s.doubt = time.NewTicker(doubtEvery)
	return s.applyWriteback()
}

// proveFlush ends the doubt once the guest has flushed: in writethrough it has
// no reason to.
func (s *session) proveFlush() error {
	if s.d.cfg.Group.Stats().Requests[block.OpFlush] == s.flushed {
		return nil
	}
	s.wce, s.told = true, true
	s.keepMode()
	s.settle()
	return s.applyWriteback()
}

// settle ends the doubt.
func (s *session) settle() {
	if s.doubt != nil {
		s.doubt.Stop()
		s.doubt = nil
	}
}

// ticks are the times to look whether the guest flushes.
func (s *session) ticks() <-chan time.Time {
	if s.doubt == nil {
		return nil
	}
	return s.doubt.C
}

// applyWriteback tells the queues. What was written while the guest was
// flushing is made durable before it is told that it need not any more.
func (s *session) applyWriteback() error {
	on := s.writeback()
	if on == s.flushing {
		return nil
	}
	s.flushing = on
	used := false
	for i := range s.vrings {
		if q := s.vrings[i].q; q != nil {
			q.SetWriteback(on)
			used = true
		}
	}
	if on || !used {
		return nil
	}
	for i := range s.vrings {
		if v := &s.vrings[i]; v.attached {
			if err := v.q.Drain(context.Background()); err != nil {
				return err
			}
		}
	}
	return s.d.flush()
}

// flush makes all that was written durable.
func (d *Device) flush() error {
	if d.cfg.ReadOnly {
		return nil
	}
	rq := d.jobs.Begin()
	err := d.cfg.Child.Flush(rq)
	d.jobs.End(rq, block.OpFlush, 0, err)
	if err != nil && !block.IsNotSupported(err) {
		return fmt.Errorf("what was written before cannot be made durable: %w", err)
	}
	return nil
}
