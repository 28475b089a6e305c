// Package race says whether the race detector is built in, for tests: under it
// the runtime's pools drop what they are given at random, so that allocations
// cannot be counted, and everything takes its time.
package race
