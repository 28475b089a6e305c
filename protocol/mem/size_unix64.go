//go:build unix && (amd64 || arm64)

package mem

// MaxSize is the largest disk in bytes: well inside what a process can address,
// with a bitmap of 32 MiB.
const MaxSize = 16 << 40
