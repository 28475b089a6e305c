package nbd

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/block/blocktest"
	"github.com/platter-storage/platter/internal/testutil"
)

// Other people's servers.
func TestConformanceOverPeers(t *testing.T) {
	for name, serve := range map[string]func(socket, file string) []string{
		"qemu-nbd": func(socket, file string) []string {
			return []string{"qemu-nbd", "--persistent", "--shared=8", "--format=raw", "--discard=unmap", "--socket=" + socket, file}
		},
		"nbdkit": func(socket, file string) []string {
			return []string{"nbdkit", "--foreground", "--unix", socket, "file", "file=" + file}
		},
		"nbdkit with blocks": func(socket, file string) []string {
			return []string{"nbdkit", "--foreground", "--unix", socket, "--filter=blocksize-policy", "file", "file=" + file,
				"blocksize-minimum=4096", "blocksize-preferred=65536", "blocksize-maximum=1M", "blocksize-error-policy=error"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			blocktest.Run(t, func(t testing.TB) *block.Child {
				dir := shortDir(t)
				socket, file := filepath.Join(dir, "s"), filepath.Join(dir, "disk")
				if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
					t.Fatal(err)
				}
				argv := serve(socket, file)
				t.Cleanup(testutil.Background(t, socket, argv[0], argv[1:]...))
				return blocktest.Edge(t, blocktest.Open(t, blocktest.NewEnv(t), block.Values{"driver": "nbd", "path": socket}, nil))
			}, blocktest.Options{AnyAfterDiscard: true})
		})
	}
}

// startPeer starts a server of QEMU's that a test can kill.
func startPeer(t *testing.T, socket, file string) *exec.Cmd {
	t.Helper()
	os.Remove(socket)
	cmd := exec.Command("qemu-nbd", "--persistent", "--shared=8", "--format=raw", "--socket="+socket, file)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// kill ends it without warning.
func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // that it was killed is known
}

// A server that is killed with requests in flight, and started anew, loses no
// request and no byte.
func TestPeerIsKilled(t *testing.T) {
	dir := shortDir(t)
	socket, file := filepath.Join(dir, "s"), filepath.Join(dir, "disk")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	peer := startPeer(t, socket, file)
	defer func() { kill(peer) }()
	in := blocktest.Open(t, blocktest.NewEnv(t), block.Values{"driver": "nbd", "path": socket, "reconnect-delay": "3600", "open-timeout": "3600"}, nil)
	c := blocktest.NewClient(t, blocktest.Edge(t, in))
	want := make([]byte, 1<<20)
	for round := range 3 {
		blocktest.Pattern(want, uint64(round))
		results := make(chan error, 16)
		for i := range 16 {
			go func() { results <- c.Write(int64(i)<<16, 0, want[i<<16:(i+1)<<16]) }()
		}
		kill(peer)
		peer = startPeer(t, socket, file)
		for range 16 {
			if err := <-results; err != nil {
				t.Errorf("round %d: %v", round, err)
			}
		}
		got := make([]byte, 1<<20)
		if err := errors.Join(c.Flush(), c.Read(0, got)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("round %d: %v, or other bytes", round, err)
		}
	}
}
