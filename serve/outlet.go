package serve

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// outlet writes what the daemon says, events or its log, on a goroutine of its
// own: a reader who does not read must hold up neither signals nor requests.
// What it does not find room for is left out, and counted.
//
// It is made as a literal, and run on a goroutine.
type outlet struct {
	w io.Writer
	// gap makes the line that stands where others were left out, failed hears
	// of what could not be written. Both may be nil.
	gap    func(lines int64) []byte
	failed func(err error)

	lines   chan outletLine
	leftOut atomic.Int64
}

// outletLine is text to write, or a mark that is closed when all before it is
// written; the last mark ends the outlet.
type outletLine struct {
	text []byte
	mark chan struct{}
	last bool
}

// outletLines is how many writes wait for a reader.
const outletLines = 256

// run writes until the last mark.
func (o *outlet) run() {
	for l := range o.lines {
		if l.mark != nil {
			close(l.mark)
			if l.last {
				return
			}
			continue
		}
		if _, err := o.w.Write(l.text); err != nil && o.failed != nil {
			o.failed(err)
		}
		if o.gap == nil {
			continue
		}
		if n := o.leftOut.Swap(0); n > 0 {
			_, _ = o.w.Write(o.gap(n)) // where the reader has gone the next line says so
		}
	}
}

var errNobodyReads = fmt.Errorf("%d lines wait already, and nobody reads them", outletLines)

// Write takes b, whole lines, and never waits.
func (o *outlet) Write(b []byte) (int, error) {
	select {
	case o.lines <- outletLine{text: append([]byte(nil), b...)}:
		return len(b), nil
	default:
		o.leftOut.Add(1)
		return 0, errNobodyReads
	}
}

// lastWords is how long the end of the program waits for a reader to take what
// was said last.
const lastWords = time.Second

// end waits until all is written, at most for lastWords, and ends the outlet.
func (o *outlet) end() {
	t := time.NewTimer(lastWords)
	defer t.Stop()
	o.written(outletLine{mark: make(chan struct{}), last: true}, t.C)
}

// flush waits as long as the reader takes.
func (o *outlet) flush() { o.written(outletLine{mark: make(chan struct{})}, nil) }

func (o *outlet) written(mark outletLine, enough <-chan time.Time) {
	select {
	case o.lines <- mark:
	case <-enough:
		return
	}
	select {
	case <-mark.mark:
	case <-enough:
	}
}
