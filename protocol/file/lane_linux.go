package file

import (
	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/engine"
	"github.com/platter-storage/platter/internal/rawio"
)

// leaf is the file at the bottom of a mapping.
type leaf struct {
	m *mover
	// Whether a write must be durable is for the request to say, unless the
	// cache mode does.
	always, never bool
}

// Submit hands a batch to the engine: one system call.
func (l *leaf) Submit(ios []*block.IO) {
	if l.always || l.never {
		for _, io := range ios {
			io.Sync = l.always && io.Kind == rawio.Write
		}
	}
	l.m.engine.Submit(l.m.file, ios)
}

// EngineFile is the file for an export that has an engine of its own on its
// queue's thread; nil where writes have to pass Submit. The export makes its
// queue forget the file before it closes its edge.
func (l *leaf) EngineFile() *engine.File {
	if l.always {
		return nil
	}
	return l.m.file
}

// EngineKind is the engine that the node has chosen for the file, and that such
// an export does well to choose as well.
func (l *leaf) EngineKind() engine.Kind { return l.m.engine.Kind() }

// EngineSync tells such an export whether to make a write durable that is to be:
// not where the cache mode is unsafe.
func (l *leaf) EngineSync() bool { return !l.never }

// ReadFd is the descriptor for who moves bytes of the file by other calls than
// reads: while a mapping is held, and for reading only.
func (l *leaf) ReadFd() int { return l.m.file.Fd() }

// newLeaf is the fast lane's way to the file.
func (f *linuxFile) newLeaf(c *config) block.Leaf {
	return &leaf{m: f.moves, always: c.sync && !c.noFlush, never: c.noFlush}
}
