package file

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
)

// want is what a case of the decision table must resolve to.
type want struct {
	read, write, mem, seg uint32
	origin                block.Origin // of WriteAlign
}

// said are statx answers.
func said(mem, write, read uint32) statxAnswer {
	return statxAnswer{stated: true, mem: mem, write: write, read: read}
}

var virtioDisk = queueAnswer{dir: "vda/queue", logical: 512, physical: 4096, dma: 512, maxSegments: 254, maxSectorsKB: 4096, discardMax: 1 << 30}

// limitCases is the whole decision: what the sources say, what storage really
// needs, and what must come out.
var limitCases = []struct {
	name  string
	needs needs
	make  func(f *fake)
	want  want
	text  string // to be found in the answers
}{
	{"statx 512 on ext4", needs{512, 512, 512, 512},
		func(f *fake) { f.dio = said(512, 512, 512) },
		want{512, 512, 512, 512, block.OriginStatx}, "into memory aligned to 512 succeeded"},
	{"A4 NVMe memory of 4 is not recorded as 512", needs{512, 512, 4, 4},
		func(f *fake) { f.dio = said(4, 512, 512) },
		want{512, 512, 4, 4, block.OriginStatx}, "multiples of 4"},
	{"A4 NVMe found by trial alone", needs{512, 512, 4, 4},
		func(f *fake) {},
		want{512, 512, 4, 4, block.OriginTrial}, "requests of 512, memory of 4"},
	{"A5 4Kn on 6.18 takes parts of blocks", needs{4096, 4096, 512, 512},
		func(f *fake) { f.dio = said(512, 4096, 4096) },
		want{4096, 4096, 512, 512, block.OriginStatx}, "a read in parts of 512 and 3584 succeeded"},
	{"A5 4Kn on 6.17 takes whole blocks", needs{4096, 4096, 512, 4096},
		func(f *fake) { f.dio, f.release = said(512, 4096, 4096), [2]int{6, 17} },
		want{4096, 4096, 512, 4096, block.OriginStatx}, "kernels before 6.18 take no less"},
	{"A5 6.18 but the storage refuses parts", needs{4096, 4096, 512, 4096},
		func(f *fake) { f.dio = said(512, 4096, 4096) },
		want{4096, 4096, 512, 4096, block.OriginStatx}, "was refused"},
	{"A10 NFS: statx names the page, anything goes", needs{1, 1, 1, 1},
		func(f *fake) { f.fs.magic, f.dio = 0x6969, said(4, 4096, 4096) },
		want{1, 1, 1, 1, block.OriginFileSystem}, "no limit"},
	{"A11 tmpfs: statx is silent, anything goes", needs{1, 1, 1, 1},
		func(f *fake) { f.fs.magic = 0x01021994 },
		want{1, 1, 1, 1, block.OriginFileSystem}, "in memory"},
	{"A12 reads finer than writes", needs{512, 4096, 512, 512},
		func(f *fake) { f.dio = said(512, 4096, 512) },
		want{512, 4096, 512, 512, block.OriginStatx}, ""},
	{"btrfs: whole blocks, though smaller ones are not refused", needs{1, 1, 1, 1},
		func(f *fake) { f.fs.magic = 0x9123683e },
		want{4096, 4096, 4096, 4096, block.OriginFileSystem}, "page cache, silently"},
	{"block device without statx, kernel 5.15", needs{512, 512, 512, 512},
		func(f *fake) {
			f.devErr, f.diskErr, f.release = nil, nil, [2]int{5, 15}
			f.dev, f.disk = deviceAnswer{512, 4096, 4096, 0}, virtioDisk
			f.disk.dma = 0
		},
		want{512, 512, 512, 512, block.OriginIoctl}, "logical block 512"},
	{"block device without statx, kernel 6.0: memory by sysfs", needs{4096, 4096, 4, 4096},
		func(f *fake) {
			f.devErr, f.diskErr, f.release = nil, nil, [2]int{6, 0}
			f.dev, f.disk = deviceAnswer{4096, 4096, 4096, 0}, virtioDisk
			f.disk.dma = 4
		},
		want{4096, 4096, 4, 4096, block.OriginIoctl}, ""},
	{"XFS without statx", needs{512, 512, 512, 512},
		func(f *fake) {
			f.fs.magic, f.xfsErr, f.release = 0x58465342, nil, [2]int{5, 4}
			f.xfsSays = xfsAnswer{512, 512, 1 << 30}
		},
		want{512, 512, 512, 512, block.OriginIoctl}, "requests 512"},
	{"XFS whose memory alignment is wrong", needs{4096, 4096, 512, 4096},
		func(f *fake) {
			f.fs.magic, f.xfsErr, f.release = 0x58465342, nil, [2]int{5, 4}
			f.xfsSays = xfsAnswer{4, 4096, 1 << 30}
		},
		want{4096, 4096, 512, 4096, block.OriginTrial}, "was refused: using 4096, 4096 and 512"},
	{"nothing states it: trial finds 4096 and 512", needs{4096, 4096, 512, 512},
		func(f *fake) {},
		want{4096, 4096, 512, 512, block.OriginTrial}, "requests of 4096, memory of 512"},
	{"trial finds 64 KiB", needs{65536, 65536, 4096, 65536},
		func(f *fake) {},
		want{65536, 65536, 4096, 65536, block.OriginTrial}, ""},
	{"F2 empty file", needs{512, 512, 512, 512},
		func(f *fake) { f.dataErr = syscall.ENXIO },
		want{4096, 4096, 4096, 4096, block.OriginDefault}, "no data yet"},
	{"F2 empty file, but statx knows", needs{512, 512, 512, 512},
		func(f *fake) { f.dataErr, f.dio = syscall.ENXIO, said(512, 512, 512) },
		want{512, 512, 512, 512, block.OriginStatx}, "not made"},
	{"F2 sparse file that takes anything is never 1", needs{1, 1, 1, 1},
		func(f *fake) {},
		want{4096, 4096, 4096, 4096, block.OriginDefault}, "a single byte succeeded"},
	{"F1 EIO in the trial is not misalignment", needs{512, 512, 512, 512},
		func(f *fake) { f.trialIO = syscall.EIO },
		want{4096, 4096, 4096, 4096, block.OriginDefault}, "not for its alignment"},
	{"F1 EIO in the cross-check leaves statx believed", needs{512, 512, 512, 512},
		func(f *fake) { f.trialIO, f.dio = syscall.EIO, said(512, 512, 512) },
		want{512, 512, 512, 512, block.OriginStatx}, "not for its alignment"},
	{"F18 statx says 512, storage needs 4096", needs{4096, 4096, 512, 512},
		func(f *fake) { f.dio = said(512, 512, 512) },
		want{4096, 4096, 512, 512, block.OriginTrial}, "says 512 for reads, 512 for writes and 512 for memory"},
	{"F18 statx says memory 4, storage needs 512", needs{512, 512, 512, 512},
		func(f *fake) { f.dio = said(4, 512, 512) },
		want{512, 512, 512, 512, block.OriginTrial}, "was refused"},
	{"F18 each of the two is stricter in one thing", needs{4096, 4096, 4, 4},
		func(f *fake) { f.dio = said(512, 512, 512) },
		want{4096, 4096, 512, 512, block.OriginTrial}, "using 4096, 4096 and 512"},
	{"memory by trial where reads within a page are not checked", needs{512, 512, 4, 4},
		func(f *fake) { f.lazyMem = true },
		want{512, 512, 4, 4, block.OriginTrial}, "requests of 512, memory of 4"},
	{"F18 statx says memory 4, reads within a page hide that it is 512", needs{512, 512, 512, 512},
		func(f *fake) { f.dio, f.lazyMem = said(4, 512, 512), true },
		want{512, 512, 512, 512, block.OriginTrial}, "was refused"},
	{"F18 statx is stricter than the trial: it stands", needs{512, 512, 4, 4},
		func(f *fake) { f.dio = said(512, 4096, 4096) },
		want{4096, 4096, 512, 512, block.OriginStatx}, ""},
	{"F18 bcachefs: memory 512, offset 4096, statx right", needs{4096, 4096, 512, 4096},
		func(f *fake) { f.fs.magic, f.dio, f.release = 0xca451a4e, said(512, 4096, 4096), [2]int{6, 12} },
		want{4096, 4096, 512, 4096, block.OriginStatx}, ""},
	{"statx says no power of two", needs{512, 512, 512, 512},
		func(f *fake) { f.dio = said(512, 1000, 1000) },
		want{512, 512, 512, 512, block.OriginTrial}, "not powers of two"},
}

func TestLimitsDecisionTable(t *testing.T) {
	for _, c := range limitCases {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(c.needs, make([]byte, 1<<20))
			c.make(f)
			res, err := resolve(f, query{direct: true, device: f.isDevice(), generation: 1})
			if err != nil {
				t.Fatal(err)
			}
			l := res.limits
			got := want{l.ReadAlign, l.WriteAlign, l.MinMem, l.SegmentAlign, l.Origins.WriteAlign}
			if got != c.want {
				t.Errorf("resolved to %+v, want %+v\n%s", got, c.want, answersText(res))
			}
			if !strings.Contains(answersText(res), c.text) {
				t.Errorf("answers do not mention %q:\n%s", c.text, answersText(res))
			}
			if l.OptMem < 4096 || l.OptMem < l.MinMem {
				t.Errorf("OptMem %d", l.OptMem)
			}
		})
	}
}

func answersText(r *resolution) string {
	var b strings.Builder
	for _, a := range r.answers {
		b.WriteString(a.Source + ": " + a.text() + "\n")
	}
	return b.String()
}

// TestF18DisagreementIsTold: the stricter value wins, and a person is told.
func TestF18DisagreementIsTold(t *testing.T) {
	f := newFake(needs{4096, 4096, 512, 512}, make([]byte, 1<<20))
	f.dio = said(512, 512, 512)
	env, log := testEnv(t)
	n, err := openFake(env, f, config{cacheName: "none", direct: true})
	if err != nil {
		t.Fatal(err)
	}
	if n.info.Limits().WriteAlign != 4096 || !strings.Contains(log.text(), "statx says 512 for reads") {
		t.Errorf("write alignment %d, log %q", n.info.Limits().WriteAlign, log.text())
	}
}

// openFake opens an emulated file.
func openFake(env *block.Env, f *fake, c config) (*node, error) {
	c.path, c.aio, c.locking, c.discard = "emulated.img", "auto", "auto", true
	return openNode(env, c, func(c *config, direct bool) (system, error) { return f, nil })
}

// TestF1ProbeFailsEntirely: nothing states the alignment and every trial read
// is refused.
func TestF1ProbeFailsEntirely(t *testing.T) {
	broken := func() *fake {
		f := newFake(needs{1 << 20, 1 << 20, 1 << 20, 1 << 20}, make([]byte, 1<<20))
		f.dioErr = syscall.ENOSYS
		f.dataAt = 4096 // not a multiple of what it wants
		f.dataLen -= 4096
		return f
	}
	t.Run("error", func(t *testing.T) {
		env, _ := testEnv(t)
		_, err := openFake(env, broken(), config{cacheName: "none", direct: true})
		if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "emulated.img: cache=none needs direct I/O") || !strings.Contains(err.Error(), "use --cache writeback") {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("fallback", func(t *testing.T) {
		env, log := testEnv(t)
		n, err := openFake(env, broken(), config{cacheName: "none", direct: true, fallback: true})
		if err != nil {
			t.Fatal(err)
		}
		if l := n.info.Limits(); n.direct || l.WriteAlign != 1 || l.Origins.WriteAlign != block.OriginDefault {
			t.Errorf("direct %v, write alignment %d", n.direct, n.info.Limits().WriteAlign)
		}
		if c := strings.Count(log.text(), "level=WARN"); c != 1 {
			t.Errorf("%d warnings, want 1: %s", c, log.text())
		}
	})
	t.Run("auto", func(t *testing.T) {
		env, log := testEnv(t)
		n, err := openFake(env, broken(), config{cacheName: "auto", auto: true})
		if err != nil {
			t.Fatal(err)
		}
		if why := strings.Join(n.explain(), "\n"); n.direct || !strings.Contains(why, "refused as misaligned") || log.text() != "" {
			t.Errorf("direct %v, reasons:\n%s\nlog: %s", n.direct, why, log.text())
		}
	})
}

// TestF5DirectIOIsStatedToBeMissing: statx with zeroes, or O_DIRECT refused.
func TestF5DirectIOIsStatedToBeMissing(t *testing.T) {
	none := func() *fake {
		f := newFake(needs{1, 1, 1, 1}, make([]byte, 1<<20))
		f.dio = statxAnswer{stated: true}
		return f
	}
	env, _ := testEnv(t)
	if _, err := openFake(env, none(), config{cacheName: "directsync", direct: true}); err == nil || !strings.Contains(err.Error(), "statx says that this file does not have it") {
		t.Errorf("error is %v", err)
	}
	refuse := func(c *config, direct bool) (system, error) {
		if direct {
			return nil, errNoDirect
		}
		return none(), nil
	}
	c := config{path: "x.img", cacheName: "none", direct: true}
	if _, err := openNode(env, c, refuse); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "x.img") {
		t.Errorf("error is %v", err)
	}
	c.fallback = true
	n, err := openNode(env, c, refuse)
	if err != nil || n.direct {
		t.Errorf("with fallback: %v", err)
	}
}

// TestAutoDeclinesDirectIO where it would gain nothing or its needs are not
// known.
func TestAutoDeclinesDirectIO(t *testing.T) {
	for _, c := range []struct {
		name   string
		make   func(f *fake)
		direct bool
		why    string
	}{
		{"known", func(f *fake) { f.dio = said(512, 512, 512) }, true, "its alignment is known"},
		{"in memory", func(f *fake) { f.fs.magic = 0x01021994 }, false, "the file is in memory"},
		{"cached all the same", func(f *fake) { f.fs.magic, f.byCache = 0x9123683e, true }, false, "nothing to gain from direct I/O, btrfs serves it through the page cache"},
		{"unknown", func(f *fake) { f.dataErr = syscall.ENXIO }, false, "nothing states the alignment"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(needs{512, 512, 512, 512}, make([]byte, 1<<20))
			c.make(f)
			env, _ := testEnv(t)
			n, err := openFake(env, f, config{cacheName: "auto", auto: true})
			if err != nil {
				t.Fatal(err)
			}
			if why := strings.Join(n.explain(), "\n"); n.direct != c.direct || !strings.Contains(why, c.why) {
				t.Errorf("direct %v, reasons:\n%s", n.direct, why)
			}
		})
	}
}

// TestLimitsForcedByOptions: the user's values are used as they are.
func TestLimitsForcedByOptions(t *testing.T) {
	f := newFake(needs{512, 512, 4, 4}, make([]byte, 1<<20))
	res, err := resolve(f, query{direct: true, forced: forced{request: 4096, mem: 512, segment: 512}, generation: 7})
	if err != nil {
		t.Fatal(err)
	}
	l := res.limits
	if l.ReadAlign != 4096 || l.WriteAlign != 4096 || l.MinMem != 512 || l.SegmentAlign != 512 || l.Generation != 7 ||
		l.Origins.ReadAlign != block.OriginOption || l.Origins.MinMem != block.OriginOption {
		t.Errorf("%+v", l)
	}
}

// TestLimitsOfDevices: what is zeroed, discarded and sent at once.
func TestLimitsOfDevices(t *testing.T) {
	f := newFake(needs{4096, 4096, 4, 4}, make([]byte, 1<<20))
	f.devErr, f.diskErr = nil, nil
	f.dev, f.disk = deviceAnswer{4096, 8192, 8192, 65536}, virtioDisk
	f.dio, f.disk.zeroesMax, f.disk.maxSegments = said(4, 4096, 4096), 1<<30, 33
	res, err := resolve(f, query{direct: true, device: true, generation: 1})
	if err != nil {
		t.Fatal(err)
	}
	l := res.limits
	if l.LogicalBlock != 4096 || l.PhysicalBlock != 8192 || l.ZeroAlign != 4096 || l.DiscardAlign != 4096 || l.MaxSegments != 33 ||
		l.OptTransfer != 65536 || l.MaxTransfer != 0 || l.MaxZero != maxStep || res.slowZero {
		t.Errorf("%+v, slow zeroes %v", l, res.slowZero)
	}
	f.disk.zeroesMax, f.dev.ioOpt = 0, 0
	res, err = resolve(f, query{device: true, generation: 1})
	if err != nil {
		t.Fatal(err)
	}
	if l = res.limits; l.ReadAlign != 1 || l.LogicalBlock != 4096 || l.MaxZero != slowStep || !res.slowZero || l.OptTransfer != 4096<<10 || l.MaxSegments != block.MaxElements {
		t.Errorf("through the page cache: %+v, slow zeroes %v", l, res.slowZero)
	}
}

// TestA9SegmentsOfTheDiskUnderAFile: a file takes the number of segments from
// the disk that it lies on, so that no request is cut in the middle of a block.
func TestA9SegmentsOfTheDiskUnderAFile(t *testing.T) {
	f := newFake(needs{512, 512, 512, 512}, make([]byte, 1<<20))
	f.dio, f.diskErr, f.disk = said(512, 512, 512), nil, virtioDisk
	res, err := resolve(f, query{direct: true, generation: 1})
	if err != nil {
		t.Fatal(err)
	}
	if l := res.limits; l.MaxSegments != 254 || l.Origins.MaxSegments != block.OriginSysfs || l.PhysicalBlock != 4096 {
		t.Errorf("%+v", l)
	}
}
