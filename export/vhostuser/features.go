package vhostuser

import (
	"fmt"
	"strings"

	"github.com/platter-storage/platter/virtio"
	wire "github.com/platter-storage/platter/wire/vhostuser"
)

// protocolOffered are the protocol features that a front end may choose from.
// ("Protocol features")
const protocolOffered = wire.ProtocolMQ | wire.ProtocolLogShmfd | wire.ProtocolReplyAck | wire.ProtocolBackendReq |
	wire.ProtocolConfig | wire.ProtocolBackendSendFd | wire.ProtocolInflightShmfd | wire.ProtocolResetDevice |
	wire.ProtocolConfigureMemSlots | wire.ProtocolStatus

// transportFeatures are ours, not the guest's: they change while rings run.
const transportFeatures = wire.FeatureLogAll | wire.FeatureProtocol

// offered are the features that a front end may choose from. Secure erase and
// lifetime are not among them: no storage has them.
func (c *Config) offered() uint64 {
	f := virtio.FeatureVersion1 | virtio.FeatureIndirectDesc | virtio.FeatureEventIdx | virtio.FeatureRingPacked |
		virtio.BlkFeatureSizeMax | virtio.BlkFeatureSegMax | virtio.BlkFeatureGeometry | virtio.BlkFeatureBlkSize |
		virtio.BlkFeatureFlush | virtio.BlkFeatureTopology | virtio.BlkFeatureConfigWCE | virtio.BlkFeatureMQ |
		transportFeatures
	if c.NoPacked {
		f &^= virtio.FeatureRingPacked
	}
	if c.InOrder {
		f |= virtio.FeatureInOrder
	}
	if c.ReadOnly {
		return f | virtio.BlkFeatureRO
	}
	return f | virtio.BlkFeatureDiscard | virtio.BlkFeatureWriteZeroes
}

func (s *session) getFeatures(m *wire.Message) error { return s.conn.Ack(m, s.d.cfg.offered()) }

func (s *session) getProtocolFeatures(m *wire.Message) error {
	return s.conn.Ack(m, uint64(protocolOffered))
}

func (s *session) setProtocolFeatures(m *wire.Message) error {
	v, err := m.U64()
	if err != nil {
		return err
	}
	if more := wire.Protocol(v) &^ protocolOffered; more != 0 {
		return fmt.Errorf("protocol features that were not offered: %v", more)
	}
	s.protocol = wire.Protocol(v)
	return nil
}

// setFeatures takes what the guest and the front end have chosen. While a ring
// runs only the log may be switched, which a migration does.
func (s *session) setFeatures(m *wire.Message) error {
	v, err := m.U64()
	switch {
	case err != nil:
		return err
	case v&^s.d.cfg.offered() != 0:
		return fmt.Errorf("features that were not offered: bits %s", bitList(v&^s.d.cfg.offered()))
	case (v^s.features)&^transportFeatures != 0 && s.running() > 0:
		return fmt.Errorf("features change (bits %s) while %d rings run: stop them first with GET_VRING_BASE",
			bitList((v^s.features)&^transportFeatures), s.running())
	}
	s.features, s.chosen = v, true
	if v&wire.FeatureProtocol == 0 {
		// "Ring states": without the feature there is nobody to enable them.
		for i := range s.vrings {
			s.vrings[i].enabled = true
		}
	}
	if err := s.applyWriteback(); err != nil {
		return err
	}
	return s.applyRings()
}

// applyRings tells running queues what may have changed: the log, and whether
// they are enabled.
func (s *session) applyRings() error {
	for i := range s.vrings {
		v := &s.vrings[i]
		if !v.attached {
			continue
		}
		if err := v.q.SetLog(s.activeLog(), v.ringLog(s)); err != nil {
			return err
		}
		if err := v.enable(); err != nil {
			return err
		}
	}
	return nil
}

// bitList names bits by their numbers.
func bitList(v uint64) string {
	var list []string
	for i := range 64 {
		if v>>i&1 != 0 {
			list = append(list, fmt.Sprint(i))
		}
	}
	return strings.Join(list, ", ")
}

// statusNeedsReset is DEVICE_NEEDS_RESET. (2.1)
const statusNeedsReset = 0x40

// setStatus takes the status byte that the guest has written, and which front
// ends write themselves as well. Zero stops all rings, once what is in flight
// has ended, and loses nothing: QEMU 7.2 writes it when a machine pauses, and
// only then asks with GET_VRING_BASE where the rings stopped.
func (s *session) setStatus(m *wire.Message) error {
	v, err := m.U64()
	if err != nil {
		return err
	}
	if v > 0xff {
		return fmt.Errorf("status %#x: it is one byte", v)
	}
	if s.status = uint8(v); v == 0 {
		for i := range s.vrings {
			s.detach(&s.vrings[i])
			s.vrings[i].dropKick()
		}
	}
	return nil
}

func (s *session) getStatus(m *wire.Message) error {
	st := s.status
	if s.broken() {
		st |= statusNeedsReset
	}
	return s.conn.Ack(m, uint64(st))
}
