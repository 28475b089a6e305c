package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/platter-storage/platter/bench/content"
)

// forLong is for what is done by count.
const forLong = 10 * time.Minute

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
		return nil, errors.Join(fmt.Errorf("%s, disk %s: %w", name, d.name, err), s.End())
	}
	return s, nil
}

// bring fills the disk if nobody has yet, and checks contents through the
// server: reads everywhere, and writes that are read back.
func bring(s *server, d disk, at *place) error {
	some := workload{random: true, block: 4 * kib, depth: 16, conns: 1}
	if !d.content {
		return once(s, some, content.Zeroes, forLong, 256)
	}
	if !at.filled {
		if err := once(s, workload{write: true, block: mib, depth: 4, conns: 1}, content.Filled, forLong, at.size/mib); err != nil {
			return fmt.Errorf("filling it: %w", err)
		}
	}
	if err := once(s, some, content.Filled, forLong, 1024); err != nil {
		return err
	}
	for _, c := range []content.Content{content.Pattern(1), content.Filled} {
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
func once(s *server, w workload, c content.Content, d time.Duration, total int64) error {
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
