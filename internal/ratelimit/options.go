package ratelimit

import (
	"fmt"
	"strings"
	"syscall"

	"github.com/platter-storage/platter/block"
)

// Spec has the options as a driver's table, to be checked and shown with. The
// names are those of the reference, without its prefix.
var Spec = block.Driver{Name: "throttle", Options: options()}

func options() []block.Option {
	list := []block.Option{
		{Name: "group", Help: "disks of one group share its limits"},
		{Name: "iops-size", Type: block.OptSize, Default: "0", Help: "a request longer than this counts as several; 0: each counts as one"},
	}
	for _, k := range kinds {
		list = append(list,
			block.Option{Name: k.name, Type: k.typ, Default: "0", Help: k.what + " a second in the long run; 0 is no limit"},
			block.Option{Name: k.name + "-max", Type: k.typ, Default: "0", Help: k.what + " a second in a burst; 0: a tenth of a second's worth may come at once"},
			block.Option{Name: k.name + "-max-length", Type: block.OptInt, Default: "1", Help: "seconds that a burst may last"})
	}
	return list
}

// kind is one of the six limits.
type kind struct {
	name, what string
	typ        block.OptType
	dir        int
	bytes      bool
}

var kinds = []kind{
	{"iops-total", "requests", block.OptInt, Total, false},
	{"iops-read", "reads", block.OptInt, Reads, false},
	{"iops-write", "writes", block.OptInt, Writes, false},
	{"bps-total", "bytes", block.OptSize, Total, true},
	{"bps-read", "bytes read", block.OptSize, Reads, true},
	{"bps-write", "bytes written", block.OptSize, Writes, true},
}

func (l *Limits) of(k kind) *Limit {
	if k.bytes {
		return &l.Bytes[k.dir]
	}
	return &l.Requests[k.dir]
}

// Setting is what the options say: limits, and of which group, "" for none.
type Setting struct {
	Limits
	Group string
}

// Parse checks options that stand by themselves.
func Parse(vals block.Values) (s Setting, err error) {
	for _, name := range []string{"driver", "node-name"} {
		if _, given := vals[name]; given {
			return s, invalid("%s says nothing here: leave it away", name)
		}
	}
	o, err := Spec.Check(vals)
	if err != nil {
		return s, err
	}
	return Read(o)
}

// Read takes limits and group from a driver's options.
func Read(o *block.Options) (s Setting, err error) {
	s.Group = o.String("group")
	s.Limits, err = readLimits(o)
	return s, err
}

func readLimits(o *block.Options) (l Limits, err error) {
	number := func(k kind, name string) int64 {
		if k.typ == block.OptSize {
			return o.Size(name)
		}
		return o.Int(name)
	}
	for _, k := range kinds {
		lim := l.of(k)
		lim.Avg, lim.Max = number(k, k.name), number(k, k.name+"-max")
		lim.MaxLength = o.Int(k.name + "-max-length")
		if err := lim.check(k.name); err != nil {
			return l, err
		}
	}
	l.RequestSize = o.Size("iops-size")
	return l, l.check()
}

func (l *Limit) check(name string) error {
	switch {
	case l.Avg < 0 || l.Avg > MaxValue || l.Max < 0 || l.Max > MaxValue:
		return invalid("%s and %s-max must be in 0..%.0e", name, name, float64(MaxValue))
	case l.Max > 0 && l.Avg == 0:
		return invalid("%s-max needs %s: what holds when the burst is over", name, name)
	case l.Max > 0 && l.Max < l.Avg:
		return invalid("%s-max %d is less than %s %d: a burst is faster", name, l.Max, name, l.Avg)
	case l.MaxLength < 1:
		return invalid("%s-max-length %d: a burst lasts at least 1 second", name, l.MaxLength)
	case l.MaxLength > 1 && l.Max == 0:
		return invalid("%s-max-length needs %s-max", name, name)
	case l.Max > 0 && l.MaxLength > MaxValue/l.Max:
		return invalid("%s-max %d for %d seconds is more than %.0e in all", name, l.Max, l.MaxLength, float64(MaxValue))
	}
	return nil
}

func (l *Limits) check() error {
	for _, of := range []struct {
		name   string
		limits *[3]Limit
	}{{"iops", &l.Requests}, {"bps", &l.Bytes}} {
		if of.limits[Total].Avg > 0 && of.limits[Reads].Avg+of.limits[Writes].Avg > 0 {
			return invalid("%s-total excludes %s-read and %s-write: limit all together or each for itself", of.name, of.name, of.name)
		}
	}
	if l.RequestSize > 0 && !limited(&l.Requests) {
		return invalid("iops-size needs a limit of requests: iops-total, iops-read or iops-write")
	}
	return nil
}

func limited(ls *[3]Limit) bool {
	return ls[Total].Avg > 0 || ls[Reads].Avg > 0 || ls[Writes].Avg > 0
}

// Any reports whether there is a limit.
func (l *Limits) Any() bool { return limited(&l.Requests) || limited(&l.Bytes) }

// String lists the limits, and who shares them.
func (s Setting) String() string {
	if s.Group == "" {
		return s.Limits.String()
	}
	return fmt.Sprintf("%v, shared by the group %q", s.Limits, s.Group)
}

// String lists the limits that there are.
func (l Limits) String() string {
	var parts []string
	for _, k := range kinds {
		lim := l.of(k)
		if lim.Avg == 0 {
			continue
		}
		s := fmt.Sprintf("%s=%d", k.name, lim.Avg)
		if lim.Max > 0 {
			s += fmt.Sprintf(" (%d for %d s)", lim.Max, lim.MaxLength)
		}
		parts = append(parts, s)
	}
	if parts == nil {
		return "no limit"
	}
	return strings.Join(parts, ", ")
}

func invalid(format string, args ...any) error {
	return block.Errorf(syscall.EINVAL, "driver throttle: %s", fmt.Sprintf(format, args...))
}
