package serve

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/platter-storage/platter/block"
)

// failurePeriod is how long the same failure of requests is counted before one
// more line tells how often it came.
const failurePeriod = 10 * time.Second

// maxFailures bounds the failures that are counted at once; more are written as
// they come.
const maxFailures = 256

// failedRequest is the message of export/nbd that is grouped, and leftOut its
// attribute for those that it held back itself.
const (
	failedRequest = "request failed"
	leftOut       = "lines_left_out_before"
)

// GroupFailures makes a handler that writes the first of several failed requests
// of one export with the same errno at once, and after a period the last of
// them with their number: storage that fails, fails often.
func GroupFailures(h slog.Handler, period time.Duration) slog.Handler {
	return &failures{h, &failureCounts{period: period, open: map[failure]*failureCount{}}}
}

type failures struct {
	slog.Handler
	counts *failureCounts
}

// failureCounts is what handlers made from one another share.
type failureCounts struct {
	period time.Duration
	mu     sync.Mutex
	open   map[failure]*failureCount
}

// failure is what makes two failed requests the same.
type failure struct{ export, errno string }

type failureCount struct {
	repeated int64
	last     slog.Record
}

// WithAttrs implements slog.Handler.
func (f *failures) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &failures{f.Handler.WithAttrs(attrs), f.counts}
}

// WithGroup implements slog.Handler.
func (f *failures) WithGroup(name string) slog.Handler {
	return &failures{f.Handler.WithGroup(name), f.counts}
}

// Handle implements slog.Handler.
func (f *failures) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == failedRequest && f.count(r) {
		return nil
	}
	return f.Handler.Handle(ctx, r)
}

// count reports whether the record is one more of a failure that was written
// already.
func (f *failures) count(r slog.Record) bool {
	what, held := readFailure(r)
	c := f.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.open[what]; n != nil {
		n.repeated += 1 + held
		n.last = r.Clone()
		return true
	}
	if len(c.open) < maxFailures {
		c.open[what] = &failureCount{}
		time.AfterFunc(c.period, func() { f.tell(what) })
	}
	return false
}

// readFailure takes from a record what it is about, and how many like it were
// not even logged.
func readFailure(r slog.Record) (what failure, held int64) {
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "export":
			what.export = a.Value.String()
		case leftOut:
			held, _ = a.Value.Any().(int64)
		case "error":
			what.errno = fmt.Sprint(a.Value.Any())
			if err, ok := a.Value.Any().(error); ok {
				what.errno = block.Errno(err).Error()
			}
		}
		return true
	})
	return what, held
}

// tell ends the counting of a failure, with a line if there was more than one.
func (f *failures) tell(what failure) {
	f.counts.mu.Lock()
	n := f.counts.open[what]
	delete(f.counts.open, what)
	f.counts.mu.Unlock()
	if n.repeated == 0 {
		return
	}
	n.last.AddAttrs(slog.Int64("repeated", n.repeated))
	_ = f.Handler.Handle(context.Background(), n.last) // whoever reads the log has gone
}
