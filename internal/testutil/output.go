package testutil

import (
	"strings"
	"sync"
)

// Output collects what a program writes, and can be read meanwhile.
type Output struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write takes what is written.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// String is what was written so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
