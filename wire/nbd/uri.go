package nbd

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// URI names an export on a server. (doc/uri.md of the same repository)
type URI struct {
	// TLS is the schemes nbds and nbds+unix: encrypted or not at all.
	TLS bool

	// Socket is the path of a Unix domain socket, the schemes nbd+unix and
	// nbds+unix. A leading NUL is the abstract name space. If Socket is
	// empty, the server is at Host and Port.
	Socket string
	Host   string // name or address, without brackets; "" is this machine
	Port   uint16 // 0 is the default, 10809

	User   string // for TLS with a shared key
	Export string // "" is the default export

	// TLSType is anon, x509 or psk; "" lets the client choose.
	TLSType string
	// TLSHostname is the name to hold the server's certificate against,
	// where that is not Host.
	TLSHostname string
	// TLSNoVerify is tls-verify-peer=0.
	TLSNoVerify bool
	// TLSCertificates is a folder with ca-cert.pem, client-cert.pem and
	// client-key.pem: tls-certificates, as libnbd has it.
	TLSCertificates string
}

// ParseURI reads a URI with the scheme nbd, nbds, nbd+unix or nbds+unix;
// nbd+tcp and nbds+tcp, which some tools write, mean nbd and nbds.
func ParseURI(s string) (URI, error) {
	u, err := parseURI(s)
	if err != nil {
		return URI{}, fmt.Errorf("NBD URI %s: %w", quote(s), err)
	}
	return u, nil
}

func parseURI(s string) (u URI, err error) {
	p, err := url.Parse(s)
	if err != nil {
		return u, err.(*url.Error).Err
	}
	unix := false
	switch p.Scheme {
	case "nbd", "nbd+tcp":
	case "nbds", "nbds+tcp":
		u.TLS = true
	case "nbd+unix":
		unix = true
	case "nbds+unix":
		u.TLS, unix = true, true
	default:
		return u, fmt.Errorf("scheme %s is not of NBD: use nbd, nbds, nbd+unix or nbds+unix", quote(p.Scheme))
	}
	if p.Opaque != "" {
		return u, fmt.Errorf("%q must follow the scheme: write %s://…", "//", p.Scheme)
	}
	if p.Fragment != "" {
		return u, fmt.Errorf("a fragment (#%s) means nothing: write %%23 for a # in a name", p.Fragment)
	}
	if err := u.setAuthority(p, unix); err != nil {
		return u, err
	}
	u.Export = strings.TrimPrefix(p.Path, "/")
	if err := checkString("export name", u.Export); err != nil {
		return u, err
	}
	return u, u.setQuery(p.RawQuery, unix)
}

// setAuthority takes user, host and port.
func (u *URI) setAuthority(p *url.URL, unix bool) error {
	if p.User != nil {
		u.User = p.User.Username()
		if _, has := p.User.Password(); has {
			return fmt.Errorf("a password does not belong here: NBD has no use for it, and others can read it")
		}
	}
	if unix {
		if p.Host != "" {
			return fmt.Errorf("host %s makes no sense with a Unix domain socket: write %s:///NAME?socket=PATH", quote(p.Host), p.Scheme)
		}
		return nil
	}
	u.Host = p.Hostname()
	if err := checkHost(u.Host); err != nil {
		return err
	}
	if s := p.Port(); s != "" {
		n, err := strconv.ParseUint(s, 10, 16)
		if err != nil || n == 0 {
			return fmt.Errorf("port %s is not a number from 1 to 65535", quote(s))
		}
		u.Port = uint16(n)
	}
	return nil
}

// checkHost looks whether a host is a name, or an address: package url takes
// much else.
func checkHost(h string) error {
	odd := func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune("[]", r) }
	if !strings.Contains(h, ":") {
		odd = func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune("[]%", r) }
	} else if _, err := netip.ParseAddr(h); err != nil {
		return fmt.Errorf("host %s has colons and is no IPv6 address: write [ADDRESS]:PORT", quote(h))
	}
	if strings.ContainsFunc(h, odd) {
		return fmt.Errorf("host %s has characters that no host name or address has", quote(h))
	}
	return nil
}

// setQuery takes the parameters. One that is not known is an error: it was
// meant to change something.
func (u *URI) setQuery(raw string, unix bool) error {
	q, err := url.ParseQuery(raw)
	if err != nil {
		return fmt.Errorf("parameters: %w", err)
	}
	for k, v := range q {
		if len(v) != 1 {
			return fmt.Errorf("parameter %s occurs %d times", quote(k), len(v))
		}
		if err := u.setParameter(k, v[0], unix); err != nil {
			return err
		}
	}
	if unix && u.Socket == "" {
		return fmt.Errorf("parameter socket is missing: add ?socket=PATH")
	}
	return nil
}

func (u *URI) setParameter(k, v string, unix bool) error {
	switch k {
	case "socket":
		if !unix {
			return fmt.Errorf("parameter socket needs the scheme nbd+unix or nbds+unix")
		}
		if strings.IndexByte(strings.TrimPrefix(v, "\x00"), 0) >= 0 {
			return fmt.Errorf("socket %s contains a NUL character other than the first", quote(v))
		}
		u.Socket = v
	case "tls-type":
		if v != "anon" && v != "x509" && v != "psk" {
			return fmt.Errorf("tls-type %s is not anon, x509 or psk", quote(v))
		}
		u.TLSType = v
	case "tls-hostname":
		u.TLSHostname = v
	case "tls-verify-peer":
		if v != "0" && v != "1" {
			return fmt.Errorf("tls-verify-peer %s is not 0 or 1", quote(v))
		}
		u.TLSNoVerify = v == "0"
	case "tls-certificates":
		u.TLSCertificates = v
	default:
		return fmt.Errorf("parameter %s is not known", quote(k))
	}
	return nil
}

// String is the URI, such that ParseURI gives u again.
func (u URI) String() string {
	p := url.URL{Scheme: "nbd", Path: "/" + u.Export}
	if u.TLS {
		p.Scheme = "nbds"
	}
	if u.User != "" {
		p.User = url.User(u.User)
	}
	q := url.Values{}
	set := func(k, v string) {
		if v != "" {
			q.Set(k, v)
		}
	}
	if u.Socket != "" {
		p.Scheme += "+unix"
		set("socket", u.Socket)
	} else {
		p.Host = u.hostPort()
	}
	set("tls-type", u.TLSType)
	set("tls-hostname", u.TLSHostname)
	if u.TLSNoVerify {
		set("tls-verify-peer", "0")
	}
	set("tls-certificates", u.TLSCertificates)
	p.RawQuery = q.Encode()
	s := p.String()
	if p.Host == "" && p.User == nil && strings.HasPrefix(p.Path, "//") {
		// package url drops the empty authority's slashes, or escapes
		// them, where a path starts with two
		s = p.Scheme + "://" + p.EscapedPath()
		if p.RawQuery != "" {
			s += "?" + p.RawQuery
		}
	}
	return s
}

// hostPort is the authority without the user.
func (u URI) hostPort() string {
	if u.Port != 0 {
		return net.JoinHostPort(u.Host, strconv.Itoa(int(u.Port)))
	}
	if strings.Contains(u.Host, ":") {
		return "[" + u.Host + "]"
	}
	return u.Host
}

// Address is the network and address for package net.
func (u URI) Address() (network, address string) {
	if u.Socket == "" {
		port := u.Port
		if port == 0 {
			port = Port
		}
		return "tcp", net.JoinHostPort(u.Host, strconv.Itoa(int(port)))
	}
	switch {
	case u.Socket[0] == 0: // abstract: package net writes @
		return "unix", "@" + u.Socket[1:]
	case u.Socket[0] == '@': // a file of that name
		return "unix", "./" + u.Socket
	}
	return "unix", u.Socket
}
