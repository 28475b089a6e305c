//go:build race

package file

// raced: under the race detector pools of the runtime drop what they are given
// at random, so that allocations cannot be counted.
const raced = true
