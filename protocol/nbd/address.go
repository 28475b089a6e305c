package nbd

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/platter-storage/platter/block"
	wire "github.com/platter-storage/platter/wire/nbd"
)

// parseURI reads nbd://HOST:PORT/EXPORT, nbd+unix:///EXPORT?socket=PATH, both
// also with nbds, and the older nbd:HOST:PORT:exportname=EXPORT and
// nbd:unix:PATH:exportname=EXPORT.
func parseURI(uri string) (block.Values, error) {
	if rest, ok := strings.CutPrefix(uri, "nbd:"); ok && !strings.HasPrefix(rest, "//") {
		return parseOld(uri, rest)
	}
	u, err := wire.ParseURI(uri)
	if err != nil {
		return nil, block.Errorf(syscall.EINVAL, "%v", err)
	}
	if u.User != "" || u.TLSType != "" && u.TLSType != "x509" {
		return nil, block.Errorf(syscall.EINVAL, "NBD URI %q: TLS is with certificates (x509) only: leave the user and tls-type out", uri)
	}
	vals := block.Values{"server.type": "inet", "export": u.Export}
	if u.Socket != "" {
		vals["server.type"], vals["server.path"] = "unix", u.Socket
	} else {
		vals["server.host"] = u.Host
	}
	if u.Port != 0 {
		vals["server.port"] = strconv.Itoa(int(u.Port))
	}
	if u.TLS {
		vals["tls"] = "on"
	}
	if u.TLSNoVerify {
		vals["tls-verify-peer"] = "off"
	}
	for name, v := range map[string]string{"tls-hostname": u.TLSHostname, "tls-certificates": u.TLSCertificates} {
		if v != "" {
			vals[name] = v
		}
	}
	return vals, nil
}

// parseOld reads what was written before there were URIs of NBD.
func parseOld(uri, rest string) (block.Values, error) {
	rest, export, _ := strings.Cut(rest, ":exportname=")
	if path, ok := strings.CutPrefix(rest, "unix:"); ok && path != "" {
		return block.Values{"server.type": "unix", "server.path": path, "export": export}, nil
	}
	at := strings.LastIndexByte(rest, ':')
	if at <= 0 || at == len(rest)-1 {
		return nil, block.Errorf(syscall.EINVAL, "%s: write nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH, or nbd:HOST:PORT:exportname=EXPORT", uri)
	}
	host := strings.TrimSuffix(strings.TrimPrefix(rest[:at], "["), "]")
	return block.Values{"server.type": "inet", "server.host": host, "server.port": rest[at+1:], "export": export}, nil
}

// either is the value of an option that has a short name beside its long one.
func either(o *block.Options, short string) (string, error) {
	long := "server." + short
	if o.Has(short) && o.Has(long) {
		return "", block.Errorf(syscall.EINVAL, "driver nbd: %s and %s are one option: give one of both", short, long)
	}
	if o.Has(short) {
		return o.String(short), nil
	}
	return o.String(long), nil
}

// addressOf is where the options say that the server is.
func addressOf(o *block.Options) (u wire.URI, err error) {
	var text [3]string
	for i, name := range []string{"host", "port", "path"} {
		if text[i], err = either(o, name); err != nil {
			return u, err
		}
	}
	host, port, path := text[0], text[1], text[2]
	kind := o.String("server.type")
	if kind == "" && path != "" && host == "" {
		kind = "unix"
	}
	switch {
	case kind == "unix" && (path == "" || host != ""):
		return u, block.Errorf(syscall.EINVAL, "driver nbd: a server on a unix socket has a path (server.path) and no host")
	case kind != "unix" && path != "":
		return u, block.Errorf(syscall.EINVAL, "driver nbd: a server has a host or a path (server.path), not both")
	case kind == "" && host == "":
		return u, block.Errorf(syscall.EINVAL, "driver nbd: where is the server? Give server.path=SOCKET, or server.host=NAME and server.port, or write nbd://HOST:PORT/EXPORT")
	}
	u = wire.URI{Host: host, Socket: path, Export: o.String("export"), TLSHostname: o.String("tls-hostname"),
		TLSNoVerify: !o.Bool("tls-verify-peer"), TLSCertificates: o.String("tls-certificates")}
	if u.Socket == "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return u, block.Errorf(syscall.EINVAL, "driver nbd: server.port %q is not a number from 1 to 65535", port)
		}
		u.Port = uint16(n)
	}
	u.TLS = o.Bool("tls") || wantsTLS(o)
	if u.TLS && o.Has("tls") && !o.Bool("tls") {
		return u, block.Errorf(syscall.EINVAL, "driver nbd: tls=off and options of TLS contradict each other")
	}
	// What the options said is held against the rules for URIs.
	if _, err := wire.ParseURI(u.String()); err != nil {
		return u, block.Errorf(syscall.EINVAL, "driver nbd: %v", err)
	}
	return u, nil
}

func wantsTLS(o *block.Options) bool {
	for _, name := range []string{"tls-certificates", "tls-ca", "tls-cert", "tls-key", "tls-hostname"} {
		if o.String(name) != "" {
			return true
		}
	}
	return false
}

// tlsOf reads the files that the options name.
func tlsOf(o *block.Options) (*tls.Config, error) {
	ca, cert, key := o.String("tls-ca"), o.String("tls-cert"), o.String("tls-key")
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if (cert == "") != (key == "") {
		return nil, block.Errorf(syscall.EINVAL, "driver nbd: tls-cert and tls-key belong together")
	}
	if (ca != "" || cert != "") && o.String("tls-certificates") != "" {
		return nil, block.Errorf(syscall.EINVAL, "driver nbd: give a folder (tls-certificates) or files (tls-ca, tls-cert, tls-key), not both")
	}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, block.Errorf(block.Errno(err), "driver nbd, option tls-ca: %v", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, block.Errorf(syscall.EINVAL, "driver nbd, option tls-ca: %s holds no certificate in PEM form", ca)
		}
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, block.Errorf(syscall.EINVAL, "driver nbd, options tls-cert and tls-key: %v", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// filename is what people call the disk: the URI, with slashes as they are.
func filename(u wire.URI) string { return strings.ReplaceAll(u.String(), "%2F", "/") }
