package file

import (
	"fmt"
	"sync"
	"syscall"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/engine"
	"github.com/platter-storage/platter/internal/rawio"
)

// mover does reads and writes of one descriptor by an engine.
type mover struct {
	file   *engine.File
	engine *engine.Shared
	// exact: nothing but the engine, not even while few requests are under
	// way, when a call on the caller's own thread costs less.
	exact bool
}

// plainMover makes calls on the caller's thread.
func plainMover(fd int, flags engine.FileFlags) *mover {
	return &mover{file: engine.OpenFile(fd, flags), engine: inlineEngine()}
}

// inlineEngine has no threads and no state: one serves all.
var inlineEngine = sync.OnceValue(func() *engine.Shared {
	s, err := engine.NewShared(engine.Inline, engine.Config{})
	if err != nil {
		panic("protocol/file: the inline engine: " + err.Error())
	}
	return s
})

// call is what one blocking request needs while it is under way.
type call struct {
	io     rawio.IO
	parker *engine.Parker
}

var calls = sync.Pool{New: func() any { return &call{parker: engine.NewParker()} }}

func (m *mover) readv(off int64, v block.Vec) (int, error) {
	return m.run(rawio.Read, off, v, false)
}

func (m *mover) writev(off int64, v block.Vec, durable bool) (int, error) {
	return m.run(rawio.Write, off, v, durable)
}

// sync makes what was written durable.
func (m *mover) sync() error {
	_, err := m.run(rawio.Fsync, 0, nil, false)
	return err
}

func (m *mover) run(kind rawio.Kind, off int64, v block.Vec, durable bool) (int, error) {
	if len(v) > block.MaxElements {
		return 0, syscall.EINVAL
	}
	c := calls.Get().(*call)
	io := &c.io
	io.Kind, io.Sync, io.Off, io.Vec = kind, durable, off, v
	do := m.engine.Do
	if m.exact {
		do = m.engine.Queued
	}
	err := do(m.file, io, c.parker)
	n := io.N
	io.Vec = nil
	calls.Put(c)
	return n, err
}

// engines are the shared engines in use, one of a kind for all files.
var engines = struct {
	sync.Mutex
	m map[engine.Kind]*countedEngine
}{m: map[engine.Kind]*countedEngine{}}

type countedEngine struct {
	shared *engine.Shared
	users  int
}

// engineWorkers is how many threads an engine of threads may use.
const engineWorkers = 32

// takeEngine gives the shared engine of a kind, which is started for the first
// file and ended with the last.
func takeEngine(kind engine.Kind) (*engine.Shared, error) {
	if kind == engine.Inline {
		return inlineEngine(), nil
	}
	engines.Lock()
	defer engines.Unlock()
	e := engines.m[kind]
	if e == nil {
		s, err := engine.NewShared(kind, engine.Config{Depth: engine.DefaultDepth, Workers: engineWorkers})
		if err != nil {
			return nil, err
		}
		e = &countedEngine{shared: s}
		engines.m[kind] = e
	}
	e.users++
	return e.shared, nil
}

// leaveEngine gives it back, having made it let go of f.
func leaveEngine(s *engine.Shared, f *engine.File) error {
	if s.Kind() == engine.Inline {
		return nil
	}
	s.Forget(f)
	engines.Lock()
	defer engines.Unlock()
	e := engines.m[s.Kind()]
	if e.users--; e.users > 0 {
		return nil
	}
	delete(engines.m, s.Kind())
	return s.Close()
}

// startEngine chooses how requests to the main descriptor reach the kernel.
// want is the option aio.
func (f *linuxFile) startEngine(want string, memory bool) (reason string, err error) {
	facts := engine.FileFacts{Direct: f.direct, NeverBlocks: memory, NoWait: f.direct || canNoWait(f.fd)}
	s, reason, err := firstEngine(want, facts, takeEngine)
	if err != nil {
		return "", fmt.Errorf("%s: %w", f.path, err)
	}
	f.moves = &mover{file: f.moves.file, engine: s, exact: want != "auto"}
	if f.moves.exact {
		return "engine: " + reason, nil
	}
	return "engine: " + reason + "; " + s.Reason(), nil
}

// firstEngine is the engine that was asked for or, with auto, the best that can
// be started.
func firstEngine(want string, facts engine.FileFacts, take func(engine.Kind) (*engine.Shared, error)) (s *engine.Shared, reason string, err error) {
	kind, reason, err := engine.Choose(want, facts)
	if err != nil {
		return nil, "", block.Errorf(syscall.EINVAL, "%v", err)
	}
	for {
		s, err := take(kind)
		if err == nil {
			return s, reason, nil
		}
		next, why, ok := engine.Instead(kind, facts, err)
		if want != "auto" || !ok {
			return nil, "", block.Errorf(block.Errno(err), "aio=%s: %v", want, err)
		}
		kind, reason = next, why
	}
}
