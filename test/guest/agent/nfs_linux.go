package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/block"
	_ "github.com/platter-storage/platter/format/raw"
	"github.com/platter-storage/platter/graph"
	"github.com/platter-storage/platter/internal/realenv"
	filedriver "github.com/platter-storage/platter/protocol/file"
	"github.com/platter-storage/platter/test/guest/scenario"
)

const (
	exported  = "/exported" // a tmpfs
	mounted   = "/mnt/nfs"
	mountPort = "20048"
)

// startNFS starts the kernel's server and its helpers, once.
var startNFS = sync.OnceValue(func() error {
	steps := []func() error{
		func() error { return modprobe("nfsd", "nfsv3", "nfsv4") },
		func() error { _, err := run("ifconfig", "lo", "127.0.0.1", "up"); return err },
		func() error { return mount("nfsd", "nfsd", "/proc/fs/nfsd", "") },
		func() error { return mount("rpc_pipefs", "rpc_pipefs", "/var/lib/nfs/rpc_pipefs", "") },
		func() error { return mount("tmpfs", "tmpfs", exported, "") },
		func() error {
			return os.WriteFile("/etc/exports", []byte(exported+" 127.0.0.1(rw,no_root_squash,insecure,no_subtree_check,fsid=0,async)\n"), 0o644)
		},
		func() error { return os.MkdirAll("/run/rpcbind", 0o755) }, // where it keeps its lock and its state
		func() error { _, err := run("rpcbind", "-i", "-w"); return err },
		func() error { return listens("111") },
		// Read when the threads start.
		func() error { return os.WriteFile("/proc/fs/nfsd/max_block_size", []byte("1048576"), 0) },
		func() error { _, err := run("exportfs", "-ra"); return err },
		func() error { _, err := run("rpc.nfsd", "4"); return err },
		// There is no client from before to wait for.
		func() error { return os.WriteFile("/proc/fs/nfsd/v4_end_grace", []byte("Y"), 0) },
		func() error { _, err := run("rpc.mountd", "-p", mountPort); return err },
		func() error { return listens(mountPort) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("starting the NFS server: %w", err)
		}
	}
	return nil
})

// listens waits for a server on a port of this guest.
func listens(port string) error {
	var last error
	for began := time.Now(); time.Since(began) < patience; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			return conn.Close()
		}
		last = err
	}
	return last
}

func nfsVectors(c *call) (any, error) {
	var args scenario.NFSWork
	if err := c.into(&args); err != nil {
		return nil, err
	}
	if err := startNFS(); err != nil {
		return nil, err
	}
	if err := mountNFS(args.Version); err != nil {
		return nil, err
	}
	defer unix.Unmount(mounted, 0)
	out := scenario.NFSResult{}
	var err error
	if out.Options, err = mountOptions(); err != nil {
		return nil, err
	}
	m, err := recognised()
	if err != nil {
		return nil, err
	}
	out.Mount = m.String()
	for _, v := range args.Vectors {
		count, err := countVector(v, args.Linearise, m)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", v.Name, err)
		}
		out.Counts = append(out.Counts, count)
	}
	return out, nil
}

// mountNFS gives version 3 its ports, which it would ask rpcbind for.
func mountNFS(version string) error {
	options, path := "vers="+version+",nolock", "/"
	if version == "3" {
		options += ",proto=tcp,mountproto=tcp,port=2049,mountport=" + mountPort
		path = exported
	}
	if err := os.MkdirAll(mounted, 0o755); err != nil {
		return err
	}
	_, err := run("mount.nfs", "127.0.0.1:"+path, mounted, "-o", options)
	return err
}

func mountOptions() (string, error) {
	text, err := os.ReadFile("/proc/mounts")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 3 && f[1] == mounted {
			return f[3], nil
		}
	}
	return "", errors.New(mounted + " is not in /proc/mounts")
}

// arena is what the elements of a vector are cut from.
const arena = 64 << 20

const page = 4096

// file is what vectors are written to.
const file = mounted + "/file"

// recognised is what Platter says of the mount.
func recognised() (*filedriver.Mount, error) {
	fd, err := unix.Open(file, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(unix.Ftruncate(fd, arena), unix.Close(fd)); err != nil {
		return nil, err
	}
	x, err := filedriver.Examine(file, nil)
	if err != nil {
		return nil, err
	}
	if x.Mount == nil {
		return nil, errors.New("no NFS mount was recognised below " + file)
	}
	return x.Mount, nil
}

// bySystemCalls moves a vector whole, or fails.
func bySystemCalls(write bool, off int64, vec [][]byte, total int) error {
	fd, err := unix.Open(file, unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	op, what := unix.Preadv, "read"
	if write {
		op, what = unix.Pwritev, "write"
	}
	if n, err := op(fd, vec, off); err != nil || n != total {
		return whole(what, n, total, off, err)
	}
	return nil
}

// byPlatter does the same through the driver file.
func byPlatter(mode string, write bool, off int64, vec [][]byte) (err error) {
	env := realenv.New(slog.New(slog.DiscardHandler), 0)
	g := graph.New(env)
	defer func() { err = errors.Join(err, g.Close(), env.CloseBuffers()) }()
	d := graph.Disk{Name: file, Format: "raw", Protocol: block.Values{"cache": "none", "linearise": mode}}
	in, err := g.Open(context.Background(), d, "", false)
	if err != nil {
		return err
	}
	child, err := in.NewChild("agent", block.RoleRoot, block.PermRead|block.PermWrite, block.PermAll)
	if err != nil {
		return err
	}
	defer child.Close()
	q := block.NewQueue(env, block.NewQueueGroup())
	defer q.Close()
	rq := q.Begin()
	if write {
		err = child.Pwritev(rq, off, vec, 0)
		q.End(rq, block.OpWrite, 0, err)
		return err
	}
	err = child.Preadv(rq, off, vec, 0)
	q.End(rq, block.OpRead, 0, err)
	return err
}

// countVector writes and reads a vector and counts the client's requests.
func countVector(v scenario.Vector, mode string, m *filedriver.Mount) (scenario.NFSCount, error) {
	var out scenario.NFSCount
	mem, err := unix.Mmap(-1, 0, arena, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return out, err
	}
	defer unix.Munmap(mem)
	vec, total, err := cut(v, mem)
	if err != nil {
		return out, err
	}
	move := func(write bool) (map[string]int, error) {
		if mode != "" {
			err = byPlatter(mode, write, v.Off, vec)
		} else {
			err = bySystemCalls(write, v.Off, vec, total)
		}
		if err != nil {
			return nil, err
		}
		return mountStats()
	}
	fill(vec, v.Off)
	before, err := mountStats()
	if err != nil {
		return out, err
	}
	between, err := move(true)
	if err != nil {
		return out, err
	}
	for _, p := range vec {
		clear(p)
	}
	after, err := move(false)
	if err != nil {
		return out, err
	}
	out.Write, out.Commit = between["WRITE"]-before["WRITE"], between["COMMIT"]-before["COMMIT"]
	out.Read = after["READ"] + after["READ_PLUS"] - between["READ"] - between["READ_PLUS"]
	out.PredictedWrite, out.PredictedRead = int(block.PageJoinedRequests(vec, m.WriteSize)), int(block.PageJoinedRequests(vec, m.ReadSize))
	return out, compare(vec, v.Off)
}

// cut makes the vector.
func cut(v scenario.Vector, mem []byte) (vec [][]byte, total int, err error) {
	at := v.Start
	for _, n := range v.Elements {
		if n < 0 || at < 0 || at > len(mem)-n {
			return nil, 0, fmt.Errorf("the vector does not fit into %d bytes", len(mem))
		}
		vec = append(vec, mem[at:at+n:at+n])
		total += n
		if v.Stride > 0 {
			at += v.Stride
		} else {
			// A page stays free between, so that neighbours never touch.
			at += (n + 2*page - 1) / page * page
		}
	}
	return vec, total, nil
}

// fill gives each byte of a file a value that follows from its offset.
func fill(vec [][]byte, off int64) {
	for _, p := range vec {
		for i := range p {
			p[i] = byteAt(off)
			off++
		}
	}
}

func byteAt(off int64) byte { return byte(off*7 + off>>8*13 + off>>16) }

func compare(vec [][]byte, off int64) error {
	for _, p := range vec {
		for i := range p {
			if p[i] != byteAt(off) {
				return fmt.Errorf("byte %d of the file reads as %d, was written as %d", off, p[i], byteAt(off))
			}
			off++
		}
	}
	return nil
}

// mountStats is how often the mount has called each procedure of the server.
func mountStats() (map[string]int, error) {
	text, err := os.ReadFile("/proc/self/mountstats")
	if err != nil {
		return nil, err
	}
	out := make(map[string]int)
	here := false
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "device ") {
			here = strings.Contains(line, " mounted on "+mounted+" ")
			continue
		}
		name, rest, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !here || !ok || name != strings.ToUpper(name) {
			continue
		}
		if f := strings.Fields(rest); len(f) > 0 {
			if n, err := strconv.Atoi(f[0]); err == nil {
				out[name] = n
			}
		}
	}
	if _, ok := out["WRITE"]; !ok {
		return nil, errors.New("/proc/self/mountstats does not count the mount's writes")
	}
	return out, nil
}
