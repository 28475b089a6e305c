package serve

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"

	"github.com/coreos/go-systemd/v22/activation"

	"github.com/platter-storage/platter/export/nbd"
	"github.com/platter-storage/platter/serve/config"
)

// listener is one place where clients connect.
type listener struct {
	cfg  config.Listen
	l    net.Listener
	done chan struct{} // closed when the server has left it
}

// inherited are the sockets that a service manager passed, and other inherited
// descriptors. They are taken over once and kept: a reload may use them again.
type inherited struct {
	asked bool
	files map[string][]*os.File
	fds   map[int]*os.File
}

func (in *inherited) fd(n int) *os.File {
	if in.fds == nil {
		in.fds = map[int]*os.File{}
	}
	if in.fds[n] == nil {
		in.fds[n] = os.NewFile(uintptr(n), "fd:"+strconv.Itoa(n))
	}
	return in.fds[n]
}

func (in *inherited) get() map[string][]*os.File {
	if !in.asked {
		in.asked, in.files = true, activation.FilesWithNames()
	}
	return in.files
}

// effectiveListen is what a configuration listens on: without a word, the
// sockets of a service manager if there are any, otherwise a private one.
func effectiveListen(cfg *config.Config, in *inherited) []config.Listen {
	switch {
	case len(cfg.Listen) > 0:
		return cfg.Listen
	case len(in.get()) > 0:
		return []config.Listen{{Kind: config.ListenSystemd}}
	case cfg.OnlyVhostUser():
		return nil
	}
	return []config.Listen{{Kind: config.ListenAuto}}
}

// openListener makes the listeners of one address: a service manager may have
// passed several.
func (d *Daemon) openListener(cfg config.Listen) ([]*listener, error) {
	nets, err := d.netListeners(cfg)
	if err != nil {
		if at := cfg.At; at.File != "" {
			err = fmt.Errorf("%s: %w", at, err)
		}
		return nil, err
	}
	all := make([]*listener, len(nets))
	for i, l := range nets {
		all[i] = &listener{cfg, l, make(chan struct{})}
	}
	return all, nil
}

func (d *Daemon) netListeners(cfg config.Listen) ([]net.Listener, error) {
	mode := d.cfg.SocketMode
	if mode == 0 {
		mode = 0o600
	}
	one := func(l net.Listener, err error) ([]net.Listener, error) {
		if err != nil {
			return nil, err
		}
		return []net.Listener{l}, nil
	}
	switch cfg.Kind {
	case config.ListenUnix:
		return one(listenUnix(cfg.Path, mode))
	case config.ListenTCP:
		return one(listenTCP(cfg.Address))
	case config.ListenFD:
		return one(listenFD(d.inherited.fd(cfg.FD)))
	case config.ListenSystemd:
		return d.listenSystemd(cfg.Name)
	}
	return one(listenAuto(d.socketName(), mode))
}

// socketName is what a socket of our choice is called.
func (d *Daemon) socketName() string {
	if len(d.cfg.Disks) > 0 {
		return d.cfg.Disks[0].Name
	}
	return "platter"
}

func listenTCP(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err == nil {
		return l, nil
	}
	_, port, _ := net.SplitHostPort(address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		n, _ := strconv.Atoi(port)
		who := portHolder(n)
		if who == "" {
			who = "a process that cannot be seen from here"
		}
		return nil, fmt.Errorf("listen on %s: %s listens there already: stop it, or choose another port (port 0 takes a free one)", address, who)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("listen on %s: this machine does not have that address: see `ip address`, or leave the host empty for every address", address)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("listen on %s: permission denied: ports below 1024 need CAP_NET_BIND_SERVICE; choose a higher one", address)
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return nil, fmt.Errorf("listen on %s: the name %s leads to no address: check it, write an address of this machine, or leave the host empty for every address", address, dns.Name)
	}
	return nil, fmt.Errorf("listen on %s: %w", address, rootCause(err))
}

// listenFD takes a listening socket that the process has inherited.
func listenFD(f *os.File) (net.Listener, error) {
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: it is not a listening socket that this process has inherited: %w", f.Name(), rootCause(err))
	}
	return l, nil
}

// listenSystemd takes the sockets that the service manager passed under name,
// or all.
func (d *Daemon) listenSystemd(name string) ([]net.Listener, error) {
	var all []net.Listener
	for n, files := range d.inherited.get() {
		if name != "" && n != name {
			continue
		}
		for _, f := range files {
			l, err := net.FileListener(f)
			if err != nil {
				return nil, fmt.Errorf("listen on systemd:%s: what the service manager passed is no listening stream socket: write ListenStream= in the socket unit: %w", n, rootCause(err))
			}
			all = append(all, l)
		}
	}
	switch {
	case len(all) == 0 && name == "":
		return nil, errors.New("listen on systemd: no sockets were passed (LISTEN_FDS is not set for this process): start it through its socket unit, or choose another address")
	case len(all) == 0:
		return nil, fmt.Errorf("listen on systemd:%s: no socket of that name was passed: set FileDescriptorName=%s in the socket unit", name, name)
	}
	return all, nil
}

// start serves clients of the listener until it is closed.
func (d *Daemon) start(l *listener) {
	go func() {
		defer close(l.done)
		err := d.server.Serve(l.l)
		if err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, nbd.ErrServerClosed) {
			d.log.Error("no more clients are accepted", "listener", l.cfg.String(), "error", err)
		}
	}()
}

// openToNetwork reports whether others than this machine's users can connect.
func (l *listener) openToNetwork() bool {
	a, ok := l.l.Addr().(*net.TCPAddr)
	return ok && !a.IP.IsLoopback()
}
