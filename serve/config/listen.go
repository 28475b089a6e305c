package config

import (
	"net"
	"strconv"
	"strings"
)

// ListenKind says what a listener is.
type ListenKind uint8

// The kinds of listeners.
const (
	ListenAuto    ListenKind = iota // a Unix socket in a private folder
	ListenUnix                      // at Path
	ListenTCP                       // at Address
	ListenSystemd                   // passed by the service manager, all or those called Name
	ListenFD                        // an inherited descriptor, FD
)

// DefaultPort is NBD's.
const DefaultPort = "10809"

// MaxSocketPath is the longest path of a Unix socket, in bytes: sun_path of
// unix(7) without its final zero.
const MaxSocketPath = 107

// Listen is one place where clients connect.
type Listen struct {
	Kind    ListenKind
	Path    string // ListenUnix
	Address string // ListenTCP: HOST:PORT
	Name    string // ListenSystemd
	FD      int    // ListenFD
	At      Place
}

// String is the form in which the user writes it.
func (l Listen) String() string {
	switch l.Kind {
	case ListenUnix:
		return "unix:" + l.Path
	case ListenTCP:
		return l.Address
	case ListenFD:
		return "fd:" + strconv.Itoa(l.FD)
	case ListenSystemd:
		if l.Name != "" {
			return "systemd:" + l.Name
		}
		return "systemd"
	}
	return "auto"
}

func (c *Config) addListen(v Text) error {
	l, err := ParseListen(v)
	if err != nil {
		return err
	}
	c.Listen = append(c.Listen, l)
	return nil
}

func (c *Config) setHTTP(v Text) error {
	l, err := ParseListen(v)
	if err != nil {
		return err
	}
	if l.Kind == ListenSystemd {
		return errorAt(v.At, "%q: the sockets of a service manager are for clients of the disks: write fd:NUMBER, unix:PATH, HOST:PORT or auto", v.Value)
	}
	if _, _, err := net.SplitHostPort(v.Value); l.Kind == ListenTCP && err != nil {
		return errorAt(v.At, "%q lacks a port: write localhost:PORT, where 0 takes a free one", v.Value)
	}
	c.HTTP = &l
	return nil
}

// ParseListen reads unix:PATH, HOST:PORT, systemd[:NAME], fd:NUMBER or auto.
func ParseListen(v Text) (Listen, error) {
	l := Listen{At: v.At}
	scheme, rest, _ := strings.Cut(v.Value, ":")
	switch scheme {
	case "auto":
		if v.Value == "auto" {
			return l, nil
		}
	case "unix":
		l.Kind, l.Path = ListenUnix, rest
		if rest == "" {
			return l, errorAt(v.At, "%q lacks the socket's path: write unix:/run/disk.sock", v.Value)
		}
		if len(rest) > MaxSocketPath {
			return l, errorAt(v.At, "%q: the path of a Unix socket has at most %d bytes: choose a shorter one", v.Value, MaxSocketPath)
		}
		return l, nil
	case "systemd":
		l.Kind, l.Name = ListenSystemd, rest
		return l, nil
	case "fd":
		n, err := strconv.Atoi(rest)
		if err != nil || n < 3 || n > 1<<20 {
			return l, errorAt(v.At, "%q: write fd: and the number of a listening socket that this process inherits, from 3", v.Value)
		}
		l.Kind, l.FD = ListenFD, n
		return l, nil
	case "tcp":
		return parseTCP(l, strings.TrimPrefix(rest, "//"), v)
	}
	return parseTCP(l, v.Value, v)
}

// parseTCP reads HOST:PORT, or HOST alone with NBD's port. No host, or *, is
// every address of this machine.
func parseTCP(l Listen, s string, v Text) (Listen, error) {
	const forms = "write unix:PATH, HOST:PORT, [::1]:PORT, systemd, fd:NUMBER or auto"
	switch {
	case strings.Contains(s, "/"):
		return l, errorAt(v.At, "%q is not an address: for a Unix socket write unix:%s", v.Value, s)
	case s == "":
		return l, errorAt(v.At, "%q is not an address: %s", v.Value, forms)
	}
	if _, err := strconv.Atoi(s); err == nil {
		return l, errorAt(v.At, "%q is not an address: for this machine only write localhost:%s, for every network :%s", v.Value, s, s)
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		if ip := strings.Trim(s, "[]"); net.ParseIP(ip) != nil || !strings.Contains(s, ":") {
			host, port = ip, DefaultPort
		} else {
			return l, errorAt(v.At, "%q is not an address: %s", v.Value, forms)
		}
	}
	if host == "*" {
		host = "" // every address, as other programs write it
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return l, errorAt(v.At, "%q: the port %q is not a number from 0 (any) to 65535", v.Value, port)
	}
	l.Kind, l.Address = ListenTCP, net.JoinHostPort(host, port)
	return l, nil
}
