//go:build !race

package race

// Enabled reports the race detector.
const Enabled = false
