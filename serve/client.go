package serve

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/platter-storage/platter/serve/config"
	"github.com/platter-storage/platter/wire/nbd"
)

// addresses are where clients find a listener, as NBD URIs without the export:
// first one for clients on this machine; where every address of it is listened
// on, one by the machine's name for others.
func (l *listener) addresses(t config.TLS) []nbd.URI {
	u := nbd.URI{TLS: t.Mode == config.TLSRequired}
	var more []nbd.URI
	switch a := l.l.Addr().(type) {
	case *net.UnixAddr:
		u.Socket = a.Name
		if strings.HasPrefix(a.Name, "@") { // abstract
			u.Socket = "\x00" + a.Name[1:]
		}
	case *net.TCPAddr:
		if u.Port = uint16(a.Port); u.Port == nbd.Port {
			u.Port = 0
		}
		u.Host = l.host(a.IP)
		if name, err := os.Hostname(); err == nil && a.IP.IsUnspecified() && name != "localhost" {
			far := u
			far.Host = name
			more = append(more, far)
		}
	}
	return append([]nbd.URI{u}, more...)
}

// host is the name or address to connect to: as the user wrote it, where that
// leads to one place, because certificates have names.
func (l *listener) host(ip net.IP) string {
	if ip.IsUnspecified() {
		return "localhost"
	}
	if host, _, err := net.SplitHostPort(l.cfg.Address); err == nil && host != "" {
		return host
	}
	return ip.String()
}

// uriText is the URI with the slashes of paths as they are, which a query may
// have: people copy them.
func uriText(u nbd.URI) string {
	before, query, ok := strings.Cut(u.String(), "?")
	if !ok {
		return before
	}
	return before + "?" + strings.ReplaceAll(query, "%2F", "/")
}

// certificateFolder is a folder with the authority's certificate, for the
// lines of clients: beside the server's own, where nothing better is known.
func certificateFolder(t config.TLS) string {
	file := t.Cert
	if t.CA != "" {
		file = t.CA
	}
	if abs, err := filepath.Abs(file); err == nil {
		file = abs // the lines are pasted elsewhere
	}
	return filepath.Dir(file)
}

// certificatesText says which files a client needs, and where the lines above
// look for them.
func certificatesText(t config.TLS) string {
	switch {
	case t.Mode == config.TLSOff:
		return ""
	case t.VerifyClient:
		return fmt.Sprintf("clients need, in one folder on their machine: ca-cert.pem (who signed the server's certificate), client-cert.pem and client-key.pem (signed by an authority of %s); the lines above look for them in %s",
			t.CA, certificateFolder(t))
	}
	return fmt.Sprintf("clients need, in a folder on their machine: ca-cert.pem (who signed the server's certificate); the lines above look for it in %s", certificateFolder(t))
}

// clientLines are commands that use the export: ready to be pasted.
func clientLines(u nbd.URI, readOnly bool, t config.TLS) []string {
	if u.TLS {
		u.TLSCertificates = certificateFolder(t)
	}
	uri := shellQuote(uriText(u))
	return []string{
		"nbdinfo " + uri,
		qemuInfoLine(u, t),
		qemuSystemLine(u, readOnly, t),
		nbdClientLine(u, t),
	}
}

func qemuInfoLine(u nbd.URI, t config.TLS) string {
	if !u.TLS {
		return "qemu-img info " + shellQuote(uriText(u))
	}
	return "qemu-img info --object " + shellQuote(tlsObject(t)) + " --image-opts " + shellQuote("driver=nbd,"+qemuServer(u)+",tls-creds=tls0")
}

// qemuSystemLine is the disk of a virtual machine.
func qemuSystemLine(u nbd.URI, readOnly bool, t config.TLS) string {
	dev := "driver=nbd,node-name=disk0," + qemuServer(u)
	if readOnly {
		dev += ",read-only=on"
	} else {
		dev += ",discard=unmap"
	}
	line := "qemu-system-x86_64 "
	if u.TLS {
		line += "-object " + shellQuote(tlsObject(t)) + " "
		dev += ",tls-creds=tls0"
	}
	return line + "-blockdev " + shellQuote(dev) + " -device virtio-blk-pci,drive=disk0"
}

func tlsObject(t config.TLS) string {
	return "tls-creds-x509,id=tls0,endpoint=client,dir=" + doubleCommas(certificateFolder(t))
}

// qemuServer is the server and the export in the reference's options.
func qemuServer(u nbd.URI) string {
	s := ""
	switch {
	case strings.HasPrefix(u.Socket, "\x00"):
		s = "server.type=unix,server.abstract=on,server.path=" + doubleCommas(u.Socket[1:])
	case u.Socket != "":
		s = "server.type=unix,server.path=" + doubleCommas(u.Socket)
	default:
		s = fmt.Sprintf("server.type=inet,server.host=%s,server.port=%d", u.Host, port(u))
	}
	if u.Export != "" {
		s += ",export=" + doubleCommas(u.Export)
	}
	return s
}

// nbdClientLine makes a block device of the kernel's.
func nbdClientLine(u nbd.URI, t config.TLS) string {
	line := "nbd-client "
	if u.Socket != "" {
		line += "-unix " + shellQuote(strings.Replace(u.Socket, "\x00", "@", 1))
	} else {
		line += u.Host + " " + strconv.Itoa(port(u))
	}
	line += " /dev/nbd0"
	if u.Export != "" {
		line += " -N " + shellQuote(u.Export)
	}
	if u.TLS {
		file := func(name string) string { return shellQuote(filepath.Join(certificateFolder(t), name)) }
		line += " -x -A " + file("ca-cert.pem")
		if t.VerifyClient {
			line += " -F " + file("client-cert.pem") + " -K " + file("client-key.pem")
		}
	}
	return line
}

func port(u nbd.URI) int {
	if u.Port == 0 {
		return nbd.Port
	}
	return int(u.Port)
}

func doubleCommas(s string) string { return strings.ReplaceAll(s, ",", ",,") }

// plainWord are the characters that a shell leaves alone.
const plainWord = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+:,./@%"

// shellQuote writes s as one word of a shell.
func shellQuote(s string) string {
	if s != "" && strings.Trim(s, plainWord) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
