package img

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/image"
)

// maxTransfer bounds one read or write in bytes: it is in memory as a whole.
const maxTransfer = 1<<31 - 1<<20

// maxSleep bounds the command sleep in milliseconds.
const maxSleep = 3600e3

// ioSize is a size as qemu-io writes it: 40 bytes, 64 KiB, 2.397 MiB.
func ioSize(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d bytes", n)
	}
	return ioAmount(float64(n))
}

func ioAmount(f float64) string {
	unit := 0
	for f >= 1024 && unit < 6 {
		f, unit = f/1024, unit+1
	}
	return strings.TrimSuffix(strconv.FormatFloat(f, 'f', 3, 64), ".000") + " " + [...]string{"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}[unit]
}

// errBeyond is what a request past the end is told; what fills the last sector
// of 512 bytes may be read.
var errBeyond = block.Errorf(syscall.EIO, "beyond the end")

// failing is what a failed command is called.
func failing(c *command) string {
	switch c.verb {
	case "r":
		return "read"
	case "w":
		return "write"
	}
	return c.verb
}

// transfer is what read and write have in common.
type transfer struct {
	off, n  int64
	pattern byte
	has     bool
	begun   time.Time
}

// transfer reads offset and lengths, and the pattern.
func (s *session) transfer(c *command) (t transfer, err error) {
	if t.off, err = parseBytes(c.args[0]); err != nil {
		return t, fmt.Errorf("non-numeric length argument -- %s", c.args[0])
	}
	for _, a := range c.args[1:] {
		n, err := parseBytes(a)
		if err != nil {
			return t, fmt.Errorf("non-numeric length argument -- %s", a)
		}
		if n > maxTransfer-t.n && !c.has("z") {
			return t, fmt.Errorf("length cannot exceed %d, given %s", int64(maxTransfer), a)
		}
		t.n += n
	}
	t.pattern = 0xcd
	if c.has("P") {
		p, err := strconv.ParseUint(c.get("P"), 0, 8)
		if err != nil {
			return t, fmt.Errorf("%s is not a valid pattern byte", c.get("P"))
		}
		t.pattern, t.has = byte(p), true
	}
	t.begun = time.Now()
	return t, nil
}

// report prints how much was done, and how fast.
func (s *session) report(c *command, what string, t transfer) {
	if c.has("q") {
		return
	}
	d := time.Since(t.begun)
	secs := max(d.Seconds(), 1e-9)
	rate := ioAmount(float64(t.n) / secs)
	if c.has("C") {
		fmt.Fprintf(s.Out, "%d,1,%.6f,%s,%.4f\n", t.n, secs, rate, 1/secs)
		return
	}
	took := fmt.Sprintf("%02d.%02d sec", int(secs), int(secs*100)%100)
	fmt.Fprintf(s.Out, "%s %d/%d bytes at offset %d\n%s, 1 ops; %s (%s/sec and %.4f ops/sec)\n", what, t.n, t.n, t.off, ioSize(t.n), took, rate, 1/secs)
}

func (s *session) read(c *command) error {
	t, err := s.transfer(c)
	if err != nil {
		return err
	}
	from, err := c.size("s", 0)
	n, nerr := c.size("l", t.n-from)
	switch {
	case c.has("b"):
		return errors.New("the virtual machine's state is not reached here")
	case errors.Join(err, nerr) != nil:
		return errors.Join(err, nerr)
	case (c.has("s") || c.has("l")) && !c.has("P") || from < 0 || n < 0 || from > t.n-n:
		return errors.New("pattern verification range exceeds end of read data")
	case t.off < 0 || t.off+t.n > (s.im.Size()+511)&^511:
		return s.told(failing(c), errBeyond)
	}
	b := make([]byte, t.n)
	if inside := min(t.n, s.im.Size()-t.off); inside > 0 {
		if err := s.im.Read(b[:inside], t.off); err != nil {
			return s.told(failing(c), err)
		}
	}
	var bad error
	if t.has && !allIs(b[from:from+n], t.pattern) {
		fmt.Fprintf(s.Out, "Pattern verification failed at offset %d, %d bytes\n", t.off+from, n)
		bad = exitTold{}
	}
	if c.has("v") && !c.has("q") {
		s.dump(b, t.off)
	}
	s.report(c, "read", t)
	return bad
}

// allIs reports whether b has nothing but x.
func allIs(b []byte, x byte) bool {
	return len(b) == 0 || b[0] == x && bytes.Equal(b[1:], b[:len(b)-1])
}

// dump writes bytes in hexadecimal, sixteen a line.
func (s *session) dump(b []byte, off int64) {
	for len(b) > 0 {
		n := min(16, len(b))
		var line strings.Builder
		fmt.Fprintf(&line, "%08x:  ", off)
		for _, x := range b[:n] {
			fmt.Fprintf(&line, "%02x ", x)
		}
		line.WriteByte(' ')
		for _, x := range b[:n] {
			if x < 0x20 || x > 0x7e {
				x = '.'
			}
			line.WriteByte(x)
		}
		fmt.Fprintln(s.Out, line.String())
		b, off = b[n:], off+int64(n)
	}
}

func (s *session) write(c *command) error {
	t, err := s.transfer(c)
	switch {
	case err != nil:
		return err
	case c.has("b"):
		return errors.New("the virtual machine's state is not reached here")
	case c.has("z") && (c.has("P") || c.has("s") || c.has("c")), c.has("P") && c.has("s"):
		return errors.New("-z excludes -c, -s and -P; -s excludes -P")
	case (c.has("u") || c.has("n")) && !c.has("z"):
		return errors.New("-u and -n need -z to be specified")
	case c.has("c") && c.has("f"):
		return errors.New("-c and -f exclude each other")
	case t.off < 0 || t.off+t.n > s.im.Size():
		return s.told(failing(c), errBeyond)
	}
	if err := s.put(c, t); err != nil {
		if errors.As(err, new(exitTold)) {
			return err
		}
		return s.told(failing(c), err)
	}
	s.report(c, "wrote", t)
	return nil
}

// put writes what the options say.
func (s *session) put(c *command, t transfer) error {
	var fl block.Flags
	if c.has("f") {
		fl |= block.FUA
	}
	if c.has("z") {
		if c.has("u") && s.keepDiscards {
			fl |= block.MayUnmap
		}
		if c.has("n") {
			fl |= block.NoFallback
		}
		return s.im.Zero(t.off, t.n, fl)
	}
	b := bytes.Repeat([]byte{t.pattern}, int(t.n))
	if c.has("s") {
		if err := fillFrom(b, c.get("s")); err != nil {
			fmt.Fprintln(s.Out, err)
			return exitTold{}
		}
	}
	if c.has("c") {
		return compressed(s.im, b, t.off)
	}
	return s.im.Write(b, t.off, fl)
}

// fillFrom repeats what a file has.
func fillFrom(b []byte, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	n := 0
	for n < len(b) {
		k, err := f.Read(b[n:])
		if n += k; err != nil {
			break
		}
	}
	if n == 0 && len(b) > 0 {
		return fmt.Errorf("%s: pattern file is empty", name)
	}
	for k := n; k < len(b); {
		k += copy(b[k:], b[:k])
	}
	return nil
}

// compressed writes clusters compressed where that makes them smaller.
func compressed(im *image.Image, b []byte, off int64) error {
	step := im.Cluster()
	if step <= 0 {
		return block.ErrNotSupported
	}
	for len(b) > 0 {
		n := min(step-off%step, int64(len(b)))
		err := im.WriteCompressed(b[:n], off)
		if block.IsNotSupported(err) {
			err = im.Write(b[:n], off, 0)
		}
		if err != nil {
			return err
		}
		b, off = b[n:], off+n
	}
	return nil
}

func (s *session) discard(c *command) error {
	t, err := s.transfer(c)
	if err != nil {
		return err
	}
	if t.off < 0 || t.off+t.n > s.im.Size() {
		return s.told("discard", errBeyond)
	}
	if s.keepDiscards {
		if err := s.im.Discard(t.off, t.n); err != nil {
			return s.told("discard", err)
		}
	}
	s.report(c, "discard", t)
	return nil
}

func (s *session) alloc(c *command) error {
	off, err := parseBytes(c.args[0])
	n := int64(512)
	if err == nil && len(c.args) == 2 {
		n, err = parseBytes(c.args[1])
	}
	if err != nil {
		return err
	}
	if off+n > s.im.Size() || off < 0 {
		return errors.New("the range is beyond the end of the image")
	}
	sum := int64(0)
	for at := off; at < off+n; {
		e, err := s.im.Status(at, off+n-at)
		if err != nil {
			return s.told("is_allocated", err)
		}
		if e.Allocated && e.Depth == 0 {
			sum += e.Len
		}
		at += e.Len
	}
	fmt.Fprintf(s.Out, "%d/%d bytes allocated at offset %s\n", sum, n, ioSize(off))
	return nil
}

func (s *session) mapRuns(*command) error {
	size := s.im.Size()
	start, state := int64(0), false
	flush := func(end int64) {
		if end > start {
			text := "    allocated"
			if !state {
				text = "not allocated"
			}
			fmt.Fprintf(s.Out, "%s (0x%x) bytes %s at offset %s (0x%x)\n", ioSize(end-start), end-start, text, ioSize(start), start)
		}
	}
	for at := int64(0); at < size; {
		e, err := s.im.Status(at, size-at)
		if err != nil {
			return s.told("map", err)
		}
		if own := e.Allocated && e.Depth == 0; own != state || at == 0 {
			flush(at)
			start, state = at, own
		}
		at += e.Len
	}
	flush(size)
	return nil
}

func (s *session) sleep(c *command) error {
	n, err := strconv.ParseInt(c.args[0], 10, 64)
	if err != nil || n < 0 || n > maxSleep {
		return fmt.Errorf("%q is not a number of milliseconds up to an hour", c.args[0])
	}
	select {
	case <-time.After(time.Duration(n) * time.Millisecond):
	case <-s.ctx.Done():
	}
	return nil
}
