package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// filled is the content of disks that hold any.
var filled = pattern(0)

// makeFile writes a file of size bytes of the pattern, in full, to storage.
// Unless it is to be cached, its pages leave the page cache.
func makeFile(name string, size int64, cached bool) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	b := make([]byte, mib)
	for off := int64(0); off < size; off += int64(len(b)) {
		b = b[:min(int64(len(b)), size-off)]
		filled(b, off)
		if _, err := f.WriteAt(b, off); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if cached {
		return nil
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("%s: dropping its pages from the cache: %w", name, err)
	}
	return nil
}

// serveDisk starts a server with its disk, brings the disk to its content and
// checks that the server serves it.
func serveDisk(p peer, name string, d disk, at *place) (*server, error) {
	c, note, ok, err := p.serve(d, at)
	if err != nil || !ok {
		return nil, err
	}
	s, err := start(name, note, c)
	if err != nil {
		return nil, err
	}
	if err := bring(s, d, at); err != nil {
		return nil, errors.Join(fmt.Errorf("%s, disk %s: %w", name, d.name, err), s.end())
	}
	return s, nil
}

// bring fills the disk if nobody has yet, and checks contents through the
// server: reads everywhere, and writes that are read back.
func bring(s *server, d disk, at *place) error {
	const forLong = 10 * time.Minute
	some := workload{random: true, block: 4 * kib, depth: 16, conns: 1}
	if !d.content {
		return once(s, some, zeroes, forLong, 256)
	}
	if !at.filled {
		if err := once(s, workload{write: true, block: mib, depth: 4, conns: 1}, filled, forLong, at.size/mib); err != nil {
			return fmt.Errorf("filling it: %w", err)
		}
	}
	if err := once(s, some, filled, forLong, 1024); err != nil {
		return err
	}
	for _, c := range []content{pattern(1), filled} {
		for _, write := range []bool{true, false} {
			few := workload{write: write, block: 64 * kib, depth: 8, conns: 1}
			if err := once(s, few, c, forLong, 32); err != nil {
				return err
			}
		}
	}
	return nil
}

// once runs a workload of total requests a connection.
func once(s *server, w workload, c content, d time.Duration, total int64) error {
	f, err := dialAll(s, w, c)
	if err != nil {
		return err
	}
	_, err = f.run(d, total)
	return errors.Join(err, f.leave())
}

// makePlace makes the folders for one server.
func makePlace(dir, shm, name string, size int64) (*place, error) {
	p := &place{dir: filepath.Join(dir, name), shm: filepath.Join(shm, name), size: size}
	return p, errors.Join(os.MkdirAll(p.dir, 0o755), os.MkdirAll(p.shm, 0o755))
}

func (p *place) remove() error { return errors.Join(os.RemoveAll(p.dir), os.RemoveAll(p.shm)) }
