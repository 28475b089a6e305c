//go:build race

package blocktest

// raceCost is by how much fewer operations a test runs because each costs more
// under the race detector.
const raceCost = 3
