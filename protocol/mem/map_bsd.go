//go:build unix && !linux

package mem

// noReserve: these systems reserve nothing for anonymous memory anyway.
const noReserve = 0
