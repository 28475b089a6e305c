package file

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/sys"
)

// linuxFacts asks the kernel about an open file.
type linuxFacts struct {
	fd int
	// buf is MaxAlign-aligned memory for trial reads, made when first
	// needed.
	buf, mapping []byte
	// lastQueue is what sysfs said while it could be read: a sandbox may
	// take it away later.
	lastQueue queueAnswer
}

// trialSpace holds two elements of MaxAlign bytes, each with its lead.
const trialSpace = 4 * block.MaxAlign

func (s *linuxFacts) close() {
	if s.mapping != nil {
		_ = sys.Unmap(s.mapping)
		s.buf, s.mapping = nil, nil
	}
}

func (s *linuxFacts) fileSystem() (fsAnswer, error) {
	var st unix.Statfs_t
	if err := ignoringEINTR(func() error { return unix.Fstatfs(s.fd, &st) }); err != nil {
		return fsAnswer{}, err
	}
	return fsAnswer{magic: int64(st.Type) & 0xffffffff, blockSize: st.Bsize}, nil
}

func (s *linuxFacts) statx() (statxAnswer, error) {
	d, err := sys.StatxDirect(s.fd)
	return statxAnswer{stated: d.Stated, mem: d.Mem, write: d.Off, read: d.Read}, err
}

func (s *linuxFacts) device() (deviceAnswer, error) {
	var a deviceAnswer
	for _, q := range []struct {
		req uint
		to  *uint32
	}{
		{unix.BLKSSZGET, &a.logical}, {unix.BLKPBSZGET, &a.physical}, {unix.BLKIOMIN, &a.ioMin}, {unix.BLKIOOPT, &a.ioOpt},
	} {
		v, err := unix.IoctlGetUint32(s.fd, q.req)
		if err != nil {
			return a, err
		}
		*q.to = v
	}
	return a, nil
}

// queue finds the queue of the whole disk under the file: partitions have
// none of their own.
func (s *linuxFacts) queue() (queueAnswer, error) {
	var st unix.Stat_t
	if err := unix.Fstat(s.fd, &st); err != nil {
		return queueAnswer{}, err
	}
	dev := st.Dev
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		dev = st.Rdev
	}
	a, err := readQueue("/sys", unix.Major(dev), unix.Minor(dev))
	if err != nil && s.lastQueue.dir != "" {
		return s.lastQueue, nil
	}
	s.lastQueue = a
	return a, err
}

// readQueue reads the queue attributes of device major:minor below the sysfs
// mounted at root.
func readQueue(root string, major, minor uint32) (queueAnswer, error) {
	link := fmt.Sprintf("%s/dev/block/%d:%d", root, major, minor)
	dir, err := filepath.EvalSymlinks(link)
	if err != nil {
		return queueAnswer{}, fmt.Errorf("no block device %d:%d in sysfs", major, minor)
	}
	if _, err := os.Stat(dir + "/partition"); err == nil {
		dir = filepath.Dir(dir)
	}
	dir += "/queue"
	if _, err := os.Stat(dir); err != nil {
		return queueAnswer{}, fmt.Errorf("%s is not there", dir)
	}
	a := queueAnswer{
		dir:     dir,
		logical: attr32(dir, "logical_block_size"), physical: attr32(dir, "physical_block_size"), ioOpt: attr32(dir, "optimal_io_size"),
		maxSegments: attr32(dir, "max_segments"), maxSectorsKB: attr32(dir, "max_sectors_kb"), boundary: attr32(dir, "virt_boundary_mask"),
		discardMax: attr(dir, "discard_max_bytes"), zeroesMax: attr(dir, "write_zeroes_max_bytes"),
	}
	if _, err := os.Stat(dir + "/dma_alignment"); err == nil {
		a.dma = attr32(dir, "dma_alignment") + 1
	}
	return a, nil
}

// attr is a number from a sysfs file, 0 where there is none.
func attr(dir, name string) int64 {
	text, err := os.ReadFile(dir + "/" + name)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 63)
	if err != nil {
		return 0
	}
	return int64(n)
}

func attr32(dir, name string) uint32 { return uint32(min(attr(dir, name), 1<<31)) }

func (s *linuxFacts) xfs() (xfsAnswer, error) {
	d, err := xfsDirect(s.fd)
	return xfsAnswer(d), err
}

// kernelVersion is read once: it does not change under a process.
var kernelVersion = sync.OnceValue(func() [2]int {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return [2]int{}
	}
	return parseRelease(unix.ByteSliceToString(u.Release[:]))
})

func (s *linuxFacts) kernel() (major, minor int) {
	v := kernelVersion()
	return v[0], v[1]
}

// parseRelease reads the first two numbers of "6.18.44-something".
func parseRelease(s string) (v [2]int) {
	for i, f := range strings.SplitN(s, ".", 3) {
		if i > 1 {
			break
		}
		if cut := strings.IndexFunc(f, func(c rune) bool { return c < '0' || c > '9' }); cut >= 0 {
			f = f[:cut]
		}
		v[i], _ = strconv.Atoi(f)
	}
	return v
}

func (s *linuxFacts) data() (off, n int64, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(s.fd, &st); err != nil {
		return 0, 0, err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		size, err := deviceSize(s.fd)
		return 0, size, err
	}
	if off, err = unix.Seek(s.fd, 0, unix.SEEK_DATA); err != nil {
		return 0, 0, err
	}
	end, err := unix.Seek(s.fd, off, unix.SEEK_HOLE)
	if err != nil {
		return 0, 0, err
	}
	if end == st.Size {
		// The last block is stored whole.
		end = (end + safeAlign - 1) &^ (safeAlign - 1)
	}
	return off, end - off, nil
}

func (s *linuxFacts) trial(t trialRead) trialOutcome {
	if s.buf == nil {
		b, m, err := sys.MapAligned(trialSpace, block.MaxAlign)
		if err != nil {
			return trialOutcome{err: err}
		}
		s.buf, s.mapping = b, m
	}
	var v [][]byte
	var n int64
	at := uint32(0)
	for _, l := range t.lens {
		v = append(v, s.buf[at+t.lead:at+t.lead+l])
		at += (t.lead + l + block.MaxAlign - 1) &^ (block.MaxAlign - 1)
		n += int64(l)
	}
	before, known := cachedPages(s.fd, t.off, n)
	err := ignoringEINTR(func() error {
		_, err := unix.Preadv(s.fd, v, t.off)
		return err
	})
	after, _ := cachedPages(s.fd, t.off, n)
	return trialOutcome{err: err, cached: err == nil && known && before == 0 && after > 0}
}

// ignoringEINTR repeats a call that a signal interrupted, a bounded number of
// times.
func ignoringEINTR(f func() error) error {
	var err error
	for range maxInterrupts {
		if err = f(); err != unix.EINTR {
			return err
		}
	}
	return err
}

// deviceSize is the size of a block device in bytes.
func deviceSize(fd int) (int64, error) {
	n, err := unix.IoctlGetInt(fd, unix.BLKGETSIZE64)
	return int64(n), err
}

// durableFlag: RWF_DSYNC is there from Linux 4.7 on, for every file.
func (s *linuxFacts) durableFlag() bool {
	major, minor := s.kernel()
	return major > 4 || major == 4 && minor >= 7
}

// canNoWait reports whether the kernel can start a read of the file without
// blocking: EAGAIN says so too.
func canNoWait(fd int) bool {
	var b [1]byte
	_, err := unix.Preadv2(fd, [][]byte{b[:]}, 0, unix.RWF_NOWAIT)
	return err == nil || err == unix.EAGAIN
}

// place finds the block device that the file lies on, or is.
func (s *linuxFacts) place() placed {
	var st unix.Stat_t
	if err := unix.Fstat(s.fd, &st); err != nil {
		return placed{allocated: -1}
	}
	dev, p := st.Dev, placed{allocated: st.Blocks * 512}
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		dev, p.allocated = st.Rdev, -1
	}
	p.device = fmt.Sprintf("%d:%d", unix.Major(dev), unix.Minor(dev))
	if dir, err := filepath.EvalSymlinks("/sys/dev/block/" + p.device); err == nil {
		p.device += " " + filepath.Base(dir)
	}
	if a, err := s.fileSystem(); err == nil && a.magic == unix.NFS_SUPER_MAGIC {
		p.mount = readMount(fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	}
	return p
}

// readMount finds the mount of device, nil where the kernel tells of none.
func readMount(device string) *Mount {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxMountInfo))
	if err != nil {
		return nil
	}
	if m, ok := findMount(string(text), device); ok {
		return &m
	}
	return nil
}
