package guest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Part is a piece of the guest's RAM disk that not every guest needs.
type Part string

// The parts.
const (
	Fio Part = "fio" // fio and its many libraries
	NFS Part = "nfs" // the kernel's NFS server and client, and their programs
)

// content is what a part brings.
type content struct {
	modules  []string
	programs []string
}

// checksums are what ext4 asks for without depending on it; which of them
// exist differs between kernels.
var checksums = []string{"crc32c_generic", "crc32c_intel", "crc32c_cryptoapi", "libcrc32c"}

// always is what every guest has. The agent loads a module when a scenario
// needs it; what the kernel itself asks for comes by modprobe.
var always = content{
	modules: []string{
		"virtio_pci", "virtio_blk", "virtio_console", "ext4",
	},
	programs: []string{"mkfs.ext4", "e2fsck", "blkdiscard", "fstrim"},
}

var parts = map[Part]content{
	Fio: {programs: []string{"fio"}},
	NFS: {
		modules:  []string{"nfsd", "nfs", "nfsv3", "nfsv4", "auth_rpcgss", "loop"},
		programs: []string{"rpcbind", "rpc.mountd", "rpc.nfsd", "exportfs", "mount.nfs"},
	},
}

// folders are there when the agent starts.
var folders = []string{
	"proc", "sys", "dev", "mnt", "tmp", "run", "root", "var/lib/nfs/sm", "var/lib/nfs/sm.bak", "var/lib/nfs/v4recovery", "var/lib/nfs/rpc_pipefs",
}

// texts are the configuration that programs look for. NFS's finds its
// transports in netconfig and its ports in services.
var texts = map[string]string{
	"etc/passwd":        "root:x:0:0:root:/:/bin/sh\n_rpc:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n",
	"etc/group":         "root:x:0:\nnogroup:x:65534:\n",
	"etc/hosts":         "127.0.0.1 localhost\n",
	"etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\nnetgroup: files\n",
	"etc/protocols":     "tcp 6 TCP\nudp 17 UDP\n",
	"etc/services":      "nfs 2049/tcp\nnfs 2049/udp\nsunrpc 111/tcp portmapper\nsunrpc 111/udp portmapper\n",
	"etc/netconfig": "udp tpi_clts v inet udp - -\ntcp tpi_cots_ord v inet tcp - -\nudp6 tpi_clts v inet6 udp - -\n" +
		"tcp6 tpi_cots_ord v inet6 tcp - -\nlocal tpi_cots_ord - loopback - - -\nunix tpi_cots_ord - loopback - - -\n",
	"var/lib/nfs/etab":  "",
	"var/lib/nfs/rmtab": "",
}

// initrd is the RAM disk with some parts, made once for each combination.
func (l *Lab) initrd(want []Part) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	names := []string{"base"}
	for _, p := range want {
		names = append(names, string(p))
	}
	slices.Sort(names)
	key := strings.Join(slices.Compact(names), "-")
	if path := l.disks[key]; path != "" {
		return path, nil
	}
	path := filepath.Join(l.scratch, key+".cpio")
	if err := l.writeInitrd(path, want); err != nil {
		return "", fmt.Errorf("the guest's RAM disk: %w", err)
	}
	l.disks[key] = path
	return path, nil
}

func (l *Lab) writeInitrd(path string, want []Part) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	a := newArchive(f)
	a.file("init", 0o755, l.agent)
	for _, dir := range folders {
		a.dir(dir)
	}
	for name, text := range texts {
		a.text(name, text)
	}
	a.link("var/run", "/run")
	a.link("sbin", "bin")
	if err := l.busybox(a); err != nil {
		return err
	}
	all := content{modules: slices.Clone(always.modules), programs: slices.Clone(always.programs)}
	for _, p := range want {
		more, ok := parts[p]
		if !ok {
			return fmt.Errorf("no part is called %q", p)
		}
		all.modules = append(all.modules, more.modules...)
		all.programs = append(all.programs, more.programs...)
	}
	for _, name := range checksums {
		if l.mods.has(name) {
			all.modules = append(all.modules, name)
		}
	}
	for _, name := range all.programs {
		if err := l.user.install(a, name); err != nil {
			return err
		}
	}
	mods, err := l.mods.closure(all.modules...)
	if err != nil {
		return err
	}
	l.mods.install(a, mods)
	if err := a.close(); err != nil {
		return err
	}
	return f.Close()
}

// applets are what the agent, the kernel and a person at the shell use of
// busybox; the real e2fsprogs and util-linux take precedence where both exist.
var applets = strings.Fields(`sh ls cat cp mv rm ln mkdir rmdir mount umount modprobe insmod lsmod rmmod dmesg ps kill dd hexdump
	grep sed awk head tail tr cut sort wc df du free find stat sync ifconfig ip ping netstat poweroff reboot mknod setsid cttyhack
	sleep date uptime vi less top sha256sum md5sum cmp xargs basename dirname echo test true false env id uname losetup truncate`)

func (l *Lab) busybox(a *archive) error {
	from, err := l.user.find(programDirs, "busybox")
	if err != nil {
		return err
	}
	if err := copyIn(a, "bin/busybox", from, 0o755); err != nil {
		return err
	}
	for _, name := range applets {
		a.link("bin/"+name, "busybox")
	}
	return nil
}
