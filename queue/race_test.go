//go:build race

package queue

// raced: under the race detector a sync.Pool forgets at random, so allocations
// are not counted; and all takes its time, so there is less of it.
const raced = true
