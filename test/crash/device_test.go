package crash

import (
	"testing"

	"github.com/platter-storage/platter/internal/testutil"
)

// TestRestartOnADeviceRightAfterKill: the kernel gives a claimed device back
// some time after its holder was killed; a restart waits for that.
func TestRestartOnADeviceRightAfterKill(t *testing.T) {
	dev := testutil.Loop(t, t.TempDir(), diskSize, 512)
	for range 5 {
		s := testutil.Serve(t, "--cache", "none", dev)
		c := dial(t, s)
		if err := c.Pwrite(make([]byte, blockSize), 0, 0); err != nil {
			t.Fatal(err)
		}
		s.Kill()
		c.Close()
	}
	testutil.Serve(t, "--cache", "none", dev).Stop(t)
}
