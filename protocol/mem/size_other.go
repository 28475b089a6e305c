//go:build !(unix && (amd64 || arm64))

package mem

// MaxSize is the largest disk in bytes: its memory may count as used from the
// start here.
const MaxSize = 1 << 30
