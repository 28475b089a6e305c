package sim

import (
	"fmt"
	"sync"

	"github.com/platter-storage/platter/block"
)

// burstWriters is how many write side by side in a burst.
const burstWriters = 4

// begin enters a step.
func (r *run) begin(what string, args ...any) (int, *step) {
	s := &step{what: fmt.Sprintf(what, args...), begin: r.log.Tick()}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.x.steps = append(r.x.steps, s)
	return len(r.x.steps) - 1, s
}

// set enters what a step makes of sectors, before it begins to.
func (r *run) set(off, n int64, c change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for at := off; at < off+n; at++ {
		r.x.sectors[at] = append(r.x.sectors[at], c)
	}
}

// fresh is content that was not there before.
func (r *run) fresh() content {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	return r.next
}

// step draws an operation and runs it.
func (r *run) step() error {
	w := r.Weights
	kinds := []struct {
		weight int
		f      func() error
	}{
		{w.Write, func() error { return r.write(0) }}, {w.FUA, func() error { return r.write(block.FUA) }},
		{w.Zero, r.zero}, {w.Discard, r.discard}, {w.Flush, r.flush}, {w.Reopen, r.reopen}, {w.Burst, r.burst},
		{w.Resize, r.resize}, {w.Snapshot, r.snapshot}, {w.Bitmap, r.bitmap}, {w.Amend, r.amend}, {w.Compressed, r.compressed},
	}
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	at := r.rng.IntN(total)
	for _, k := range kinds {
		if at -= k.weight; at < 0 {
			return k.f()
		}
	}
	return nil
}

// where draws a range of sectors.
func (r *run) where() (off, n int64) {
	size := r.n.c.Size() / Sector
	n = 1 + r.rng.Int64N(min(r.Longest, size))>>r.rng.IntN(4)
	off = r.rng.Int64N(size - n + 1)
	if r.rng.IntN(3) == 0 { // often near the beginning, where others wrote
		off %= min(16, size-n+1)
	}
	return off, n
}

func (r *run) write(fl block.Flags) error {
	off, n := r.where()
	return r.writeAt(off, n, fl)
}

func (r *run) writeAt(off, n int64, fl block.Flags) error {
	c := r.fresh()
	i, s := r.begin("write of %d at sector %d, %s", n, off, fl)
	r.set(off, n, change{step: i, is: c, or: c})
	b := make([]byte, n*Sector)
	c.fill(b, off)
	err := r.n.do(block.OpWrite, func(rq *block.Req) error { return r.n.c.Pwritev(rq, off*Sector, block.Vec{b}, fl) })
	r.end(s, fl)
	return err
}

func (r *run) end(s *step, fl block.Flags) {
	t := r.log.Tick()
	r.mu.Lock()
	s.end, s.fua = t, fl&block.FUA != 0
	r.mu.Unlock()
}

func (r *run) zero() error {
	off, n := r.where()
	fl := block.Flags(r.rng.IntN(4)) // FUA, MayUnmap
	i, s := r.begin("zero %d at sector %d, %s", n, off, fl)
	r.set(off, n, change{step: i})
	err := r.n.do(block.OpZero, func(rq *block.Req) error { return r.n.c.WriteZeroes(rq, off*Sector, n*Sector, fl) })
	r.end(s, fl)
	return err
}

// discard may leave what there was, or zeroes: which, only reading tells.
func (r *run) discard() error {
	off, n := r.where()
	i, s := r.begin("discard %d at sector %d", n, off)
	r.set(off, n, change{step: i, maybe: true})
	err := r.n.do(block.OpDiscard, func(rq *block.Req) error { return r.n.c.Discard(rq, off*Sector, n*Sector) })
	r.end(s, 0)
	if err != nil {
		return err
	}
	b := make([]byte, n*Sector)
	if err := r.n.do(block.OpRead, func(rq *block.Req) error { return r.n.c.Preadv(rq, off*Sector, block.Vec{b}, 0) }); err != nil {
		return err
	}
	for k := range n {
		at := off + k
		list := r.x.sectors[at]
		got, whole := contentOf(b[k*Sector:(k+1)*Sector], at)
		if was := list[len(list)-2].is; !whole || got != 0 && got != was {
			return r.x.wrong(r.log.now, at, got, whole)
		}
		list[len(list)-1].is = got
	}
	return nil
}

func (r *run) flush() error {
	_, s := r.begin("flush")
	err := r.n.do(block.OpFlush, r.n.c.Flush)
	if err == nil && r.Flushed != nil {
		err = r.Flushed()
	}
	r.end(s, 0)
	s.flush = true
	return err
}

// reopen closes the image and opens it anew.
func (r *run) reopen() error {
	_, s := r.begin("reopen")
	err := r.n.close()
	if err == nil {
		err = r.open()
	}
	r.end(s, 0)
	return err
}

// burst writes side by side to sectors that lie between each other's, each
// writer to its own.
func (r *run) burst() error {
	size := r.n.c.Size() / Sector
	if size < 4*burstWriters {
		return r.write(0)
	}
	from := r.rng.Int64N(size - 3*burstWriters + 1)
	var wg sync.WaitGroup
	errs := make([]error, burstWriters)
	for w := range burstWriters {
		off := from + int64(w)*3
		wg.Go(func() {
			if errs[w] = r.writeAt(off, 1, 0); errs[w] == nil {
				errs[w] = r.writeAt(off+1, 1, 0)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// resize makes the disk smaller or larger; what is added reads as zeroes.
func (r *run) resize() error {
	was := r.n.c.Size() / Sector
	n := 1 + r.rng.Int64N(r.Sectors+r.Sectors/2)
	i, s := r.begin("resize from %d to %d sectors", was, n)
	for int64(len(r.x.sectors)) < n {
		r.x.sectors = append(r.x.sectors, []change{{}})
	}
	for at := min(n, was); at < int64(len(r.x.sectors)); at++ {
		c := change{step: i}
		if at >= n && at < r.Backing {
			c.or = backed // on its way out the backing file may show
		}
		r.x.sectors[at] = append(r.x.sectors[at], c)
	}
	r.x.sizes = append(r.x.sizes, sized{i, n})
	err := r.n.do(block.OpTruncate, func(rq *block.Req) error { return r.n.c.Truncate(rq, n*Sector, block.PreallocOff) })
	r.end(s, 0)
	return err
}

// compressed writes whole clusters as the image tools do.
func (r *run) compressed() error {
	cluster := r.n.c.Info().Abilities.Cluster / Sector
	clusters := r.n.c.Size() / Sector / max(cluster, 1)
	if cluster == 0 || clusters == 0 {
		return nil
	}
	off := r.rng.Int64N(clusters) * cluster
	c := r.fresh()
	i, s := r.begin("compressed write of %d at sector %d", cluster, off)
	r.set(off, cluster, change{step: i, is: c, or: c})
	b := make([]byte, cluster*Sector)
	c.fill(b, off)
	err := r.n.do(block.OpWrite, func(rq *block.Req) error { return r.n.c.WriteCompressed(rq, off*Sector, block.Vec{b}) })
	r.end(s, 0)
	return err
}

// exclusive runs an ability.
func (r *run) exclusive(s *step, f func(rq *block.Req, a *block.Abilities) error) error {
	err := r.n.do(block.OpStatus, func(rq *block.Req) error {
		return r.n.c.Exclusive(rq, block.PermWrite, func(a *block.Abilities) error { return f(rq, a) })
	})
	r.end(s, 0)
	return err
}

// maxSnapshots is how many there are at once.
const maxSnapshots = 3

// snapshot makes, applies or deletes one.
func (r *run) snapshot() error {
	var live []*saved
	for _, v := range r.x.snapshots {
		if v.dropped < 0 {
			live = append(live, v)
		}
	}
	how := r.rng.IntN(3)
	if len(live) == 0 || how == 0 && len(live) < maxSnapshots {
		return r.takeSnapshot()
	}
	v := live[r.rng.IntN(len(live))]
	if how == 1 {
		return r.applySnapshot(v)
	}
	i, s := r.begin("delete %s", v.name)
	v.dropped = i
	return r.exclusive(s, func(rq *block.Req, a *block.Abilities) error { return a.Snapshots.Delete(rq, v.name) })
}

func (r *run) takeSnapshot() error {
	r.names++
	name := fmt.Sprintf("s%d", r.names)
	i, s := r.begin("snapshot %s", name)
	v := &saved{name: name, made: i, dropped: -1}
	for at := range r.n.c.Size() / Sector {
		v.is = append(v.is, r.x.latest(at))
	}
	r.x.snapshots = append(r.x.snapshots, v)
	return r.exclusive(s, func(rq *block.Req, a *block.Abilities) error {
		_, err := a.Snapshots.Create(rq, block.Snapshot{Name: name})
		return err
	})
}

func (r *run) applySnapshot(v *saved) error {
	i, s := r.begin("apply %s", v.name)
	for at := range int64(len(r.x.sectors)) {
		c := change{step: i}
		if at < int64(len(v.is)) {
			c.is, c.or = v.is[at], v.is[at]
		}
		r.x.sectors[at] = append(r.x.sectors[at], c)
	}
	r.x.sizes = append(r.x.sizes, sized{i, int64(len(v.is))})
	return r.exclusive(s, func(rq *block.Req, a *block.Abilities) error { return a.Snapshots.Apply(rq, v.name) })
}

// saved looks at the snapshots of a state: those that must be there are, and
// each holds what the disk held when it was made.
func (r *run) saved(t uint64, nodes []block.Node) error {
	if len(r.x.snapshots) == 0 {
		return nil
	}
	n, err := r.openOn(nodes, r.Proof.Open, true, nil)
	if err != nil {
		return err
	}
	there := map[string]bool{}
	err = n.do(block.OpStatus, func(rq *block.Req) error {
		return n.c.Exclusive(rq, block.PermRead, func(a *block.Abilities) error {
			list, err := a.Snapshots.List(rq)
			for _, s := range list {
				there[s.Name] = true
			}
			return err
		})
	})
	if e := n.close(); err == nil {
		err = e
	}
	for _, v := range r.x.snapshots {
		may := r.x.begun(v.made, t) && (v.dropped < 0 || !r.x.durable(v.dropped, t))
		must := r.x.durable(v.made, t) && (v.dropped < 0 || !r.x.begun(v.dropped, t))
		switch has := there[v.name]; {
		case err != nil:
		case has && !may:
			err = fmt.Errorf("there is a snapshot %q, which was not made or is gone", v.name)
		case !has && must:
			err = fmt.Errorf("the snapshot %q is lost", v.name)
		case has:
			err = r.compareSaved(v, nodes)
		}
	}
	return err
}

func (r *run) compareSaved(v *saved, nodes []block.Node) error {
	vals := block.Values{"snapshot": v.name}
	for k, x := range r.Proof.Open {
		vals[k] = x
	}
	want := make([]byte, len(v.is)*Sector)
	for at, c := range v.is {
		c.fill(want[at*Sector:(at+1)*Sector], int64(at))
	}
	if err := r.same(nodes, vals, want); err != nil {
		return fmt.Errorf("snapshot %q: %w", v.name, err)
	}
	return nil
}

// bitmap adds or removes a dirty bitmap, whose bits the writes around it set.
func (r *run) bitmap() error {
	_, s := r.begin("bitmap")
	return r.exclusive(s, func(rq *block.Req, a *block.Abilities) error {
		list, err := a.Bitmaps.List(rq)
		if err != nil {
			return err
		}
		if len(list) == 0 || r.rng.IntN(2) == 0 && len(list) < 3 {
			r.names++
			return a.Bitmaps.Add(rq, block.Bitmap{Name: fmt.Sprintf("b%d", r.names), Granularity: 512 << r.rng.IntN(4), Enabled: true})
		}
		b := list[r.rng.IntN(len(list))]
		switch r.rng.IntN(3) {
		case 0:
			return a.Bitmaps.Clear(rq, b.Name)
		case 1:
			return a.Bitmaps.Disable(rq, b.Name)
		}
		return a.Bitmaps.Remove(rq, b.Name)
	})
}

func (r *run) amend() error {
	vals := r.Amends[r.rng.IntN(len(r.Amends))]
	_, s := r.begin("amend %v", vals)
	return r.exclusive(s, func(rq *block.Req, a *block.Abilities) error { return a.Amend.Amend(rq, vals, nil) })
}
