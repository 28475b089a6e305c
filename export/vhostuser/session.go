package vhostuser

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/platter-storage/platter/internal/sys"
	"github.com/platter-storage/platter/queue"
	"github.com/platter-storage/platter/virtio"
	wire "github.com/platter-storage/platter/wire/vhostuser"
)

// maxRefused bounds the refused messages of one connection: a front end that
// goes on has lost its way.
const maxRefused = 16

// session is one front end from connect to end. All but what says otherwise
// belongs to the goroutine that reads its messages.
type session struct {
	d     *Device
	conn  *wire.Conn
	peer  string
	since time.Time
	log   *slog.Logger
	m     wire.Message

	protocol wire.Protocol // in force
	features uint64        // as the guest and the front end chose them
	chosen   bool          // they did
	status   uint8
	vrings   []vring

	regions []*region
	mem     *virtio.Map // of regions; nil before they came
	record  record
	dirty   dirtyLog

	wce      bool         // the cache mode: writeback
	told     bool         // the guest knows it
	flushed  uint64       // flushes of guests before this one: see proveFlush
	doubt    *time.Ticker // nil unless what the guest was told is in doubt
	heir     bool         // the record is a predecessor's, and says what the guest was told
	asked    bool         // the front end had no record and asked for one
	flushing bool         // what the queues go by

	channel *wire.Conn // for requests of ours; nil: none
	changed bool       // the guest does not know yet that the configuration changed
	refused int

	state atomic.Pointer[Status] // for others to read
}

func newSession(d *Device, c *net.UnixConn, peer string) *session {
	s := &session{
		d: d, conn: wire.NewConn(c), peer: peer, since: time.Now(),
		log:    d.log.With("front_end", peer),
		record: record{fd: -1}, wce: !d.cfg.Durable, vrings: make([]vring, d.cfg.Queues),
	}
	for i := range s.vrings {
		s.vrings[i] = vring{index: i, kick: -1, call: -1, err: -1}
	}
	s.publish()
	return s
}

// handlers serve the messages that wire/vhostuser knows.
var handlers = map[wire.Request]func(*session, *wire.Message) error{
	wire.GetFeatures:         (*session).getFeatures,
	wire.SetFeatures:         (*session).setFeatures,
	wire.SetOwner:            (*session).setOwner,
	wire.ResetOwner:          (*session).resetOwner,
	wire.SetMemTable:         (*session).setMemTable,
	wire.SetLogBase:          (*session).setLogBase,
	wire.SetLogFd:            (*session).setLogFd,
	wire.SetVringNum:         (*session).setVringNum,
	wire.SetVringAddr:        (*session).setVringAddr,
	wire.SetVringBase:        (*session).setVringBase,
	wire.GetVringBase:        (*session).getVringBase,
	wire.SetVringKick:        (*session).setVringFd,
	wire.SetVringCall:        (*session).setVringFd,
	wire.SetVringErr:         (*session).setVringFd,
	wire.GetProtocolFeatures: (*session).getProtocolFeatures,
	wire.SetProtocolFeatures: (*session).setProtocolFeatures,
	wire.GetQueueNum:         (*session).getQueueNum,
	wire.SetVringEnable:      (*session).setVringEnable,
	wire.SetBackendReqFd:     (*session).setBackendReqFd,
	wire.GetConfig:           (*session).getConfig,
	wire.SetConfig:           (*session).setConfig,
	wire.GetInflightFd:       (*session).getInflight,
	wire.SetInflightFd:       (*session).setInflight,
	wire.ResetDevice:         (*session).resetDevice,
	wire.GetMaxMemSlots:      (*session).getMaxMemSlots,
	wire.AddMemReg:           (*session).addMemReg,
	wire.RemMemReg:           (*session).remMemReg,
	wire.SetStatus:           (*session).setStatus,
	wire.GetStatus:           (*session).getStatus,
}

// event is what the session's goroutine waits for.
type event struct{ err error }

// run serves the front end until it leaves, misbehaves or is told to go. When
// it returns nothing of the front end's is mapped or open any more.
func (s *session) run() {
	s.d.arrived(s)
	messages, next := make(chan event), make(chan struct{})
	go s.read(messages, next)
	err := s.serve(messages, next)
	s.conn.Close()
	close(next)
	for range messages { // until the reader has ended
	}
	s.tellEnd(err)
	s.close()
}

// read reads a message whenever next says so, into s.m.
func (s *session) read(messages chan<- event, next <-chan struct{}) {
	defer close(messages)
	for {
		err := s.conn.Read(&s.m)
		messages <- event{err}
		if _, ok := <-next; !ok || err != nil {
			return
		}
	}
}

// serve handles messages, and changes of the configuration between them.
func (s *session) serve(messages <-chan event, next chan<- struct{}) error {
	for {
		select {
		case e := <-messages:
			if e.err != nil {
				return e.err
			}
			err := s.handle(&s.m)
			s.m.Fds.Close()
			s.publish()
			if err != nil {
				return err
			}
			next <- struct{}{}
		case <-s.d.resized:
			s.changed = true
			s.sendPending()
		case <-s.ticks():
			if err := s.proveFlush(); err != nil {
				return err
			}
			s.publish()
		}
	}
}

// errLeave ends a connection whose fault has been logged already.
var errLeave = errors.New("a message was refused")

// handle serves one message and answers it. An error ends the connection.
func (s *session) handle(m *wire.Message) error {
	s.log.Debug("vhost-user message", "message", m.Request.String(), "bytes", len(m.Payload), "descriptors", m.Fds.Len(), "need_reply", m.NeedReply())
	// "Multiple queue support": how many queues there are may be asked as soon
	// as the feature is on offer.
	err := m.Check(s.protocol | wire.ProtocolMQ)
	if err == nil {
		err = handlers[m.Request](s, m)
	}
	var broken *net.OpError
	switch {
	case errors.As(err, &broken):
		return fmt.Errorf("%v cannot be answered: %w", m.Request, err)
	case err != nil:
		return s.refuse(m, err)
	case m.NeedReply() && !s.answered(m):
		return s.conn.Ack(m, 0)
	}
	return nil
}

// answered reports whether the message has an answer of its own.
func (s *session) answered(m *wire.Message) bool {
	return m.Request.HasReply() || m.Request == wire.SetLogBase
}

// refuse tells whoever operates the server, and the front end where it can be
// told; where it cannot the connection ends, because it would go on in the
// belief that all is well.
func (s *session) refuse(m *wire.Message, cause error) error {
	var told error
	s.refused++
	then := "the front end was told, and goes on"
	switch {
	case s.refused > maxRefused:
		then, told = fmt.Sprintf("the connection is closed: more than %d messages were refused", maxRefused), errLeave
	case m.Request == wire.GetConfig: // an empty answer says so
		told = s.conn.Reply(m, nil)
	case m.NeedReply() && !m.Request.HasReply():
		told = s.conn.Ack(m, 1)
	default:
		then, told = "the connection is closed: the front end asked for no answer that could say so", errLeave
	}
	var named *wire.ErrMessage
	if errors.As(cause, &named) {
		cause = errors.New(named.Msg)
	}
	s.d.pace.Warn(s.log, "a message of the front end was refused", "message", m.Request.String(), "error", cause, "then", then)
	return told
}

// tellEnd logs how a front end left.
func (s *session) tellEnd(err error) {
	switch {
	case s.d.isClosing():
		s.log.Info("the front end was disconnected: the server stops")
	case errors.Is(err, io.EOF):
		s.d.pace.Info(s.log, "the front end has left")
	case errors.Is(err, errLeave):
	default:
		s.d.pace.Warn(s.log, "the front end is disconnected", "error", err)
	}
}

// setOwner begins a session: it has begun. ("VHOST_USER_SET_OWNER")
func (s *session) setOwner(*wire.Message) error { return nil }

// resetOwner disables all rings, as the specification recommends.
func (s *session) resetOwner(*wire.Message) error {
	for i := range s.vrings {
		s.vrings[i].enabled = false
	}
	return s.applyRings()
}

func (s *session) resetDevice(*wire.Message) error { return s.reset() }

// reset sets the device back to how it began: rings are stopped, once what is
// in flight has ended. The connection's own state stays: protocol features,
// memory, the channel for our requests. So does the cache mode, which a front
// end may have from us and keep. ("VHOST_USER_RESET_DEVICE", 2.4.1)
func (s *session) reset() error {
	for i := range s.vrings {
		v := &s.vrings[i]
		s.detach(v)
		v.dropKick()
		s.vrings[i] = vring{index: i, kick: -1, call: v.call, err: v.err, q: v.q, depth: v.depth}
	}
	s.record.close()
	s.dirty.close()
	s.features, s.chosen, s.status, s.flushing = 0, false, 0, false
	return nil
}

// setBackendReqFd takes the channel for requests of ours.
func (s *session) setBackendReqFd(m *wire.Message) error {
	c, err := sys.UnixConn(m.Fds.Take(0))
	if err != nil {
		return err
	}
	if s.channel != nil {
		s.channel.Close()
	}
	s.channel = wire.NewConn(c)
	return nil
}

// channelWait bounds how long a front end may keep us waiting to send it a
// message.
const channelWait = 2 * time.Second

// sendPending tells the guest that the configuration has changed, unless it
// knows, or the device is suspended. ("Suspended device state")
func (s *session) sendPending() {
	if !s.changed || s.channel == nil || s.protocol&wire.ProtocolConfig == 0 || s.running() == 0 {
		return
	}
	err := s.channel.SetWriteDeadline(time.Now().Add(channelWait))
	if err == nil {
		err = s.channel.Write(wire.Request(wire.BackendConfigChange), 0, nil)
	}
	if err != nil {
		s.log.Warn("the guest could not be told that the disk's size has changed", "error", err)
		s.channel.Close()
		s.channel = nil
		return
	}
	s.changed = false
	s.log.Info("the guest was told that the disk has another size", "bytes", s.d.cfg.Child.Size())
}

// running is how many rings run.
func (s *session) running() (n int) {
	for i := range s.vrings {
		if s.vrings[i].attached {
			n++
		}
	}
	return n
}

// broken reports whether a guest has damaged a ring.
func (s *session) broken() bool {
	for i := range s.vrings {
		if v := &s.vrings[i]; v.attached && v.q.Stats().State == queue.Broken {
			return true
		}
	}
	return false
}

// close ends what the front end started: queues once their requests have ended,
// then memory, then descriptors.
func (s *session) close() {
	s.settle()
	var signals []int
	for i := range s.vrings {
		for _, fd := range []int{s.vrings[i].call, s.vrings[i].err} {
			if fd >= 0 {
				signals = append(signals, fd)
			}
		}
	}
	stop := unstick(signals)
	for i := range s.vrings {
		if q := s.vrings[i].q; q != nil {
			if err := q.Close(context.Background()); err != nil {
				s.log.Warn("a queue has ended badly", "queue", i, "error", err)
			}
		}
	}
	stop()
	for _, r := range s.regions {
		r.unmap()
	}
	s.record.close()
	s.dirty.close()
	for i := range s.vrings {
		closeFd(s.vrings[i].kick)
		closeFd(s.vrings[i].call)
		closeFd(s.vrings[i].err)
	}
	if s.channel != nil {
		s.channel.Close()
	}
}
