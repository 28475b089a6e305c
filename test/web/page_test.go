// Package web opens the daemon's page in a real browser.
package web

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/platter-storage/platter/internal/testutil"
	wire "github.com/platter-storage/platter/wire/nbd"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// patience bounds each wait for the browser: it is slow where the machine is.
const patience = 3 * time.Minute

// pageOf waits for the daemon to say where its page is.
func pageOf(t *testing.T, s *testutil.Server) string {
	t.Helper()
	where := regexp.MustCompile(`page and API: (http://\S+/)`)
	for deadline := time.Now().Add(testutil.StartTimeout); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if m := where.FindStringSubmatch(s.Output()); m != nil {
			return m[1]
		}
	}
	t.Fatalf("no page: %s", s.Output())
	return ""
}

// browser is a page in Chromium, of width by height.
type browser struct {
	t        *testing.T
	ctx      context.Context
	mu       sync.Mutex
	problems []string
}

func open(t *testing.T, url string, width, height int) *browser {
	t.Helper()
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.WindowSize(width, height), chromedp.WSURLReadTimeout(patience),
		chromedp.Env("TMPDIR="+t.TempDir())) // it leaves folders behind
	alloc, cancel := chromedp.NewExecAllocator(context.Background(), opts...)
	t.Cleanup(cancel)
	ctx, _ := chromedp.NewContext(alloc)
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil { // asks it to close, and waits
			t.Logf("closing the browser: %v", err)
		}
	})
	b := &browser{t: t, ctx: ctx}
	messages := chromedp.Console(ctx)
	go func() {
		for m, err := range messages {
			if err != nil {
				return
			}
			b.mu.Lock()
			b.problems = append(b.problems, m.String())
			b.mu.Unlock()
		}
	}()
	b.do(chromedp.Navigate(url))
	return b
}

type step = chromedp.Action[chromedp.Void]

func (b *browser) do(steps ...step) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.t.Fatalf("%v; the page complained: %q", err, b.complaints())
	}
}

// ask gives the value of an action.
func ask[T any](b *browser, a chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	x, err := chromedp.Run(ctx, a)
	if err != nil {
		b.t.Fatalf("%v; the page complained: %q", err, b.complaints())
	}
	return x
}

func (b *browser) complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.problems...)
}

// until waits for an expression of JavaScript to be true.
func (b *browser) until(what, expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if _, err := chromedp.Run(ctx, chromedp.Poll[bool](expression, chromedp.WithPollingInterval(50*time.Millisecond), chromedp.WithPollingTimeout(0))); err != nil {
		b.t.Fatalf("waiting for %s: %v; the page complained: %q", what, err, b.complaints())
	}
}

// keepBusy reads and writes an export until the test ends, gently.
func keepBusy(t *testing.T, socket, export string) {
	t.Helper()
	nc, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	session, err := wire.ClientHandshake(nc, wire.ClientConfig{Export: export})
	if err != nil {
		t.Fatal(err)
	}
	c, err := wire.NewClient(session, wire.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		buf := make([]byte, 16<<10)
		for i := uint64(0); ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(1+i%4) * time.Millisecond):
			}
			off := i * 4096 % (1 << 20)
			if i%3 == 0 {
				err = c.Pwrite(buf[:4096], off+i%2*512, 0)
			} else {
				err = c.Pread(buf, off, 0)
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-ended
		nc.Close()
		if err != nil && err != io.EOF {
			t.Errorf("the load: %v", err)
		}
	})
}

func disk(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "vm.img")
	if err := os.WriteFile(path, make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const inked = `(id => { const c = document.getElementById(id); return c.width > 0 && c.getContext("2d").getImageData(0, 0, c.width, c.height).data.some(x => x) })`

// The page shows what goes on, without a complaint of the browser's.
func TestPageShowsWhatGoesOn(t *testing.T) {
	s := testutil.Serve(t, "--http", "127.0.0.1:0", disk(t), "mem:2M")
	b := open(t, pageOf(t, s), 1400, 1000)
	keepBusy(t, s.Socket, "vm")
	b.until("both disks", `document.querySelectorAll("#disks button").length === 2`)
	b.until("rates", `/[1-9]/.test(document.querySelector("#tiles .tile b")?.textContent)`)
	b.until("the block graph", `document.querySelectorAll("#graph svg rect").length >= 4`)
	b.until("the way to the disk", `document.querySelectorAll("#graph svg path.live").length >= 1`)
	for _, id := range []string{"iops", "bytes", "heat"} {
		b.until("a chart: "+id, inked+`("`+id+`")`)
	}
	b.until("ways that requests took", `document.querySelectorAll("#paths .bar").length >= 2`)
	b.until("operations", `document.querySelectorAll("#ops tr").length >= 3`)
	b.until("the client", `/process \d+/.test(document.getElementById("clients").textContent)`)
	b.until("why", `/engine/.test(document.getElementById("why").textContent)`)
	if all := b.complaints(); len(all) > 0 {
		t.Errorf("the browser complains: %q", all)
	}
}

// A person can change a disk from the page, with the keyboard alone.
func TestPageChangesADisk(t *testing.T) {
	s := testutil.Serve(t, "--http", "127.0.0.1:0", "--throttle", "iops-total=100000", disk(t), "mem:2M")
	b := open(t, pageOf(t, s), 1000, 800)
	b.until("both disks", `document.querySelectorAll("#disks button").length === 2`)
	b.do(chromedp.KeyEvent("j"))
	b.until("the second disk", `document.getElementById("name").textContent === "mem"`)
	const theme = `document.documentElement.dataset.theme`
	before := ask(b, chromedp.Evaluate[string](theme))
	b.do(chromedp.KeyEvent("t"))
	if after := ask(b, chromedp.Evaluate[string](theme)); before == after {
		t.Errorf("the colours are %q as before", after)
	}
	b.do(chromedp.Click(`[data-action=resize]`), chromedp.WaitVisible("#ask"), chromedp.SetValue("#ask-value", "3M"), chromedp.KeyEvent(kb.Enter))
	b.until("the outcome", `/mem has 3 MiB/.test(document.getElementById("toast").textContent)`)
	b.until("the new size", `/3145728/.test(document.getElementById("about").textContent)`)
	b.do(chromedp.Click(`[data-action=resize]`), chromedp.WaitVisible("#ask"), chromedp.SetValue("#ask-value", "1M"), chromedp.Click("#ask-ok"))
	b.until("the refusal", `/shrink/.test(document.getElementById("toast").textContent)`)
	b.do(chromedp.Click(`[data-action=throttle]`), chromedp.WaitVisible("#ask"), chromedp.SetValue("#ask-value", "iops-total=50"), chromedp.Click("#ask-ok"))
	b.until("the new limits", `/iops-total=50$/.test(document.getElementById("about").textContent)`)
	b.do(chromedp.Click(`[data-action=flush]`), chromedp.WaitVisible("#ask"), chromedp.KeyEvent(kb.Escape))
	b.until("the question to be gone", `!document.getElementById("ask").open`)
	if _, text, _ := strings.Cut(s.Output(), "flushed over HTTP"); text != "" {
		t.Error("a flush that was thought better of was done")
	}
}

// Two hundred disks can be looked through, on a narrow screen as well.
func TestPageWithManyDisks(t *testing.T) {
	args := []string{"--http", "127.0.0.1:0"}
	for range 200 {
		args = append(args, "mem:1M")
	}
	s := testutil.Serve(t, args...)
	b := open(t, pageOf(t, s), 420, 900)
	b.until("all disks", `document.querySelectorAll("#disks button").length === 200`)
	b.until("rates", `document.querySelectorAll("#tiles .tile").length > 0`)
	if ask(b, chromedp.Evaluate[bool](`document.documentElement.scrollWidth > document.documentElement.clientWidth`)) {
		t.Error("the page is wider than a narrow screen")
	}
	b.do(chromedp.KeyEvent("/"))
	b.until("the filter to be chosen", `document.activeElement.id === "filter"`)
	// What is sent here is a key and a character apart: the latter arrives too.
	ask(b, chromedp.Evaluate[string](`document.activeElement.value = ""`))
	b.do(chromedp.KeyEvent("mem-17"))
	b.until("those that match", `(n => n > 0 && n < 20)(document.querySelectorAll("#disks button").length)`)
}
