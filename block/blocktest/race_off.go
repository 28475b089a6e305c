//go:build !race

package blocktest

const raceCost = 1
