package serve

import (
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/platter-storage/platter/block"
)

// view is what there is to be looked at: who only looks must not wait for a
// change of the daemon, which may wait for storage. It is published whole
// after each change, and never changed.
type view struct {
	ready  *Ready
	disks  []viewDisk
	groups map[string]*block.QueueGroup
}

// viewDisk is a disk, which may be closed already. Of its parts only those are
// used that never wait.
type viewDisk struct {
	name   string
	info   *block.Info
	gate   *gate
	vhosts []*vhost
	// names are those of its counters.
	names []string
}

// publish makes the daemon as it is now the view. Called with mu held.
func (d *Daemon) publish() {
	v := &view{ready: d.ready(), groups: maps.Clone(d.groups)}
	for _, dk := range d.disks {
		vd := viewDisk{name: dk.cfg.Name, info: dk.inst.Info(), gate: dk.gate, vhosts: slices.Clone(dk.vhosts)}
		for _, e := range dk.cfg.Exports {
			vd.names = append(vd.names, e.Name)
		}
		for _, e := range dk.exports {
			if e.alias {
				vd.names = append(vd.names, "")
			}
		}
		for _, x := range dk.cfg.VhostUsers {
			vd.names = append(vd.names, x.String())
		}
		v.disks = append(v.disks, vd)
	}
	d.seen.Store(v)
}

// Stats is a snapshot of the counters. It never waits for storage.
func (d *Daemon) Stats() *Stats {
	v := d.seen.Load()
	s := &Stats{UptimeSeconds: time.Since(d.began).Seconds()}
	for _, c := range d.server.Connections() {
		s.Connections++
		s.InFlight += c.InFlight
	}
	disks := map[string]string{}
	for i := range v.disks {
		dk := &v.disks[i]
		for _, name := range dk.names {
			disks[name] = dk.name
		}
		dk.count(s)
	}
	for name, group := range v.groups {
		s.Exports = append(s.Exports, exportStats(name, disks[name], group.Stats()))
	}
	sort.Slice(s.Exports, func(i, j int) bool { return s.Exports[i].Name < s.Exports[j].Name })
	b := d.env.Buffers.Stats()
	s.Buffers = BufferStats{Limit: b.Limit, InUse: b.InUse, Peak: b.Peak, Waits: b.Waits}
	return s
}

// count adds the disk's front ends, with their requests, and limits.
func (dk *viewDisk) count(s *Stats) {
	for _, x := range dk.vhosts {
		st := x.dev.Status()
		if st.Connected {
			s.Connections++
		}
		for i := range st.Queues {
			s.InFlight += st.Queues[i].InFlight
		}
	}
	if dk.gate == nil {
		return
	}
	if b := dk.gate.bucket.Load(); b != nil {
		s.Throttles = append(s.Throttles, ThrottleStats{dk.name, dk.gate.String(), b.Waits()})
	}
}
