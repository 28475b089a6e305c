package ratelimit

import "sync"

// MaxGroups bounds the groups there are at once.
const MaxGroups = 1024

// groups are the buckets that disks share, by name.
var groups = struct {
	sync.Mutex
	m map[string]*group
}{m: map[string]*group{}}

type group struct {
	*Bucket
	users int
}

// Join finds the setting's group, or makes it with the setting's limits. Who
// comes later says the same limits or none. Without a group the bucket is the
// caller's alone.
func Join(s Setting) (*Bucket, error) {
	return join(s, func(b *Bucket) error {
		if s.Any() && b.Limits() != s.Limits {
			return invalid("group %q has other limits already: say the same ones for each of its disks, or for the first alone", s.Group)
		}
		return nil
	})
}

// JoinAndSet is Join where the setting's limits are the group's from now on.
func JoinAndSet(s Setting) (*Bucket, error) {
	return join(s, func(b *Bucket) error {
		if b.Limits() != s.Limits {
			b.Set(s.Limits)
		}
		return nil
	})
}

func join(s Setting, found func(b *Bucket) error) (*Bucket, error) {
	name := s.Group
	if name == "" {
		return NewBucket(s.Limits), nil
	}
	groups.Lock()
	defer groups.Unlock()
	g := groups.m[name]
	switch {
	case g == nil && len(groups.m) >= MaxGroups:
		return nil, invalid("there are %d groups already: that is the limit", MaxGroups)
	case g == nil:
		g = &group{Bucket: NewBucket(s.Limits)}
		groups.m[name] = g
	default:
		if err := found(g.Bucket); err != nil {
			return nil, err
		}
	}
	g.users++
	return g.Bucket, nil
}

// Leave undoes one Join of the group; "" is none.
func Leave(name string) {
	if name == "" {
		return
	}
	groups.Lock()
	defer groups.Unlock()
	if g := groups.m[name]; g.users > 1 {
		g.users--
	} else {
		delete(groups.m, name)
	}
}
