package vhostuser

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/testutil"
)

// reference starts QEMU's storage daemon over a file.
func reference(t testing.TB, export string) (socket string) {
	t.Helper()
	dir := shortDir(t)
	socket, file := filepath.Join(dir, "s"), filepath.Join(dir, "disk")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	stop := testutil.Background(t, socket, "qemu-storage-daemon",
		"--blockdev", "driver=file,node-name=f,discard=unmap,filename="+file,
		"--export", fmt.Sprintf("type=vhost-user-blk,id=e,node-name=f,addr.type=unix,addr.path=%s%s", socket, export))
	t.Cleanup(stop)
	return socket
}

// The reference's server, which gives discarded blocks any content.
func TestConformanceOverTheReference(t *testing.T) {
	for name, x := range map[string]struct {
		export string
		vals   block.Values
	}{
		"one queue":    {",writable=on", block.Values{"queues": "1"}},
		"two queues":   {",writable=on,num-queues=2", block.Values{"queues": "2", "event-idx": "off"}},
		"blocks of 4K": {",writable=on,logical-block-size=4096", block.Values{"queue-size": "16"}},
	} {
		t.Run(name, func(t *testing.T) {
			blocktest.Run(t, func(t testing.TB) *block.Child {
				vals := block.Values{"driver": "vhostuser", "path": reference(t, x.export)}
				for k, v := range x.vals {
					vals[k] = v
				}
				return blocktest.Edge(t, blocktest.Open(t, blocktest.NewEnv(t), vals, nil))
			}, blocktest.Options{NoAllocations: true, AnyAfterDiscard: true})
		})
	}
}
