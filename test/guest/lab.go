// Package guest boots a real Linux kernel in an emulated machine and lets it
// drive what Platter serves: its drivers, its file systems, its NFS. The
// kernel and the programs in the guest are Debian's packages, downloaded once
// and kept in a cache; the guest's first process is our own agent, which does
// what a test asks and answers with values that the test asserts on.
package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// cacheFormat counts changes of what a cached folder holds.
const cacheFormat = 1

// prepareTimeout bounds the downloads of a fresh machine, about 60 MB.
const prepareTimeout = 10 * time.Minute

// packages are what the guest's programs come from, with all they depend on.
var packages = []string{
	"busybox-static", "e2fsprogs", "util-linux", "nfs-kernel-server", "nfs-common", "rpcbind",
}

// Lab is what every guest is made from.
type Lab struct {
	kernel  string // an uncompressed kernel
	mods    *modules
	user    userland
	agent   []byte
	scratch string

	mu    sync.Mutex
	disks map[string]string // RAM disks by their parts
}

// Open prepares the kernel, the programs and the agent. On a machine that has
// not done so before it downloads packages with apt.
func Open(ctx context.Context) (*Lab, error) {
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	cached, err := prepared(ctx)
	if err != nil {
		return nil, fmt.Errorf("preparing the guest: %w", err)
	}
	lab := &Lab{
		kernel: filepath.Join(cached, "vmlinux"),
		user:   userland{roots: []string{filepath.Join(cached, "root"), "/"}},
		disks:  make(map[string]string),
	}
	if lab.mods, err = findModules(filepath.Join(cached, "modules")); err != nil {
		return nil, err
	}
	if lab.scratch, err = os.MkdirTemp("", "platter-guest-"); err != nil {
		return nil, err
	}
	if lab.agent, err = buildAgent(ctx, lab.scratch); err != nil {
		lab.Close()
		return nil, err
	}
	return lab, nil
}

// Close removes what the lab made outside of the cache.
func (l *Lab) Close() error { return os.RemoveAll(l.scratch) }

// Kernel is the version of the guest's kernel.
func (l *Lab) Kernel() string { return l.mods.version }

func buildAgent(ctx context.Context, dir string) ([]byte, error) {
	path := filepath.Join(dir, "agent")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "github.com/platter-storage/platter/test/guest/agent")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the guest's agent: %w\n%s", err, out)
	}
	return os.ReadFile(path)
}

// CacheDir is where downloads are kept: $PLATTER_CACHE, or below the user's
// cache folder.
func CacheDir() string {
	if dir := os.Getenv("PLATTER_CACHE"); dir != "" {
		return dir
	}
	if dir, err := os.UserCacheDir(); err == nil {
		return filepath.Join(dir, "platter")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("platter-cache-%d", os.Getuid()))
}

// prepared is a cached folder with vmlinux, modules and root. It is made
// beside its place and moved there whole: one that is there is complete, and
// of two that make it at once the second throws its own away.
func prepared(ctx context.Context) (string, error) {
	if runtime.GOOS != "linux" {
		return "", fmt.Errorf("guests are made of Debian's packages by Debian's tools: not on %s", runtime.GOOS)
	}
	suite, err := codename()
	if err != nil {
		return "", err
	}
	cache := CacheDir()
	place := filepath.Join(cache, fmt.Sprintf("guest-%d-%s", cacheFormat, suite))
	if complete(place) {
		return place, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(cache, "making-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	made := filepath.Join(work, "made")
	if err := makePrepared(ctx, work, made); err != nil {
		return "", fmt.Errorf("%w\nnothing is cached in %s: one run with apt's network makes it, and later runs need none", err, place)
	}
	if err := os.Rename(made, place); err != nil && !complete(place) {
		return "", err
	}
	return place, nil
}

func complete(place string) bool {
	_, err := os.Stat(filepath.Join(place, "vmlinux"))
	return err == nil
}

func makePrepared(ctx context.Context, work, made string) error {
	src, err := machineSource(ctx)
	if err != nil {
		return err
	}
	own, err := newApt(ctx, filepath.Join(work, "apt"), src.site, src.suite)
	if err != nil {
		return err
	}
	unpacked := filepath.Join(work, "kernel")
	if err := anyKernel(ctx, own, work, src, unpacked); err != nil {
		return err
	}
	root := filepath.Join(made, "root")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	if err := own.closure(root, packages...); err != nil {
		return err
	}
	return keepKernel(unpacked, made)
}

// anyKernel takes Debian 12's kernel from its backports, which has ublk and
// VDUSE, and any other's from the release itself; also Debian 12's, where
// there are no backports to be had.
func anyKernel(ctx context.Context, own *apt, work string, src source, into string) error {
	if src.suite != "bookworm" {
		return own.kernel(into)
	}
	back, err := newApt(ctx, filepath.Join(work, "backports"), src.site, src.suite+"-backports")
	if err == nil {
		err = back.kernel(into)
	}
	if err == nil || ctx.Err() != nil {
		return err
	}
	return errors.Join(own.kernel(into), ctx.Err())
}

// keepKernel takes the uncompressed kernel and the modules out of an unpacked
// package.
func keepKernel(unpacked, made string) error {
	images, err := filepath.Glob(filepath.Join(unpacked, "boot", "vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return fmt.Errorf("want one kernel in the package, found %s", strings.Join(images, ", "))
	}
	var mods string
	for _, dir := range []string{"lib/modules", "usr/lib/modules"} {
		if _, err := os.Stat(filepath.Join(unpacked, dir)); err == nil {
			mods = filepath.Join(unpacked, dir)
		}
	}
	if err := os.Rename(mods, filepath.Join(made, "modules")); err != nil {
		return err
	}
	kernel, err := vmlinux(images[0])
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(made, "vmlinux"), kernel, 0o644)
}
