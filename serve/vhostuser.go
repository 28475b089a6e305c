package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/export/vhostuser"
	"github.com/platter-storage/platter/serve/config"
)

// vhost is a disk as it is offered over one vhost-user socket.
type vhost struct {
	cfg   config.VhostUser
	child *block.Child
	dev   *vhostuser.Device
	l     net.Listener  // nil where the front end listens
	done  chan struct{} // closed when nobody is let in any more
}

// addVhosts offers the disk on its vhost-user sockets.
func (d *Daemon) addVhosts(dk *disk) error {
	for _, v := range dk.cfg.VhostUsers {
		if err := d.addVhost(dk, v); err != nil {
			return errors.Join(err, d.dropVhosts(dk))
		}
	}
	return nil
}

func (d *Daemon) addVhost(dk *disk, v config.VhostUser) error {
	x, err := d.openVhost(dk, v)
	if err != nil {
		if at := v.At.String(); at != "" {
			err = fmt.Errorf("%s: %w", at, err)
		}
		return err
	}
	dk.vhosts = append(dk.vhosts, x)
	go func() {
		defer close(x.done)
		serve := func() error { return x.dev.Serve(x.l) }
		if v.Connect {
			serve = func() error { return x.dev.Connect(v.Path) }
		}
		if err := serve(); err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, vhostuser.ErrClosed) {
			d.log.Error("no more front ends are let in", "disk", dk.cfg.Name, "socket", v.Path, "error", err)
		}
	}()
	return nil
}

// openVhost makes the device and its socket.
func (d *Daemon) openVhost(dk *disk, v config.VhostUser) (*vhost, error) {
	perm := block.PermRead
	if !dk.cfg.ReadOnly {
		perm |= block.PermWrite
	}
	c, err := dk.inst.NewChild(v.String(), block.RoleRoot, perm, exportShared)
	if err != nil {
		return nil, err
	}
	if dk.cfg.IgnoreDiscard {
		c.IgnoreDiscard()
	}
	x := &vhost{cfg: v, child: c, done: make(chan struct{})}
	device := vhostuser.Config{
		Name: dk.cfg.Name, Child: c, Group: d.group(v.String()), Env: d.env, Log: d.log.With("socket", v.Path),
		Queues: v.Queues, QueueSize: v.Size, NoPacked: v.NoPacked, InOrder: v.InOrder, BlockSize: v.BlockSize,
		Serial: v.Serial, Poll: v.Poll, Durable: neverCached(&dk.cfg), Came: d.vhostCame, Left: d.vhostLeft,
	}
	if dk.gate != nil {
		device.Limiter = dk.gate
	}
	x.dev, err = vhostuser.New(device)
	if err == nil && !v.Connect {
		mode := v.Mode
		if mode == 0 {
			mode = d.cfg.SocketMode
		}
		if mode == 0 {
			mode = 0o600
		}
		if x.l, err = listenUnix(v.Path, mode); err != nil {
			err = errors.Join(err, x.dev.Shutdown(context.Background())) // nobody has come
		}
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return x, nil
}

// neverCached reports whether every write to the disk is durable when it ends:
// then its guests need not flush.
func neverCached(cfg *config.Disk) bool {
	desc, err := describe(cfg)
	if err != nil {
		return false
	}
	vals, err := desc.Values()
	if err != nil {
		return false
	}
	return slices.Contains([]string{"directsync", "writethrough"}, bottom(vals)["cache"])
}

// vhostCame and vhostLeft count front ends; they do not wait.
func (d *Daemon) vhostCame() { d.frontEnds.Add(1) }
func (d *Daemon) vhostLeft() { d.clientLeft(int(d.frontEnds.Add(-1)) + len(d.server.Connections())) }

// dropVhosts ends the disk's devices: requests in flight are finished, front
// ends disconnected. After an error some request is still in the storage, and
// the disk stays open.
func (d *Daemon) dropVhosts(dk *disk) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	var errs []error
	for _, x := range slices.Clone(dk.vhosts) {
		errs = append(errs, dropVhost(ctx, dk, x))
	}
	return errors.Join(errs...)
}

func dropVhost(ctx context.Context, dk *disk, x *vhost) error {
	if x.l != nil {
		x.l.Close() // with its socket
	}
	if err := x.dev.Shutdown(ctx); err != nil {
		return err
	}
	<-x.done
	x.child.Close()
	dk.vhosts = slices.DeleteFunc(dk.vhosts, func(o *vhost) bool { return o == x })
	return nil
}

// stopVhosts ends the devices of all disks, at the same time.
func (d *Daemon) stopVhosts() error {
	errs := make(chan error)
	for _, dk := range d.disks {
		go func() { errs <- d.dropVhosts(dk) }()
	}
	var all []error
	for range d.disks {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

// reviseVhosts makes the disk's devices those of its new configuration; what
// is the same goes on.
func (r *reload) reviseVhosts(dk *disk, cfg *config.Disk, quiet bool) {
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	for _, x := range slices.Clone(dk.vhosts) {
		if slices.ContainsFunc(cfg.VhostUsers, x.cfg.Same) {
			continue
		}
		if err := dropVhost(ctx, dk, x); err != nil {
			r.fail(err)
			continue
		}
		r.note("%s of disk %s is gone, its front end is disconnected", x.cfg, dk.cfg.Name)
	}
	for _, v := range cfg.VhostUsers {
		if slices.ContainsFunc(dk.vhosts, func(x *vhost) bool { return x.cfg.Same(v) }) {
			continue
		}
		if err := r.d.addVhost(dk, v); err != nil {
			r.fail(err)
		} else if !quiet {
			r.note("%s of disk %s is offered", v, dk.cfg.Name)
		}
	}
}

// warnUnlocked says which disks a restart of ours may damage: only a lock shows
// that the requests of a process that died have ended.
func (d *Daemon) warnUnlocked(dk *disk) {
	if len(dk.cfg.VhostUsers) == 0 || dk.inst.Info().ReadOnly {
		return
	}
	for _, in := range d.graph.Below(dk.inst.Name()) {
		for _, s := range describeNode(in.Info()).Explain {
			if strings.HasPrefix(s, "not locked") {
				d.log.Warn("the disk has no lock: if this process is killed and started again, a late write of the old process may come after a guest's newer one", "disk", dk.cfg.Name, "why", s)
			}
		}
	}
}

// VhostUserInfo is one vhost-user socket of a disk.
type VhostUserInfo struct {
	Socket  string `json:"socket"`
	Queues  int    `json:"queues"`
	Connect bool   `json:"connect"` // the front end listens
	// Commands attach the disk to a virtual machine.
	Commands []string `json:"commands"`
}

func describeVhost(x *vhost, readOnly bool) VhostUserInfo {
	i := VhostUserInfo{Socket: x.cfg.Path, Queues: x.cfg.Queues, Connect: x.cfg.Connect}
	if i.Queues == 0 {
		i.Queues = vhostuser.DefaultQueues
	}
	i.Commands = vhostLines(&x.cfg, min(i.Queues, runtime.NumCPU()), readOnly)
	return i
}

// vhostLines are what to paste: the disk of a machine of QEMU's, of Cloud
// Hypervisor's and of Firecracker's. Memory has to be shared, whose size is the
// machine's affair.
func vhostLines(v *config.VhostUser, queues int, readOnly bool) []string {
	path := absolute(v.Path)
	chardev := "socket,id=platter0,path=" + doubleCommas(path)
	if v.Connect {
		chardev += ",server=on,wait=off"
	} else {
		chardev += ",reconnect=1"
	}
	device := fmt.Sprintf("vhost-user-blk-pci,chardev=platter0,num-queues=%d", queues)
	lines := []string{"qemu-system-x86_64 -object memory-backend-memfd,id=mem,size=1G,share=on -M q35,memory-backend=mem -m 1G -chardev " + shellQuote(chardev) + " -device " + device}
	if v.Connect {
		return lines
	}
	disk := fmt.Sprintf("vhost_user=true,socket=%s,num_queues=%d,queue_size=%d", path, queues, min(256, orSize(v.Size)))
	if readOnly {
		disk += ",readonly=on"
	}
	body := fmt.Sprintf(`{"drive_id":"platter0","is_root_device":false,"socket":%q}`, path)
	return append(lines,
		"cloud-hypervisor --memory size=1G,shared=on --disk "+shellQuote(disk),
		"curl --unix-socket firecracker.sock -X PUT http://localhost/drives/platter0 -H 'Content-Type: application/json' -d "+shellQuote(body))
}

func orSize(n int) int {
	if n == 0 {
		return vhostuser.DefaultQueueSize
	}
	return n
}

// absolute is the path as another program finds it.
func absolute(path string) string {
	if strings.HasPrefix(path, "/") {
		return path
	}
	dir, err := os.Getwd()
	if err != nil {
		return path
	}
	return dir + "/" + path
}

func (i *VhostUserInfo) writeText(b *strings.Builder, commands bool) {
	how := "listens"
	if i.Connect {
		how = "connects to the front end"
	}
	fmt.Fprintf(b, "  vhost-user:%s, %s, %s at most\n", i.Socket, how, plural(i.Queues, "queue"))
	if !commands {
		return
	}
	for _, c := range i.Commands {
		fmt.Fprintf(b, "      %s\n", c)
	}
}

// vhostSockets are where front ends connect.
func (d *Daemon) vhostSockets() (all []string) {
	for _, dk := range d.disks {
		for _, x := range dk.vhosts {
			all = append(all, x.cfg.String())
		}
	}
	return all
}
