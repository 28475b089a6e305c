package serve

import (
	"fmt"
	"sync/atomic"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/ratelimit"
	"github.com/platter-storage/platter/serve/config"
)

// gate is where the exports of a disk ask whether a request may begin. Limits,
// and the group that shares them, are changed behind it while clients are
// served. A disk that was opened without limits has no gate: its requests ask
// nobody.
type gate struct {
	bucket atomic.Pointer[ratelimit.Bucket] // nil, before there are limits, lets all pass
	text   atomic.Pointer[string]           // the limits in words

	// Guarded by the daemon's mu.
	setting ratelimit.Setting // of bucket
	member  bool              // of its group
}

// newGate is the gate of a disk, not yet in force, or nil.
func newGate(cfg *config.Disk) *gate {
	if len(cfg.Throttle) == 0 {
		return nil
	}
	return &gate{}
}

// Admit implements nbd.Limiter and queue.Limiter.
func (g *gate) Admit(op block.Op, n, nowNs int64) (waitNs int64) {
	if b := g.bucket.Load(); b != nil {
		return b.Admit(op, n, nowNs)
	}
	return 0
}

// set puts limits in force and reports whether they are others than before. A
// disk without a gate has none.
func (g *gate) set(s ratelimit.Setting) (changed bool, err error) {
	if g == nil || g.member && g.setting == s {
		return false, nil
	}
	b, err := ratelimit.JoinAndSet(s)
	if err != nil {
		return false, err
	}
	g.leave()
	g.setting, g.member = s, true
	text := s.String()
	g.text.Store(&text)
	g.bucket.Store(b)
	return true, nil
}

// leave takes the disk out of its group. What its limits have done can still be
// asked for.
func (g *gate) leave() {
	if g != nil && g.member {
		g.member = false
		ratelimit.Leave(g.setting.Group)
	}
}

// String says the limits, "" where there are none.
func (g *gate) String() string {
	if g == nil || g.text.Load() == nil {
		return ""
	}
	return *g.text.Load()
}

// throttles are the limits of each of the disks: of a group what one of its
// disks says. Where two say different things the first is heard, and err says
// so.
func throttles(disks []config.Disk) (all []ratelimit.Setting, err error) {
	all = make([]ratelimit.Setting, len(disks))
	said := map[string]int{} // by group, the disk that says its limits
	for i := range disks {
		var wrong error
		if all[i], wrong = throttleOf(&disks[i]); wrong != nil && err == nil {
			err = wrong
		}
		group := all[i].Group
		if group == "" || !all[i].Any() {
			continue
		}
		first, ok := said[group]
		if !ok {
			said[group] = i
		} else if all[first] != all[i] && err == nil {
			err = &config.Error{At: disks[i].At, Msg: fmt.Sprintf("throttle: disks %s and %s say different limits for the group %q they are in: say the same ones, or say them at one of its disks and group=%s at the others",
				disks[first].Name, disks[i].Name, group, group)}
		}
	}
	for i := range all {
		if first, ok := said[all[i].Group]; ok {
			all[i] = all[first]
		}
	}
	return all, err
}

// throttleOf is what one disk says of its limits.
func throttleOf(d *config.Disk) (ratelimit.Setting, error) {
	s, err := ratelimit.Parse(d.Throttle)
	if err == nil {
		return s, nil
	}
	err = withHint(err, unknownOption(&ratelimit.Spec, d.Throttle), optionNames(&ratelimit.Spec))
	return ratelimit.Setting{}, &config.Error{At: d.At, Msg: err.Error(), Err: err}
}

// ThrottleStats is what a disk's limits have done.
type ThrottleStats struct {
	Disk   string `json:"disk"`
	Limits string `json:"limits"`
	// Waits is how often a request was told to wait, of all disks of a group.
	// One that waits for longer than a second is told so again.
	Waits uint64 `json:"waits"`
}

// limit puts the limits of the new configuration in force, of all disks at
// once: those of a group may be said at another disk than before.
func (r *reload) limit() {
	var disks []*disk
	var cfgs []config.Disk
	for i := range r.pairs {
		if p := &r.pairs[i]; p.disk != nil {
			disks, cfgs = append(disks, p.disk), append(cfgs, p.cfg)
		}
	}
	all, err := throttles(cfgs) // an error where a disk could not be opened anew
	r.fail(err)
	for i, dk := range disks {
		had := dk.gate != nil && dk.gate.member
		changed, err := dk.gate.set(all[i])
		if r.fail(err); changed && had {
			r.note("disk %s has other limits: %v", cfgs[i].Name, dk.gate)
		}
	}
}
