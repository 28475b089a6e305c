package web

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/platter-storage/platter/internal/testutil"
)

// The page under load, in both colours, wide and narrow: into the folder that
// PLATTER_SCREENSHOTS names (make screenshots), or nowhere.
func TestScreenshots(t *testing.T) {
	dir := os.Getenv("PLATTER_SCREENSHOTS")
	seconds := 3
	if dir == "" {
		dir = t.TempDir()
	} else {
		seconds = 45
	}
	s := testutil.Serve(t, "--http", "127.0.0.1:0", "--throttle", "iops-total=100000", disk(t), "mem:64M", "null:1T")
	for _, export := range []string{"vm", "vm", "mem"} {
		keepBusy(t, s.Socket, export)
	}
	b := open(t, pageOf(t, s), 1400, 900)
	b.until("some history", `state.history.has("vm") && state.history.get("vm").read.length >= `+strconv.Itoa(seconds))
	for _, shape := range []struct {
		name  string
		width int64
	}{{"wide", 1400}, {"narrow", 430}} {
		for _, theme := range []string{"light", "dark"} {
			b.do(chromedp.EmulateViewport(shape.width, 900))
			ask(b, chromedp.Evaluate[any](`theme("`+theme+`")`))
			picture := ask(b, chromedp.FullScreenshot(85))
			name := filepath.Join(dir, "page-"+shape.name+"-"+theme+".jpg")
			if err := os.WriteFile(name, picture, 0o644); err != nil {
				t.Fatal(err)
			}
			if len(picture) < 10<<10 {
				t.Errorf("%s has %d bytes", name, len(picture))
			}
		}
	}
}
