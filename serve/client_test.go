package serve

import (
	"strings"
	"testing"

	"github.com/platter-storage/platter/serve/config"
	"github.com/platter-storage/platter/wire/nbd"
)

func TestClientLines(t *testing.T) {
	certs := config.TLS{Mode: config.TLSRequired, Cert: "/etc/pki/server.pem", CA: "/etc/pki/ca,1/ca-cert.pem"}
	for _, c := range []struct {
		name     string
		u        nbd.URI
		readOnly bool
		tls      config.TLS
		want     string
	}{
		{"private socket", nbd.URI{Socket: "/run/user/0/platter/vm.sock"}, false, config.TLS{}, `
nbdinfo 'nbd+unix:///?socket=/run/user/0/platter/vm.sock'
qemu-img info 'nbd+unix:///?socket=/run/user/0/platter/vm.sock'
qemu-system-x86_64 -blockdev driver=nbd,node-name=disk0,server.type=unix,server.path=/run/user/0/platter/vm.sock,discard=unmap -device virtio-blk-pci,drive=disk0
nbd-client -unix /run/user/0/platter/vm.sock /dev/nbd0`},
		{"names that need care", nbd.URI{Socket: "/tmp/a b,c'd", Export: "x, y"}, true, config.TLS{}, `
nbdinfo 'nbd+unix:///x,%20y?socket=/tmp/a+b%2Cc%27d'
qemu-img info 'nbd+unix:///x,%20y?socket=/tmp/a+b%2Cc%27d'
qemu-system-x86_64 -blockdev 'driver=nbd,node-name=disk0,server.type=unix,server.path=/tmp/a b,,c'\''d,export=x,, y,read-only=on' -device virtio-blk-pci,drive=disk0
nbd-client -unix '/tmp/a b,c'\''d' /dev/nbd0 -N 'x, y'`},
		{"network", nbd.URI{Host: "localhost", Export: "vm1"}, false, config.TLS{}, `
nbdinfo nbd://localhost/vm1
qemu-img info nbd://localhost/vm1
qemu-system-x86_64 -blockdev driver=nbd,node-name=disk0,server.type=inet,server.host=localhost,server.port=10809,export=vm1,discard=unmap -device virtio-blk-pci,drive=disk0
nbd-client localhost 10809 /dev/nbd0 -N vm1`},
		{"encrypted", nbd.URI{Host: "::1", Port: 5, TLS: true}, false, certs, `
nbdinfo 'nbds://[::1]:5/?tls-certificates=/etc/pki/ca%2C1'
qemu-img info --object tls-creds-x509,id=tls0,endpoint=client,dir=/etc/pki/ca,,1 --image-opts driver=nbd,server.type=inet,server.host=::1,server.port=5,tls-creds=tls0
qemu-system-x86_64 -object tls-creds-x509,id=tls0,endpoint=client,dir=/etc/pki/ca,,1 -blockdev driver=nbd,node-name=disk0,server.type=inet,server.host=::1,server.port=5,discard=unmap,tls-creds=tls0 -device virtio-blk-pci,drive=disk0
nbd-client ::1 5 /dev/nbd0 -x -A /etc/pki/ca,1/ca-cert.pem`},
		{"abstract", nbd.URI{Socket: "\x00vm"}, false, config.TLS{}, `
nbdinfo 'nbd+unix:///?socket=%00vm'
qemu-img info 'nbd+unix:///?socket=%00vm'
qemu-system-x86_64 -blockdev driver=nbd,node-name=disk0,server.type=unix,server.abstract=on,server.path=vm,discard=unmap -device virtio-blk-pci,drive=disk0
nbd-client -unix @vm /dev/nbd0`},
	} {
		if got := strings.Join(clientLines(c.u, c.readOnly, c.tls), "\n"); got != c.want[1:] {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, got, c.want[1:])
		}
	}
	if got := shellQuote(""); got != "''" {
		t.Errorf("nothing is quoted as %s", got)
	}
}
