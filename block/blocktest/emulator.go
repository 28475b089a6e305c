package blocktest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/inject"
	"github.com/platter-storage/platter/internal/sys"
)

// EmulatorConfig says what storage to emulate. The zero value is a disk of no
// size that takes anything.
type EmulatorConfig struct {
	Size int64
	// Limits are published and enforced; nil means block.ByteLimits.
	Limits *block.Limits
	// WriteFlags and ZeroFlags are served natively.
	WriteFlags, ZeroFlags block.Flags
	// NoZero and NoDiscard: write zeroes and discard answer ENOTSUP.
	NoZero, NoDiscard bool
	ReadOnly          bool
	// Fast offers the fast lane: requests map to a file that moves bytes on
	// goroutines of its own.
	Fast bool
	// Seed is that of the faults' chances.
	Seed uint64
}

// Call is a request as it reached the emulator.
type Call struct {
	Op    block.Op
	Off   int64
	Len   int64
	Segs  int
	Flags block.Flags
}

// Emulator is storage in memory that asserts that each request meets its
// limits, and that fails and stalls as told.
type Emulator struct {
	t    testing.TB
	info block.Info
	cfg  EmulatorConfig
	rand func() uint64
	cost *Cost // nil: requests take no time

	inFlight atomic.Int64

	// stored guards the content and what is durable of it: reads share it.
	stored  sync.RWMutex
	data    []byte
	durable []byte

	mu     sync.Mutex
	past   []*block.Limits // every set ever published
	actual *block.Limits   // what the storage enforces now
	faults []*Fault
	calls  []Call
	watch  uint32 // memory of a single element must be aligned to it
	silent bool   // calls are not kept
	count  int
	period int // every so many calls hook is called
	hook   func(n int)
}

// NewEmulator makes the storage; open it with Attach.
func NewEmulator(t testing.TB, cfg EmulatorConfig) *Emulator {
	if cfg.Limits == nil {
		cfg.Limits = block.ByteLimits()
	}
	e := &Emulator{
		t: t, cfg: cfg, rand: NewRand(cfg.Seed),
		data: make([]byte, cfg.Size), durable: make([]byte, cfg.Size),
		past: []*block.Limits{cfg.Limits}, actual: cfg.Limits,
	}
	e.info = block.Info{
		Driver: "emulator", Filename: "emulated storage", ReadOnly: cfg.ReadOnly,
		WriteFlags: cfg.WriteFlags, ZeroFlags: cfg.ZeroFlags, MultiConn: true,
	}
	if cfg.Fast {
		e.info.Abilities.Mapper = e
	}
	e.info.SetSize(cfg.Size)
	e.info.SetLimits(cfg.Limits)
	return e
}

// Info is the node's.
func (e *Emulator) Info() *block.Info { return &e.info }

// SetLimits changes what the storage accepts, as a loop device whose block
// size is set anew. Unless publish, the node finds out when it refuses a
// request.
func (e *Emulator) SetLimits(l block.Limits, publish bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l.Generation = e.actual.Generation + 1
	e.actual = &l
	if publish {
		e.publish()
	}
}

// publish tells the edges the limits in force. Called with mu held.
func (e *Emulator) publish() {
	if e.past[len(e.past)-1] != e.actual {
		e.past = append(e.past, e.actual)
		e.info.SetLimits(e.actual)
	}
}

// WatchMemory asserts from now on that the memory of all requests is aligned to
// align, though the limits ask for less.
func (e *Emulator) WatchMemory(align uint32) {
	e.mu.Lock()
	e.watch = align
	e.mu.Unlock()
}

// Calls are the requests that came, in the order in which they came.
func (e *Emulator) Calls() []Call {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]Call(nil), e.calls...)
}

// Count is the number of requests of an operation.
func (e *Emulator) Count(op block.Op) (n int) {
	for _, c := range e.Calls() {
		if c.Op == op {
			n++
		}
	}
	return n
}

// KeepCalls says whether Calls and Count are to know what comes from now on.
func (e *Emulator) KeepCalls(keep bool) {
	e.mu.Lock()
	e.silent = !keep
	e.mu.Unlock()
}

// OnCall calls f with 1, 2, 3 … before each period-th request is served.
func (e *Emulator) OnCall(period int, f func(n int)) {
	e.mu.Lock()
	e.period, e.hook = period, f
	e.mu.Unlock()
}

// ForgetCalls starts the record anew.
func (e *Emulator) ForgetCalls() {
	e.mu.Lock()
	e.calls = nil
	e.mu.Unlock()
}

// Content is a copy of what is stored.
func (e *Emulator) Content() []byte { return e.Part(0, int64(len(e.data))) }

// Part is a copy of what is stored in a range.
func (e *Emulator) Part(off, n int64) []byte {
	e.stored.RLock()
	defer e.stored.RUnlock()
	return append([]byte(nil), e.data[off:off+n]...)
}

// Durable is a copy of what would be left if the power went.
func (e *Emulator) Durable() []byte {
	e.stored.RLock()
	defer e.stored.RUnlock()
	return append([]byte(nil), e.durable...)
}

// Fill sets the content, durably, without a request.
func (e *Emulator) Fill(b []byte) {
	e.stored.Lock()
	copy(e.data, b)
	copy(e.durable, e.data)
	e.stored.Unlock()
}

// begin counts and checks a request, and strikes it with the fault that is due.
func (e *Emulator) begin(r request) (*Fault, error) {
	e.inFlight.Add(1)
	e.note(r)
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, x := range r.v {
		if e.watch != 0 && sys.Addr(x)&uintptr(e.watch-1) != 0 {
			e.t.Errorf("%s of %d bytes at %d: memory at %#x is not aligned to %d", r.op, r.n, r.off, sys.Addr(x), e.watch)
		}
	}
	if why := e.violation(r, e.actual); why != "" {
		return nil, e.refuse(r, why)
	}
	for _, f := range e.faults {
		if f.Strikes(uint8(r.op), r.off, r.n, e.rand) {
			return f, nil
		}
	}
	return nil, nil
}

// note counts a request, and calls the hook that is due.
func (e *Emulator) note(r request) {
	e.mu.Lock()
	if !e.silent {
		e.calls = append(e.calls, Call{r.op, r.off, r.n, len(r.v), r.fl})
	}
	e.count++
	hook := e.hook
	n := e.count / max(e.period, 1)
	due := hook != nil && e.count%e.period == 0
	e.mu.Unlock()
	if due {
		hook(n)
	}
}

// refuse answers a request that the storage does not take: with an error like
// real storage's if it met limits that were published once, else by failing
// the test. Called with mu held.
func (e *Emulator) refuse(r request, why string) error {
	for _, l := range e.past {
		if l != e.actual && e.violation(r, l) == "" {
			e.publish()
			return fmt.Errorf("%w (%s)", block.ErrLimitsChanged, why)
		}
	}
	e.t.Errorf("the edge let through what the storage cannot take: %v", errViolation{r, why})
	return syscall.EINVAL
}

func (e *Emulator) end() { e.inFlight.Add(-1) }

// serve runs a request: f moves the bytes.
func (e *Emulator) serve(rq *block.Req, r request, f func(r request)) error {
	fault, err := e.begin(r)
	defer e.end()
	if err != nil {
		return err
	}
	if e.cost != nil && len(r.v) > 0 {
		e.cost.charge(r)
	}
	if fault == nil {
		f(r)
		return nil
	}
	if err := fault.pause(rq); err != nil {
		return err
	}
	if fault.Err == nil {
		f(r)
		return nil
	}
	if fault.Torn > 0 && r.n > 0 {
		f(r.head(min(fault.Torn, r.n)))
	}
	return fault.Err
}

// Preadv is the node's.
func (e *Emulator) Preadv(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	return e.serve(rq, request{block.OpRead, off, v.Len(), v, fl}, e.load)
}

func (e *Emulator) load(r request) {
	e.stored.RLock()
	defer e.stored.RUnlock()
	r.v.CopyIn(e.data[r.off:r.off+r.n], 0)
}

// Pwritev is the node's.
func (e *Emulator) Pwritev(rq *block.Req, off int64, v block.Vec, fl block.Flags) error {
	return e.serve(rq, request{block.OpWrite, off, v.Len(), v, fl}, e.store)
}

func (e *Emulator) store(r request) {
	e.stored.Lock()
	defer e.stored.Unlock()
	r.v.CopyOut(e.data[r.off:r.off+r.n], 0)
	e.persist(r)
}

// persist makes a request's range durable if it asks for it.
func (e *Emulator) persist(r request) {
	if r.fl&block.FUA != 0 {
		copy(e.durable[r.off:r.off+r.n], e.data[r.off:])
	}
}

// WriteZeroes is the node's.
func (e *Emulator) WriteZeroes(rq *block.Req, off, n int64, fl block.Flags) error {
	if e.cfg.NoZero {
		return block.ErrNotSupported
	}
	return e.serve(rq, request{block.OpZero, off, n, nil, fl}, e.erase)
}

func (e *Emulator) erase(r request) {
	e.stored.Lock()
	defer e.stored.Unlock()
	clear(e.data[r.off : r.off+r.n])
	e.persist(r)
}

// Discard is the node's. What was discarded reads as zeroes.
func (e *Emulator) Discard(rq *block.Req, off, n int64) error {
	if e.cfg.NoDiscard {
		return block.ErrNotSupported
	}
	return e.serve(rq, request{block.OpDiscard, off, n, nil, 0}, e.erase)
}

// Flush is the node's: what was stored when it began is durable.
func (e *Emulator) Flush(rq *block.Req) error {
	return e.serve(rq, request{op: block.OpFlush}, func(request) {
		e.stored.Lock()
		copy(e.durable, e.data)
		e.stored.Unlock()
	})
}

// statusUnit is the least granularity of BlockStatus.
const statusUnit = 4096

// BlockStatus is the node's: blocks of zeroes are told from others.
func (e *Emulator) BlockStatus(rq *block.Req, off, n int64) (x block.Extent, err error) {
	err = e.serve(rq, request{block.OpStatus, off, n, nil, 0}, func(r request) {
		e.stored.RLock()
		defer e.stored.RUnlock()
		x = e.extent(r.off, r.off+r.n)
	})
	return x, err
}

func (e *Emulator) extent(off, end int64) block.Extent {
	x := block.Extent{Allocated: true, Host: -1}
	at, unit := off, max(statusUnit, int64(e.info.Limits().ReadAlign))
	for at < end {
		next := min((at/unit+1)*unit, end)
		zero := allZero(e.data[at:next])
		if at > off && zero != x.Zero {
			break
		}
		x.Zero, x.Data = zero, !zero
		at = next
	}
	x.Len, x.EOF = at-off, at == e.info.Size()
	return x
}

// Truncate is the node's. It must be alone.
func (e *Emulator) Truncate(rq *block.Req, size int64, _ block.Prealloc) error {
	return e.serve(rq, request{op: block.OpTruncate}, func(request) {
		if n := e.inFlight.Load(); n != 1 {
			e.t.Errorf("truncate with %d other requests in flight", n-1)
		}
		e.stored.Lock()
		defer e.stored.Unlock()
		e.data = resized(e.data, size)
		e.durable = resized(e.durable, size)
		e.info.SetSize(size)
	})
}

func resized(b []byte, size int64) []byte {
	r := make([]byte, size)
	copy(r, b)
	return r
}

// Close is the node's: nothing may be in flight.
func (e *Emulator) Close() error {
	if n := e.inFlight.Load(); n != 0 {
		e.t.Errorf("close with %d requests in flight", n)
	}
	return nil
}

// Fault is what happens to requests that its rule strikes.
type Fault struct {
	inject.Rule
	// Err is the answer; nil only delays.
	Err error
	// Torn is how many bytes are moved before the error, or in the fast
	// lane, where Err is nil, the whole short result.
	Torn int64
	// DelayNs comes before the answer.
	DelayNs int64
	// stall, if not nil, holds the request up.
	stall *Stall
}

// Inject adds a fault. Of several that strike, the first added does.
func (e *Emulator) Inject(f *Fault) *Fault {
	e.mu.Lock()
	e.faults = append(e.faults, f)
	e.mu.Unlock()
	return f
}

// Heal removes all faults.
func (e *Emulator) Heal() {
	e.mu.Lock()
	e.faults = nil
	e.mu.Unlock()
}

// OpBit is the operation's bit for Fault.Ops.
func OpBit(op block.Op) uint32 { return 1 << op }

// pause takes the fault's time.
func (f *Fault) pause(rq *block.Req) error {
	if f.stall != nil {
		f.stall.hold()
	}
	if f.DelayNs == 0 {
		return nil
	}
	return rq.Sleep(f.DelayNs)
}

// Stall holds requests up until it is released.
type Stall struct {
	held    chan struct{}
	release chan struct{}
	once    sync.Once
}

// Stall makes requests that touch the range stick in the storage: n of them,
// all if n is 0.
func (e *Emulator) Stall(op block.Op, off, length int64, n uint64) *Stall {
	s := &Stall{held: make(chan struct{}, 1<<16), release: make(chan struct{})}
	e.Inject(&Fault{Rule: inject.Rule{Ops: OpBit(op), Off: off, Len: length, Times: n}, stall: s})
	e.t.Cleanup(s.Release)
	return s
}

func (s *Stall) hold() {
	s.held <- struct{}{}
	<-s.release
}

// Held waits until one more request sticks.
func (s *Stall) Held() { <-s.held }

// Release lets all go on, and later ones pass.
func (s *Stall) Release() { s.once.Do(func() { close(s.release) }) }
