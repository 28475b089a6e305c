package nbd

import (
	"log/slog"
	"sync"
	"time"
)

// Bounds of what clients and failing storage can make us log.
const (
	logBurst  = 20 // lines at once
	logPeriod = time.Second
)

// logLimit lets logBurst lines through, then one a logPeriod, and counts what
// it held back.
type logLimit struct {
	mu     sync.Mutex
	tokens int
	last   time.Time
	held   int
}

func newLogLimit() *logLimit { return &logLimit{tokens: logBurst, last: time.Now()} }

// warn logs one line unless there were too many.
func (l *logLimit) warn(log *slog.Logger, msg string, args ...any) {
	held, ok := l.allow(time.Now())
	if !ok {
		return
	}
	if held > 0 {
		args = append(args, "lines_left_out_before", held)
	}
	log.Warn(msg, args...)
}

func (l *logLimit) allow(now time.Time) (held int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if more := int(now.Sub(l.last) / logPeriod); more > 0 {
		l.tokens = min(l.tokens+more, logBurst)
		l.last = now
	}
	if l.tokens == 0 {
		l.held++
		return 0, false
	}
	l.tokens--
	held, l.held = l.held, 0
	return held, true
}
