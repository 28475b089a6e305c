package vhostuser

import "github.com/platter-storage/platter/internal/sys"

// Fds are the descriptors that came with a message. Whoever reads the message
// owns them: he takes those he keeps, and closes the rest.
type Fds struct {
	fd [MaxFds]int
	n  int
	// kept has a bit for each that was taken.
	kept uint32
}

// Len is how many came.
func (f *Fds) Len() int { return f.n }

// Fd is the i-th, still theirs.
func (f *Fds) Fd(i int) int { return f.fd[i] }

// Take is the i-th, the caller's from now on.
func (f *Fds) Take(i int) int {
	f.kept |= 1 << i
	return f.fd[i]
}

// Close closes those that were not taken.
func (f *Fds) Close() {
	for i := range f.n {
		if f.kept>>i&1 == 0 {
			sys.CloseFd(f.fd[i])
		}
	}
	f.n, f.kept = 0, 0
}

// add takes over descriptors that arrived; those beyond the limit are closed.
func (f *Fds) add(fds []int) (ok bool) {
	for i, fd := range fds {
		if f.n == MaxFds {
			for _, more := range fds[i:] {
				sys.CloseFd(more)
			}
			return false
		}
		f.fd[f.n] = fd
		f.n++
	}
	return true
}
