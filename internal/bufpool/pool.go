// Package bufpool has the memory for bouncing, padding and copying: buffers
// outside the Go heap, aligned well, within one limit of bytes, handed out
// first come first served.
//
// The memory is one contiguous range, backed by huge pages where there are
// any, and every page of it is written once before its first use, because
// untouched memory is the shared page of zeroes, which some clients (NFS)
// cannot join into one request. The pool does not clear a buffer between two
// owners: who gets one must not show a byte of it that he did not write.
//
// Buffers come in five classes. Each class has a small stack of free buffers
// under a lock of its own; behind them is a four-way buddy allocator under one
// lock, which also keeps the queue of waiters. Lock order: Pool.mu, then one
// class.mu.
package bufpool

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/platter-storage/platter/internal/sys"
)

// Sizes of buffers.
const (
	MinBuf = 4 << 10 // smallest class, if the alignment allows it
	MaxBuf = 1 << 20 // largest class, and the most one Get may ask for

	// DefaultLimit bounds a pool whose Config has no limit.
	DefaultLimit = 64 << 20
	// MaxLimit is the most memory a pool takes.
	MaxLimit = 64 << 30

	numClasses = 5  // 4K 16K 64K 256K 1M
	unitShift  = 12 // a unit is the smallest class
	maxCached  = 256
)

// Config describes a pool.
type Config struct {
	// Limit is the most memory in bytes, rounded down to whole MiB and to at
	// least one MiB. 0 means DefaultLimit.
	Limit int64
	// Align is what each buffer's address is a multiple of: a power of two up
	// to MaxBuf, raised to 4096 and to the page size if it is less.
	Align int
	// Commit is how many bytes are backed by memory from the start (rounded
	// up, within Limit): what Arenas gives for registration with a ring. The
	// rest follows as it is needed.
	Commit int64
}

// Waiter is a place in the queue for a buffer. It is its owner's, who keeps it
// and uses it again and again; while it is queued only Cancel may be called.
type Waiter struct {
	// Buf is the buffer, once Get has returned true or Ready has been called.
	Buf []byte
	// Ready is called when Buf has been set after a Get that returned false.
	// It runs within some other owner's Put, with no lock held: it must not
	// block and should hand the work on.
	Ready func(*Waiter)

	n          int
	class      uint8
	queued     bool // guarded by Pool.mu, like the links
	next, prev *Waiter
}

// Stats are a pool's figures. Sizes are in bytes, counted by class size.
type Stats struct {
	Limit, Committed int64
	InUse, Peak      int64
	Waits            uint64 // Gets that had to wait
	Waiting          int    // of them, now
}

// class is the stack of free buffers of one size.
type class struct {
	mu   sync.Mutex
	free []uint32 // first units; its capacity bounds the stack
	_    [64]byte // keeps one class's lock out of another's cache line
}

// Pool hands out buffers. It is safe for concurrent use.
type Pool struct {
	classes [numClasses]class
	waiting atomic.Bool // somebody is queued, or about to be: class stacks are out of use

	base     uintptr
	mem      []byte
	mapping  []byte
	align    int
	minClass uint8
	// state has what each unit is: see state.go. Owners and the class stacks
	// change it by compare and swap, so that a second Put is seen.
	state []atomic.Uint32

	inUse, peak atomic.Int64

	mu         sync.Mutex
	buddy      buddy
	head, tail *Waiter
	queueLen   int
	waits      uint64
}

// New makes a pool. It panics on an alignment that is no power of two or
// larger than MaxBuf, and on a limit above MaxLimit: mistakes of the program.
// If the system gives no mapping, the memory comes from the Go heap.
func New(cfg Config) *Pool {
	limit := cfg.Limit
	if limit == 0 {
		limit = DefaultLimit
	}
	limit = max(limit&^(MaxBuf-1), MaxBuf)
	align := max(cfg.Align, MinBuf, sys.PageSize())
	if align&(align-1) != 0 || align > MaxBuf || limit > MaxLimit {
		panic(fmt.Sprintf("bufpool: alignment %d (power of two up to %d), limit %d (up to %d)", align, MaxBuf, limit, int64(MaxLimit)))
	}
	mem, mapping, err := sys.MapAligned(int(limit), sys.HugePage)
	if err != nil {
		mapping = make([]byte, limit+sys.HugePage)
		skip := int(-sys.Addr(mapping) & (sys.HugePage - 1))
		mem, mapping = mapping[skip:skip+int(limit)], nil
	}
	_ = sys.AdviseHuge(mem) // advice: without huge pages the pool works as well
	p := &Pool{base: sys.Addr(mem), mem: mem, mapping: mapping, align: align, minClass: classOf(align)}
	p.state = make([]atomic.Uint32, limit>>unitShift)
	p.buddy.init(p.state)
	for c := range p.classes {
		p.classes[c].free = make([]uint32, 0, min(max(int(limit/16)/sizeOf(uint8(c)), 1), maxCached))
	}
	for int64(p.buddy.committed) < min(cfg.Commit, limit) {
		p.commit()
	}
	return p
}

// Align is what the address of every buffer is a multiple of.
func (p *Pool) Align() int { return p.align }

// classOf is the class of a buffer of n bytes, n up to MaxBuf.
func classOf(n int) uint8 {
	if n <= MinBuf {
		return 0
	}
	return uint8((bits.Len(uint(n-1)) - unitShift + 1) / 2)
}

// sizeOf is the size in bytes of a class's buffers.
func sizeOf(c uint8) int { return MinBuf << (2 * c) }

// Get asks for a buffer of n bytes. It returns true with w.Buf set (length n,
// capacity that of the class), or false: w is queued, behind everybody who
// asked before, and w.Ready will be called. Do not wait for one buffer while
// holding another: two who do that wait for ever. Ask for both in one.
func (p *Pool) Get(w *Waiter, n int) bool {
	c := p.classFor(n)
	w.n, w.class = n, c
	if u, ok := p.pop(c); ok {
		p.grant(w, u)
		return true
	}
	return p.getSlow(w)
}

func (p *Pool) classFor(n int) uint8 {
	if n < 0 || n > MaxBuf {
		panic(fmt.Sprintf("bufpool: a buffer of %d bytes was asked for, the limit is %d: split the request", n, MaxBuf))
	}
	return max(classOf(n), p.minClass)
}

// pop takes a buffer from the class's stack, unless somebody waits: then all
// go through the queue.
func (p *Pool) pop(c uint8) (u uint32, ok bool) {
	cl := &p.classes[c]
	cl.mu.Lock()
	if last := len(cl.free) - 1; last >= 0 && !p.waiting.Load() {
		u, ok = cl.free[last], true
		cl.free = cl.free[:last]
	}
	cl.mu.Unlock()
	return u, ok
}

// grant gives the buffer at unit u to w.
func (p *Pool) grant(w *Waiter, u uint32) {
	size := sizeOf(w.class)
	p.state[u].Store(used(w.class))
	off := int(u) << unitShift
	w.Buf = p.mem[off : off+w.n : off+size]
	now := p.inUse.Add(int64(size))
	for peak := p.peak.Load(); now > peak && !p.peak.CompareAndSwap(peak, now); {
		peak = p.peak.Load()
	}
}

func (p *Pool) getSlow(w *Waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.queued {
		panic("bufpool: Get with a Waiter that is queued already")
	}
	if p.head == nil {
		if u, ok := p.alloc(w.class); ok {
			p.grant(w, u)
			return true
		}
		p.waiting.Store(true) // from here on nothing enters a stack
		p.drain()
		if u, ok := p.alloc(w.class); ok {
			p.waiting.Store(false)
			p.grant(w, u)
			return true
		}
	}
	if w.Ready == nil {
		panic("bufpool: Get must wait and the Waiter has no Ready")
	}
	w.Buf = nil
	p.enqueue(w)
	return false
}

// alloc takes a buffer from the buddy, with more memory if need be. Under mu.
func (p *Pool) alloc(c uint8) (uint32, bool) {
	for {
		if u, ok := p.buddy.alloc(c); ok {
			return u, true
		}
		if !p.commit() {
			return 0, false
		}
	}
}

// commit backs the next piece of the range with memory: false at the limit.
// A huge page at a time, or what is left.
func (p *Pool) commit() bool {
	from := p.buddy.committed
	to := min(from+sys.HugePage, len(p.mem))
	if from == to {
		return false
	}
	sys.Touch(p.mem[from:to])
	p.buddy.extend(to)
	return true
}

// drain moves what lies in the stacks back to the buddy. Under mu.
func (p *Pool) drain() {
	for c := range p.classes {
		cl := &p.classes[c]
		cl.mu.Lock()
		for _, u := range cl.free {
			p.buddy.release(uint8(c), u)
		}
		cl.free = cl.free[:0]
		cl.mu.Unlock()
	}
}

// Put gives a buffer back: the slice that Get set, or any slice that starts
// where it starts. It panics on a buffer that is not the pool's or has been
// given back already.
func (p *Pool) Put(buf []byte) {
	u, c := p.reclaim(buf)
	p.inUse.Add(-int64(sizeOf(c)))
	cl := &p.classes[c]
	cl.mu.Lock()
	if !p.waiting.Load() && len(cl.free) < cap(cl.free) {
		cl.free = append(cl.free, u)
		cl.mu.Unlock()
		return
	}
	cl.mu.Unlock()
	p.mu.Lock()
	p.buddy.release(c, u)
	granted := p.serve()
	p.mu.Unlock()
	callReady(granted)
}

// reclaim takes buf out of its owner's hands.
func (p *Pool) reclaim(buf []byte) (u uint32, c uint8) {
	off := sys.Addr(buf) - p.base
	if off >= uintptr(len(p.mem)) || off&(MinBuf-1) != 0 {
		panic(fmt.Sprintf("bufpool: Put of %d bytes at %#x, which is not the start of a buffer of this pool", len(buf), sys.Addr(buf)))
	}
	u = uint32(off >> unitShift)
	st := p.state[u].Load()
	c = classIn(st)
	if !isUsed(st) || !p.state[u].CompareAndSwap(st, cached(c)) {
		panic(fmt.Sprintf("bufpool: second Put of the buffer at %#x, or Put of a part of one", sys.Addr(buf)))
	}
	return u, c
}

// Arenas are the ranges that are backed by memory now, for registration with
// a ring. Later growth is not in them: see Config.Commit.
func (p *Pool) Arenas() [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.buddy.committed == 0 {
		return nil
	}
	return [][]byte{p.mem[:p.buddy.committed:p.buddy.committed]}
}

// Stats returns the figures of this moment.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{
		Limit: int64(len(p.mem)), Committed: int64(p.buddy.committed),
		InUse: p.inUse.Load(), Peak: p.peak.Load(),
		Waits: p.waits, Waiting: p.queueLen,
	}
}

// Close gives the memory back to the system. It panics if a buffer is out or
// somebody waits: the memory would be taken from under him.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.inUse.Load(); n != 0 || p.head != nil {
		panic(fmt.Sprintf("bufpool: Close with %d bytes in use and %d waiting", n, p.queueLen))
	}
	if p.mapping == nil {
		return nil
	}
	m := p.mapping
	p.mapping, p.mem = nil, nil
	return sys.Unmap(m)
}
