package nbd

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Bounds of what clients and failing storage can make us log: lines at once,
// and then one each logPeriod.
const (
	logBurst    = 20  // of warnings
	comingBurst = 200 // of clients that come and go
	logPeriod   = time.Second
)

// logLimit lets a burst of lines through, then one a logPeriod, and counts
// what it held back.
type logLimit struct {
	burst  int
	mu     sync.Mutex
	tokens int
	last   time.Time
	held   int
}

func newLogLimit(burst int) *logLimit {
	return &logLimit{burst: burst, tokens: burst, last: time.Now()}
}

// warn logs one line unless there were too many.
func (l *logLimit) warn(log *slog.Logger, msg string, args ...any) {
	l.log(log, slog.LevelWarn, msg, args...)
}

// info is warn for what is no fault.
func (l *logLimit) info(log *slog.Logger, msg string, args ...any) {
	l.log(log, slog.LevelInfo, msg, args...)
}

func (l *logLimit) log(log *slog.Logger, level slog.Level, msg string, args ...any) {
	held, ok := l.allow(time.Now())
	if !ok {
		return
	}
	if held > 0 {
		args = append(args, "lines_left_out_before", held)
	}
	log.Log(context.Background(), level, msg, args...)
}

func (l *logLimit) allow(now time.Time) (held int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if more := int(now.Sub(l.last) / logPeriod); more > 0 {
		l.tokens = min(l.tokens+more, l.burst)
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
