package file

import (
	"errors"
	"fmt"
	"math/bits"
	"syscall"
)

// Answer is what one source said about a file's direct I/O.
type Answer struct {
	// Source is "file system", "statx", "ioctl", "sysfs", "xfs", "trial",
	// "cross-check" or "segments".
	Source string `json:"source"`
	// Said is the answer in words, empty where the source has none.
	Said string `json:"said,omitempty"`
	// Error is why the source has no answer, or how the trial failed.
	Error string `json:"error,omitempty"`
}

func (r *resolver) answer(source, said string, err error) {
	a := Answer{Source: source, Said: said}
	if err != nil {
		a.Error = err.Error()
	}
	r.out.answers = append(r.out.answers, a)
}

// fsFact is what is known of a file system beside what it says itself.
type fsFact struct {
	name string
	// anyAlign: direct I/O takes any offset, length and memory, whatever
	// statx says.
	anyAlign bool
	// memory: the content is in memory; calls never wait for a device.
	memory bool
	// blockAlign: only whole file system blocks, in memory aligned to
	// them, are direct; the rest goes through the page cache, silently.
	blockAlign bool
	why        string
}

var fsFacts = map[int64]fsFact{
	0x6969:     {name: "nfs", anyAlign: true, why: "the NFS client takes any alignment; the page that statx names is no limit"},
	0x01021994: {name: "tmpfs", anyAlign: true, memory: true, why: "the content is in memory: any alignment"},
	0x858458f6: {name: "ramfs", anyAlign: true, memory: true, why: "the content is in memory: any alignment"},
	0x9123683e: {name: "btrfs", blockAlign: true, why: "only whole blocks are direct; the rest goes through the page cache, silently"},
	0x65735546: {name: "fuse", why: "its server decides what it takes"},
	0xef53:     {name: "ext4"},
	0x58465342: {name: "xfs"},
	0xf2f52010: {name: "f2fs"},
	0x794c7630: {name: "overlay"},
	0xca451a4e: {name: "bcachefs"},
	0x2fc12fc1: {name: "zfs"},
	0xff534d42: {name: "cifs"},
	0xfe534d42: {name: "smb"},
	0x00c36400: {name: "ceph"},
	0x01021997: {name: "9p"},
	0x01161970: {name: "gfs2"},
	0x7461636f: {name: "ocfs2"},
	0xe0f5e1e2: {name: "erofs"},
	0x73717368: {name: "squashfs"},
	0x9660:     {name: "iso9660"},
	0x2011bab0: {name: "exfat"},
	0x4d44:     {name: "vfat"},
	0x7366746e: {name: "ntfs"},
}

// ask puts every question, and records the answers.
func (r *resolver) ask() {
	r.fsBlock = safeAlign
	if !r.q.device {
		r.askFileSystem()
	}
	r.askStatx()
	if r.q.device {
		r.askDevice()
	}
	r.askQueue()
	if r.out.fs.name == "xfs" {
		r.askXFS()
	}
	if r.q.direct && !r.out.fs.anyAlign {
		r.askData()
	}
}

func (r *resolver) askFileSystem() {
	a, err := r.src.fileSystem()
	if err != nil {
		r.answer("file system", "", err)
		return
	}
	r.out.fs = fsFacts[a.magic]
	if r.out.fs.name == "" {
		r.out.fs.name = fmt.Sprintf("type %#x", a.magic)
	}
	if bits.OnesCount64(uint64(a.blockSize)) == 1 && a.blockSize >= 512 && a.blockSize <= 64<<10 {
		r.fsBlock = a.blockSize
	}
	said := fmt.Sprintf("%s, blocks of %d", r.out.fs.name, a.blockSize)
	if r.out.fs.why != "" {
		said += ": " + r.out.fs.why
	}
	r.answer("file system", said, nil)
}

func (r *resolver) askStatx() {
	a, err := r.src.statx()
	r.statx, r.out.statx = a, a
	switch {
	case err != nil:
		r.statx = statxAnswer{}
		r.answer("statx", "", err)
	case !a.stated:
		r.answer("statx", "does not say (STATX_DIOALIGN is not set)", nil)
	case a.write == 0 || a.mem == 0:
		r.answer("statx", "no direct I/O on this file", nil)
	default:
		r.answer("statx", fmt.Sprintf("memory %d, writes %d, reads %d", a.mem, a.write, a.read), nil)
	}
}

func (r *resolver) askDevice() {
	a, err := r.src.device()
	if err == nil && a.logical == 0 {
		err = errors.New("a logical block of 0 bytes")
	}
	if err != nil {
		r.answer("ioctl", "", err)
		return
	}
	a.physical = max(a.physical, a.logical)
	r.dev, r.devOK = a, true
	r.answer("ioctl", fmt.Sprintf("logical block %d, physical %d, minimum I/O %d, optimal I/O %d", a.logical, a.physical, a.ioMin, a.ioOpt), nil)
}

func (r *resolver) askQueue() {
	a, err := r.src.queue()
	if err != nil {
		r.answer("sysfs", "", err)
		return
	}
	r.queue, r.queueOK, r.out.onDevice = a, true, true
	r.answer("sysfs", fmt.Sprintf("%s: logical block %d, physical %d, DMA alignment %d, segments %d, requests of %d KiB, optimal I/O %d, boundary mask %d, discard up to %d, write zeroes up to %d",
		a.dir, a.logical, a.physical, a.dma, a.maxSegments, a.maxSectorsKB, a.ioOpt, a.boundary, a.discardMax, a.zeroesMax), nil)
}

func (r *resolver) askXFS() {
	a, err := r.src.xfs()
	if err == nil && a.minIO == 0 {
		err = errors.New("a minimum request of 0 bytes")
	}
	if err != nil {
		r.answer("xfs", "", err)
		return
	}
	r.xfs, r.xfsOK = a, true
	r.answer("xfs", fmt.Sprintf("memory %d, requests %d to %d", a.mem, a.minIO, a.maxIO), nil)
}

// askData finds where trial reads go: a hole or an unwritten extent takes any
// alignment, so only stored data tells.
func (r *resolver) askData() {
	off, n, err := r.src.data()
	if err != nil {
		if !errors.Is(err, syscall.ENXIO) {
			r.answer("trial", "cannot find data in the file", err)
		}
		return
	}
	// The largest alignment that a start inside the run can have.
	for a := int64(64 << 10); a >= 512; a /= 2 {
		start := (off + a - 1) &^ (a - 1)
		if left := off + n - start; left >= min(a, n/2) && left >= 512 {
			r.runOff, r.runLen = start, left
			return
		}
	}
}

// text is the answer in one phrase.
func (a *Answer) text() string {
	switch {
	case a.Error == "":
		return a.Said
	case a.Said == "":
		return a.Error
	}
	return a.Said + ": " + a.Error
}
