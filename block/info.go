package block

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Info is what a node says of itself. The driver makes one when it opens and
// keeps it for the node's life; only Size and Limits change, atomically.
type Info struct {
	// Driver is the registered name, Filename what a person calls the
	// thing: a path, a URI, or a description.
	Driver, Filename string
	// ReadOnly nodes refuse every change with EROFS.
	ReadOnly bool
	// WriteFlags and ZeroFlags are those that Pwritev and WriteZeroes serve
	// natively. FUA not among WriteFlags is emulated by a flush.
	WriteFlags, ZeroFlags Flags
	// Inline promises that reads and writes never wait for a device: the
	// content is in memory. Callers may then serve requests in place.
	Inline bool
	// Cached says that reads and writes usually end without waiting for a
	// device, through the system's page cache. Callers may serve requests in
	// place as long as they find that they are quick.
	Cached bool
	// MultiConn promises that a flush through one connection covers writes
	// completed through every other.
	MultiConn bool
	// Linearise decides how requests of several pieces go; nil where as they
	// are is always best.
	Linearise *Lineariser
	// Abilities are optional, of this very node; nil where it has none.
	// They are looked up when an edge is made and never inherited.
	Abilities Abilities

	size   atomic.Int64
	limits atomic.Pointer[Limits]
	// follows is where the size comes from instead, where FollowSize said so.
	follows    *Info
	followSkip int64

	watching sync.Mutex // held to change watchers, and while they are called
	watchers []*func()
}

// MaxSize is the largest size that a node may have: rounding a position in it
// up to any alignment that limits can hold does not overflow.
const MaxSize = 1<<63 - 1<<31

// Abilities are what a node may offer beyond the methods of Node.
type Abilities struct {
	// Mapper offers the fast lane.
	Mapper Mapper
	// Explain says in sentences how the node came to its decisions
	// (engine, alignment, cache), one a line, for people.
	Explain func() []string
	// Refresh asks the storage anew for its size and limits, which others
	// may have changed (a volume that was grown), and publishes them.
	Refresh func() error
	// WriteCompressed is Child.WriteCompressed.
	WriteCompressed func(rq *Req, off int64, v Vec) error
	// Cluster is the unit of allocation in bytes; 0 where there is none.
	Cluster int64
	// Check looks through a format's metadata, and repairs it where asked.
	// This and what follows is called through Child.Exclusive.
	Check     func(rq *Req, o CheckOptions) (CheckResult, error)
	Snapshots *SnapshotAbility
	Bitmaps   *BitmapAbility
	Amend     *AmendAbility
	Describe  func(rq *Req) (Description, error)
}

// Size is the length of the content in bytes.
func (i *Info) Size() int64 {
	if i.follows != nil {
		return max(i.follows.Size()-i.followSkip, 0)
	}
	return i.size.Load()
}

// SetSize publishes a new size; drivers only. What is not in 0..MaxSize, as a
// remote side may claim, becomes the nearest that is.
func (i *Info) SetSize(n int64) {
	n = min(max(n, 0), MaxSize)
	if i.size.Swap(n) == n {
		return
	}
	i.watching.Lock()
	defer i.watching.Unlock()
	for _, f := range i.watchers {
		(*f)()
	}
}

// WatchSize calls f after each change of the size, until stop is called. f runs
// within the request that changed it: it must not wait, nor ask for anything
// but the size.
func (i *Info) WatchSize(f func()) (stop func()) {
	if i.follows != nil {
		return i.follows.WatchSize(f)
	}
	i.watching.Lock()
	defer i.watching.Unlock()
	i.watchers = append(i.watchers, &f)
	return func() {
		i.watching.Lock()
		defer i.watching.Unlock()
		i.watchers = slices.DeleteFunc(i.watchers, func(w *func()) bool { return w == &f })
	}
}

// FollowSize makes the size that of child, less the skip bytes at its
// beginning, now and whenever it changes: for nodes that pass their content
// through. Only while the node is being opened.
func (i *Info) FollowSize(child *Info, skip int64) { i.follows, i.followSkip = child, skip }

// Limits is the current set; never nil once the node is open.
func (i *Info) Limits() *Limits { return i.limits.Load() }

// SetLimits publishes a new set; drivers only. It panics where l breaks the
// rules of Limits: that is a driver's mistake, not an input's.
func (i *Info) SetLimits(l *Limits) {
	if err := l.Validate(); err != nil {
		panic("block: " + i.Driver + ": " + err.Error())
	}
	i.limits.Store(l)
}
