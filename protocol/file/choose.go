package file

import (
	"errors"
	"fmt"

	"github.com/platter-storage/platter/block"
)

// opener opens the file as c says, with O_DIRECT if direct is asked for;
// errNoDirect is wrapped where the file system refuses that. It is openSystem,
// but in tests.
type opener func(c *config, direct bool) (system, error)

// chosen is an opened file with the way it is used, and why.
type chosen struct {
	sys     system
	direct  bool
	res     *resolution
	reasons []string
	warning string
}

// chooseCache opens the file as the option cache says; auto, and the fallback
// where direct I/O cannot be had, are decided here.
func chooseCache(c *config, open opener) (*chosen, error) {
	if !c.direct && !c.auto {
		return openCached(c, open, fmt.Sprintf("page cache: cache=%s", c.cacheName))
	}
	ch, err := openDirect(c, open)
	if err == nil {
		return ch, nil
	}
	if !errors.Is(err, errNoDirect) {
		return nil, err
	}
	switch {
	case c.auto:
		return openCached(c, open, fmt.Sprintf("page cache: %v", err))
	case c.fallback:
		ch, cerr := openCached(c, open, fmt.Sprintf("page cache, as fallback=buffered allows: %v", err))
		if cerr == nil {
			ch.warning = fmt.Sprintf("%s: opened through the page cache although cache=%s was asked for: %v", c.path, c.cacheName, err)
		}
		return ch, cerr
	}
	return nil, directError(c, err)
}

// openDirect opens with O_DIRECT; errNoDirect is wrapped where that is not to
// be had or, for cache=auto, not worth having.
func openDirect(c *config, open opener) (*chosen, error) {
	sys, err := open(c, true)
	if err != nil {
		return nil, err
	}
	res, err := resolve(sys, query{direct: true, device: sys.isDevice(), forced: c.forced, generation: 1})
	if err == nil && c.auto {
		err = notWorthIt(res)
	}
	if err != nil {
		_ = sys.close()
		if errors.Is(err, errNoDirect) {
			return nil, err
		}
		return nil, fmt.Errorf("%s: %w", c.path, err)
	}
	why := fmt.Sprintf("direct I/O: cache=%s", c.cacheName)
	if c.auto {
		why = "direct I/O: the file takes it and its alignment is known (cache=auto)"
	}
	ch := &chosen{sys: sys, direct: true, res: res, reasons: []string{why}}
	if res.byCache {
		ch.reasons = append(ch.reasons, "the file system serves direct reads through the page cache all the same: cache=writeback would do no more copying, and need no alignment")
	}
	if res.disagreement != "" {
		ch.warning = fmt.Sprintf("%s: %s", c.path, res.disagreement)
	}
	return ch, nil
}

// noGain is why direct I/O that could be had is not worth having; for cache=auto
// that is as good as errNoDirect.
type noGain string

func (e noGain) Error() string        { return string(e) }
func (e noGain) Is(target error) bool { return target == errNoDirect }

// notWorthIt says why cache=auto does not take direct I/O that could be had.
func notWorthIt(res *resolution) error {
	switch {
	case res.fs.memory:
		return noGain(fmt.Sprintf("nothing to gain from direct I/O, the file is in memory (%s)", res.fs.name))
	case res.byCache:
		return noGain(fmt.Sprintf("nothing to gain from direct I/O, %s serves it through the page cache", res.fs.name))
	case res.limits.Origins.WriteAlign == block.OriginDefault:
		return noGain("nothing states the alignment that direct I/O would need, and there is no data to try it on")
	}
	return nil
}

func openCached(c *config, open opener, why string) (*chosen, error) {
	sys, err := open(c, false)
	if err != nil {
		return nil, err
	}
	res, err := resolve(sys, query{device: sys.isDevice(), forced: c.forced, generation: 1})
	if err != nil {
		_ = sys.close()
		return nil, fmt.Errorf("%s: %w", c.path, err)
	}
	return &chosen{sys: sys, res: res, reasons: []string{why}}, nil
}
