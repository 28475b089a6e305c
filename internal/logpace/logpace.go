// Package logpace bounds how many lines others can make us log: peers that
// misbehave, storage that fails.
package logpace

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Period is how often one more line may be logged after a burst.
const Period = time.Second

// Pace lets a burst of lines through, then one each Period, and says how many
// it held back.
type Pace struct {
	burst int

	mu     sync.Mutex // guards what follows
	tokens int
	last   time.Time
	held   int
}

// New makes a Pace of so many lines at once.
func New(burst int) *Pace { return &Pace{burst: burst, tokens: burst, last: time.Now()} }

// Warn logs one line unless there were too many.
func (p *Pace) Warn(log *slog.Logger, msg string, args ...any) {
	p.log(log, slog.LevelWarn, msg, args...)
}

// Info is Warn for what is no fault.
func (p *Pace) Info(log *slog.Logger, msg string, args ...any) {
	p.log(log, slog.LevelInfo, msg, args...)
}

func (p *Pace) log(log *slog.Logger, level slog.Level, msg string, args ...any) {
	held, ok := p.allow(time.Now())
	if !ok {
		return
	}
	if held > 0 {
		args = append(args, "lines_left_out_before", held)
	}
	log.Log(context.Background(), level, msg, args...)
}

// allow takes one of the lines that are left at now.
func (p *Pace) allow(now time.Time) (held int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if more := int(now.Sub(p.last) / Period); more > 0 {
		p.tokens = min(p.tokens+more, p.burst)
		p.last = now
	}
	if p.tokens == 0 {
		p.held++
		return 0, false
	}
	p.tokens--
	held, p.held = p.held, 0
	return held, true
}
