package serve

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/platter-storage/platter/serve/config"
)

// progressStep is how often people see how far a file has been written.
const progressStep = 500 * time.Millisecond

// showCreation shows people at a terminal how much of a file that is written in
// full is there, until stop is called. It looks at the space that the file
// takes, so the driver knows nothing of it.
func (d *Daemon) showCreation(cfg *config.Disk, file string) (stop func()) {
	if cfg.Preallocation != "full" || file == "" || !isTerminal(os.Stderr) {
		return func() {}
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(progressStep)
		defer tick.Stop()
		for {
			select {
			case <-end:
				fmt.Fprint(os.Stderr, "\r\x1b[K")
				return
			case <-tick.C:
				fmt.Fprintf(os.Stderr, "\r\x1b[K%s: %s", file, written(file, cfg.Create))
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}

// written says how much of size bytes the file takes by now.
func written(file string, size int64) string {
	fi, err := os.Stat(file)
	if err != nil {
		return "being made"
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return "being made"
	}
	return fmt.Sprintf("%d %% written", min(st.Blocks*512, size)*100/size)
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
