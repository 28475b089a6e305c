//go:build race

package queue

// raced: under the race detector a sync.Pool forgets at random, so allocations
// are not counted.
const raced = true
