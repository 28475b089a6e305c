package vhostuser

import (
	"encoding/binary"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/sys"
	"github.com/platter-storage/platter/virtio"
	wire "github.com/platter-storage/platter/wire/vhostuser"
)

// fake is a server that does what a test tells it to.
type fake struct {
	t        testing.TB
	socket   string
	features uint64
	protocol wire.Protocol
	space    func(*virtio.BlkConfig)
	// hear sees each message first, and answers true where it has dealt with
	// it; false and an error end the connection.
	hear func(c *wire.Conn, m *wire.Message) (bool, error)
	// kicked is called for each kick.
	kicked func(r *fakeRing)

	mu      sync.Mutex
	listens *net.UnixListener
	conns   []*wire.Conn
	served  sync.WaitGroup
	one     sync.Mutex // held while a connection is served: the next waits until nothing of it runs
}

// fakeRing is a ring as its server sees it, in raw bytes: split and direct or
// indirect.
type fakeRing struct {
	layout virtio.Layout
	mem    *virtio.Map
	ring   *virtio.Ring
	call   int
}

func newFake(t testing.TB) *fake {
	f := &fake{t: t, socket: filepath.Join(shortDir(t), "s"),
		features: virtio.FeatureVersion1 | wire.FeatureProtocol | virtio.BlkFeatureFlush | virtio.FeatureIndirectDesc | virtio.BlkFeatureSegMax,
		protocol: wire.ProtocolConfig | wire.ProtocolReplyAck}
	return f
}

// start listens; stop ends all and waits.
func (f *fake) start() {
	f.t.Helper()
	_ = unix.Unlink(f.socket)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: f.socket, Net: "unix"})
	if err != nil {
		f.t.Fatal(err)
	}
	f.listens = l
	f.served.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			conn := wire.NewConn(c)
			f.mu.Lock()
			f.conns = append(f.conns, conn)
			f.mu.Unlock()
			f.served.Go(func() { f.serve(conn) })
		}
	})
	f.t.Cleanup(f.stop)
}

func (f *fake) stop() {
	f.listens.Close()
	f.hangUp()
	f.served.Wait()
}

// hangUp ends all connections.
func (f *fake) hangUp() {
	f.mu.Lock()
	for _, c := range f.conns {
		c.Close()
	}
	f.conns = nil
	f.mu.Unlock()
}

// fakeSession is one connection of a fake.
type fakeSession struct {
	*fake
	conn     *wire.Conn
	features uint64
	regions  []virtio.Region
	size     int
	ring     fakeRing
	close    []func()
	kicks    sync.WaitGroup
}

func (f *fake) serve(c *wire.Conn) {
	s := &fakeSession{fake: f, conn: c}
	f.one.Lock()
	defer f.one.Unlock()
	defer func() {
		c.Close()
		for _, end := range s.close {
			end()
		}
		s.kicks.Wait()
		for _, r := range s.regions {
			unix.Munmap(r.Mem)
		}
	}()
	var m wire.Message
	for c.Read(&m) == nil {
		done, err := false, error(nil)
		if f.hear != nil {
			done, err = f.hear(c, &m)
		}
		if !done && err == nil {
			err = s.obey(&m)
		}
		if err == nil && !done && m.NeedReply() && !m.Request.HasReply() {
			err = c.Ack(&m, 0)
		}
		m.Fds.Close()
		if err != nil {
			return
		}
	}
}

func (s *fakeSession) obey(m *wire.Message) error {
	switch m.Request {
	case wire.GetFeatures:
		return s.conn.Ack(m, s.fake.features)
	case wire.SetFeatures:
		s.features, _ = m.U64()
	case wire.GetProtocolFeatures:
		return s.conn.Ack(m, uint64(s.protocol))
	case wire.GetQueueNum:
		return s.conn.Ack(m, 1)
	case wire.GetConfig:
		return s.config(m)
	case wire.SetMemTable:
		regions, err := m.MemTable(make([]wire.Region, 0, wire.MaxTableRegions))
		if err != nil {
			return err
		}
		b, err := unix.Mmap(m.Fds.Fd(0), 0, int(regions[0].Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		s.regions = append(s.regions, virtio.Region{Guest: regions[0].GuestAddr, User: regions[0].UserAddr, Mem: b})
	case wire.SetVringNum:
		v, _ := m.VringState()
		s.size = int(v.Num)
	case wire.SetVringAddr:
		return s.place(m)
	case wire.SetVringCall:
		s.ring.call = m.Fds.Take(0)
		s.close = append(s.close, func() { sys.CloseFd(s.ring.call) })
	case wire.SetVringKick:
		s.listenTo(m.Fds.Take(0))
	}
	return nil
}

func (s *fakeSession) config(m *wire.Message) error {
	c, err := m.Config()
	if err != nil {
		return err
	}
	space := virtio.BlkConfig{Capacity: 1 << 11, SegMax: 126, BlkSize: 512, SizeMax: 1 << 20, NumQueues: 1}
	if s.space != nil {
		s.space(&space)
	}
	answer := wire.Config{Offset: c.Offset, Data: make([]byte, len(c.Data))}
	space.Read(answer.Data, c.Offset)
	return s.conn.Reply(m, answer.Append(nil))
}

func (s *fakeSession) place(m *wire.Message) error {
	a, err := m.VringAddr()
	if err != nil {
		return err
	}
	desc, driver, device := virtio.AreaSizes(uint16(s.size), s.features)
	mem, err := virtio.NewMap(s.regions)
	if err != nil {
		return err
	}
	l := virtio.Layout{Size: uint16(s.size), Features: s.features, Desc: mem.User(a.Desc, uint64(desc)), Driver: mem.User(a.Avail, uint64(driver)), Device: mem.User(a.Used, uint64(device))}
	ring, err := virtio.NewRing(l, mem, virtio.Options{Base: virtio.StartBase(s.features)})
	s.ring.layout, s.ring.mem, s.ring.ring = l, mem, ring
	return err
}

// listenTo calls kicked for each kick.
func (s *fakeSession) listenTo(fd int) {
	end, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		s.t.Error(err)
		return
	}
	s.close = append(s.close, func() { _ = sys.SignalEvent(end) })
	s.kicks.Go(func() {
		defer unix.Close(fd)
		defer unix.Close(end)
		buf := make([]byte, 8)
		for {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(end), Events: unix.POLLIN}}
			if _, err := unix.Poll(p, -1); err != nil && err != unix.EINTR {
				s.t.Error(err)
				return
			}
			if p[1].Revents != 0 {
				return
			}
			if p[0].Revents != 0 {
				_, _ = unix.Read(fd, buf)
				s.kicked(&s.ring)
			}
		}
	})
}

// keeps is not a status: the request is not given back.
const keeps = 0xfe

// each serves every request that is there; serve fills in and what it answers
// is the status. Data is all in the first piece.
func (r *fakeRing) each(serve func(op virtio.BlkOp, sector uint64, data [][]byte) byte) {
	var c virtio.Chain
	for {
		ok, err := r.ring.Pop(&c)
		if !ok || err != nil {
			break
		}
		head := c.Out[0]
		data := c.Out[1:]
		if len(c.In) > 1 {
			data = c.In[:len(c.In)-1]
		}
		last := c.In[len(c.In)-1]
		st := serve(virtio.BlkOp(binary.LittleEndian.Uint32(head)), binary.LittleEndian.Uint64(head[8:]), data)
		if st == keeps {
			continue
		}
		last[len(last)-1] = st
		r.ring.Push(c.Handle, uint32(c.InBytes))
	}
	r.ring.Publish()
	r.tell()
}

func (r *fakeRing) tell() { _ = sys.SignalEvent(r.call) }

// used writes entry i of the used ring, and setUsed its index, whatever the
// truth. (2.7.8)
func (r *fakeRing) used(i int, id, n uint32) {
	b := r.layout.Device[4+8*(i%int(r.layout.Size)):]
	binary.LittleEndian.PutUint32(b, id)
	binary.LittleEndian.PutUint32(b[4:], n)
}

func (r *fakeRing) setUsed(i uint16) { binary.LittleEndian.PutUint16(r.layout.Device[2:], i) }

// open opens the fake's disk.
func (f *fake) config(vals block.Values) block.Values {
	all := block.Values{"driver": "vhostuser", "path": f.socket}
	for k, v := range vals {
		all[k] = v
	}
	return all
}
