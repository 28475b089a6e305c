package nbd

import (
	"io"
	"sync"

	"github.com/platter-storage/platter/internal/sys"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// link is the byte stream to the client: a sock, or a stream where there is
// TLS in between. One reader and, at the same time, one sender may use it.
type link interface {
	// read reads what there is into p: one byte at least.
	read(p []byte) (int, error)
	// readv reads into p and may go on into ahead once p is full.
	readv(p, ahead []byte) (int, error)
	// write writes all of bufs, in order, and may change the elements.
	write(bufs [][]byte) error
}

// streamBuf is how much a stream gathers before it hands it on.
const streamBuf = 64 << 10

// stream is a link over anything that reads and writes: TLS above all.
type stream struct {
	rw     io.ReadWriter
	gather *gatherer // below rw; may be nil
	out    []byte
}

func (s *stream) read(p []byte) (int, error) { return s.rw.Read(p) }

func (s *stream) readv(p, _ []byte) (int, error) { return s.rw.Read(p) }

// write sends all in one go. Small elements are joined, because each call makes
// a record of its own.
func (s *stream) write(bufs [][]byte) error {
	if s.gather == nil {
		return s.join(bufs)
	}
	s.gather.hold()
	if err := s.join(bufs); err != nil {
		return err
	}
	return s.gather.release()
}

func (s *stream) join(bufs [][]byte) error {
	s.out = s.out[:0]
	for _, b := range bufs {
		if len(s.out)+len(b) > streamBuf {
			if err := s.flush(); err != nil {
				return err
			}
		}
		if len(b) < streamBuf {
			s.out = append(s.out, b...)
		} else if _, err := s.rw.Write(b); err != nil {
			return err
		}
	}
	return s.flush()
}

func (s *stream) flush() error {
	if len(s.out) == 0 {
		return nil
	}
	_, err := s.rw.Write(s.out)
	s.out = s.out[:0]
	return err
}

// zeroes is as many zero bytes as one request can ask for. Nobody writes to
// it: all of it is the system's one page of zeroes, which stays in the cache.
var zeroes = sync.OnceValue(func() []byte {
	b, _, err := sys.MapAligned(wire.MaxPayload, sys.PageSize())
	if err != nil {
		return make([]byte, wire.MaxPayload)
	}
	keepSmall(b)
	return b
})
