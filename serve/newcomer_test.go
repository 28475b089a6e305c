package serve_test

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/testutil"
	"github.com/platter-storage/platter/serve"
)

// What a newcomer met, each test named after what went wrong.

// expect runs platter and looks for texts in what it says.
func expect(t *testing.T, code int, line string, wants ...string) {
	t.Helper()
	got, out, errOut := run(t, strings.Fields(line)...)
	if got != code {
		t.Errorf("platter %s gives %d, want %d:\n%s%s", line, got, code, out, errOut)
	}
	for _, w := range wants {
		if !strings.Contains(out+errOut, w) {
			t.Errorf("platter %s lacks %q:\n%s%s", line, w, out, errOut)
		}
	}
}

// TestTheEndPromisedWhatWasNotTrue: what is said at the end holds for each disk.
func TestTheEndPromisedWhatWasNotTrue(t *testing.T) {
	dir := folder(t)
	p := launch(t, nil, "--listen", "unix:"+dir+"/s", image(t, dir, "safe.img", 4096),
		"driver=file,cache=unsafe,filename="+image(t, dir, "unsafe.img", 4096), "mem:1M", "null:1M")
	p.ready()
	p.logs("flushes are ignored: if this machine crashes")
	p.signal(syscall.SIGTERM)
	var end struct {
		Disks []serve.Fate
	}
	p.await("stopped", &end)
	p.exits(0)
	for i, want := range []struct {
		durable bool
		note    string
	}{{true, "everything written is on the disk"}, {false, "flushes were ignored (--cache unsafe)"}, {false, "it was in memory and is gone"}, {false, "it keeps nothing"}} {
		if f := end.Disks[i]; f.Durable != want.durable || !strings.HasPrefix(f.Note, want.note) {
			t.Errorf("disk %d: %+v, want %+v", i, f, want)
		}
	}
}

// image makes a file of n bytes with data.
func image(t *testing.T, dir, name string, n int) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(strings.Repeat("x", n)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestURIOfAnIPv6AddressSaidLocalhost(t *testing.T) {
	p := launch(t, nil, "--listen", "[::1]:0", "--listen", "127.0.0.1:0", "--listen", "*:0", "mem:1M")
	uris := p.ready().Disks[0].Exports[0].URIs
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"nbd://[::1]:", "nbd://127.0.0.1:", "nbd://localhost:", "nbd://" + host + ":"} {
		if i >= len(uris) || !strings.HasPrefix(uris[i], want) {
			t.Errorf("URI %d of %q does not begin with %s", i, uris, want)
		}
	}
	if got := strings.TrimSpace(testutil.Run(t, "nbdinfo", "--size", uris[0])); got != "1048576" {
		t.Errorf("at %s nbdinfo says %s", uris[0], got)
	}
}

func TestImagesOfOtherFormatsHadNoWayOut(t *testing.T) {
	expect(t, 2, "serve --format vmdk x.vmdk", "x.vmdk: format vmdk was asked for, and the format vmdk is not supported yet: convert it (qemu-img convert -f vmdk -O raw x.vmdk new.raw), or serve it with qemu-nbd")
	expect(t, 2, "serve --format file x", `there is no format "file"; there is: luks, qcow2, raw`)
}

func TestAMissingDeviceBecameAFile(t *testing.T) {
	expect(t, 1, "serve /dev/no-such-disk", "there is no such device: attach it, or check the path (lsblk")
	expect(t, 1, "serve --create 1M /dev/no-such-disk", "/dev/no-such-disk: is not made: a regular file below /dev would be in memory")
	if _, err := os.Lstat("/dev/no-such-disk"); err == nil {
		os.Remove("/dev/no-such-disk")
		t.Error("/dev/no-such-disk was made")
	}
}

func TestNothingChangedWasNotSaid(t *testing.T) {
	dir := folder(t)
	said := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(testutil.Binary(t), append([]string{"serve", "--listen", "unix:" + dir + "/s"}, args...)...)
		out, lines := start(t, cmd)
		lines("ready: ")
		if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		lines("reloaded: ")
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
		return out()
	}
	if got := said("mem:1M"); !strings.Contains(got, "reloaded: there is nothing to read again: it was started without --config\n") {
		t.Errorf("without a file:\n%s", got)
	}
	file := dir + "/serve.yaml"
	if err := os.WriteFile(file, []byte("disks: ['mem:1M']\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := said("--config", file)
	if !strings.Contains(got, "reloaded: nothing has changed in "+file+"\n") || strings.Count(got, "mem:1M: ") != 1 {
		t.Errorf("with the same file:\n%s", got)
	}
}

func TestReloadSaidEverythingAgain(t *testing.T) {
	dir := folder(t)
	file := dir + "/serve.yaml"
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("listen: unix:" + dir + "/s\ndisks: [{path: 'mem:1M', name: a}, {path: 'mem:1M', name: b}, {path: 'mem:1M', name: c}]\n")
	p := launch(t, nil, "--config", file)
	p.ready()
	write("listen: unix:" + dir + "/t\nstats: on\ndisks: [{path: 'mem:1M', name: a, export: [a, z]}, {path: 'mem:2M', name: b}, {path: 'mem:3M', name: d}]\n")
	p.signal(syscall.SIGHUP)
	var r serve.Reloaded
	p.await("reloaded", &r)
	got := strings.Join(r.Changes, "\n")
	for _, want := range []string{
		"stats has another value", "disk b has new settings: it was closed and opened again", "disk c is closed", "disk d (mem:3M) is opened",
		`export "z" of disk a is offered`, "unix:" + dir + "/s is no longer listened on", "unix:" + dir + "/t is listened on",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the changes lack %q:\n%s", want, got)
		}
	}
	if len(r.Changes) != 7 {
		t.Errorf("%d changes:\n%s", len(r.Changes), got)
	}
	write("disks: [{pat: 'mem:1M'}]\n")
	p.signal(syscall.SIGHUP)
	p.await("reloaded", &r)
	p.logs("a disk has no setting") // standard error comes by a pipe of its own
	if n := strings.Count(p.stderr(), "a disk has no setting"); n != 1 {
		t.Errorf("the mistake is logged %d times:\n%s", n, p.stderr())
	}
}

func TestAnEmptyConfigurationServedNothing(t *testing.T) {
	file := folder(t) + "/serve.yaml"
	if err := os.WriteFile(file, []byte("disks: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, 2, "serve --config "+file, file+": there is nothing to serve: add disks")
}

func TestOneFileTwiceBlamedThisProcess(t *testing.T) {
	dir := folder(t)
	a := image(t, dir, "a.img", 4096)
	expect(t, 2, "serve "+a+" "+a, a+" is given twice, as the disks a and a-2: give it once")
	expect(t, 2, "serve --create 1M "+dir+"/n.img driver=raw,file.filename="+dir+"/n.img", "n.img is given twice")
	p := launch(t, nil, "--read-only", "--listen", "unix:"+dir+"/s", a, a)
	p.ready()
	expect(t, 1, "serve "+a, "a.img: is in use: ", "--locking off (option locking=off) opens it all the same")
}

func TestErrorsOfCreatingSaidTheNameTwice(t *testing.T) {
	dir := folder(t)
	code, _, errOut := run(t, "serve", "--create", "1M", dir+"/none/d.img")
	if want := "platter: " + dir + "/none/d.img: cannot be created: the folder " + dir + "/none does not exist: make it (mkdir -p), or check the path\n"; code != 1 || errOut != want {
		t.Errorf("%d: %q, want %q", code, errOut, want)
	}
	code, _, errOut = run(t, "serve", "--create", "900T", "--preallocation", "falloc", dir+"/d.img")
	if code != 1 || strings.Count(errOut, dir+"/d.img") != 1 {
		t.Errorf("%d: %q", code, errOut)
	}
	device := testutil.Loop(t, dir, 16<<20, 512)
	testutil.Run(t, "mkfs.ext4", "-q", device)
	mnt := dir + "/mnt"
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	testutil.Run(t, "mount", device, mnt)
	t.Cleanup(func() { testutil.Run(t, "umount", mnt) })
	expect(t, 1, "serve --create 64M --preallocation falloc "+mnt+"/d.img", "d.img: cannot be created: its file system has ", " free, and 64 MiB are wanted at once (preallocation=falloc)")
	if left, _ := filepath.Glob(mnt + "/*.img"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestFlagsOfQEMUNBDWereUnknown(t *testing.T) {
	expect(t, 2, "serve -p 10809 x", "there is no flag -p; what qemu-nbd means by it is here: --listen HOST:PORT")
	expect(t, 2, "serve --persistent x", "serve goes on when a client leaves")
	expect(t, 2, "serve -x name x", "--export name=NAME")
}

func TestMessagesOfLibrariesShowedThrough(t *testing.T) {
	dir := folder(t)
	expect(t, 2, "probe", "platter probe needs an argument: platter probe DISK")
	expect(t, 2, "probe a b", `"b" is one argument too many`)
	expect(t, 2, "serve --create", "--create needs a value: --create SIZE")
	expect(t, 2, "probe --time soon x", `--time: "soon" is not possible: write 250ms, 10s or 5m`)
	expect(t, 2, `serve json:{"driver":"raw",}`, "does not parse at byte 17")
	expect(t, 1, "serve --listen no-such-host.invalid:0 mem:1M", "the name no-such-host.invalid leads to no address")
	expect(t, 2, "serve --config "+dir, "it is a folder: name a file")
	expect(t, 2, "serve -l unix: mem:1M", `"unix:" lacks the socket's path`)
}

func TestAFileByItsNameAloneWasNoDriver(t *testing.T) {
	dir := folder(t)
	a := image(t, dir, "a.img", 8192)
	p := launch(t, nil, "--listen", "unix:"+dir+"/s", "--export", "foo", "driver=raw,offset=4096,file.filename="+a)
	r := p.ready()
	if d := r.Disks[0]; d.Size != 4096 || d.Exports[0].Name != "foo" || d.Name != "a" {
		t.Errorf("%+v", d)
	}
	expect(t, 1, "serve driver=raw,file="+a, "(for a file write file.filename="+a+")")
}

func TestMessagesNamedNodesThatNobodyNamed(t *testing.T) {
	a := image(t, folder(t), "a.img", 8192)
	code, _, errOut := run(t, "serve", "driver=raw,offset=1M,file.filename="+a)
	if code != 1 || strings.Contains(errOut, "#node") || !strings.Contains(errOut, "beyond the end of "+a+", which has 8192 bytes") {
		t.Errorf("%d: %s", code, errOut)
	}
}

func TestProbeTookPathsAlone(t *testing.T) {
	dir := folder(t)
	a := image(t, dir, "a.img", 8192)
	for _, form := range []string{"file://" + a, "file:" + a, "driver=raw,offset=4096,file.filename=" + a, "driver=file,filename=" + a + ",aio=threads"} {
		expect(t, 0, "probe --time 1ms "+form, a+": regular file")
	}
	expect(t, 2, "probe mem:1G", "there is no storage behind driver mem to ask")
	for size, name := range map[int]string{0: "empty.img", 100: "tiny.img"} {
		expect(t, 0, "probe "+image(t, dir, name, size), "limits", "not measured: the disk is too small to measure")
	}
}

// TestTmpfsHadTwoStories: what probe says of direct I/O is what serve does.
func TestTmpfsHadTwoStories(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "pl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	const story = "nothing to gain from direct I/O, the file is in memory (tmpfs)"
	expect(t, 0, "serve --check --create 1M "+image(t, dir, "a.img", 1<<20), "page cache: "+story)
	expect(t, 0, "probe --no-measure "+dir+"/a.img", "direct I/O: accepted, but cache=auto does without: "+story)
}

func TestAPlainClientOfATLSServerWasAWarning(t *testing.T) {
	certs := testutil.Certs(t)
	p := launch(t, nil, "--listen", "localhost:0", "--tls-cert", certs+"/server-cert.pem", "--tls-key", certs+"/server-key.pem", "mem:1M")
	uri := p.ready().Disks[0].Exports[0].URIs[0]
	if _, err := testutil.Try("nbdinfo", "nbd"+strings.TrimPrefix(uri, "nbds")); err == nil {
		t.Error("a plain client is let in")
	}
	p.logs(`level=INFO msg="client refused: this server requires TLS`)
	if strings.Contains(p.stderr(), "WARN") {
		t.Errorf("a warning:\n%s", p.stderr())
	}
}

func TestThereWasNoWayToLookFirst(t *testing.T) {
	dir := folder(t)
	a := image(t, dir, "a.img", 1<<20)
	expect(t, 0, "serve --check --create 1M "+a+" "+dir+"/new.img", a+": 1 MiB", "new.img: 1 MiB (1048576 bytes)\n  is not there: it would be made\n", "checked: 2 disks; nothing is served")
	if _, err := os.Stat(dir + "/new.img"); err == nil {
		t.Error("new.img was made")
	}
	expect(t, 2, "serve --dry-run --cache none mem:1M", "none of the disks has this option")
	p := launch(t, nil, "--listen", "unix:"+dir+"/s", a)
	p.ready()
	expect(t, 0, "serve --check "+a, "not opened: ", "is in use: ")
	expect(t, 0, "--version", "platter ")
}

func TestAFailingDiskFloodedTheLog(t *testing.T) {
	var text testutil.Output
	level := new(slog.LevelVar)
	log := slog.New(serve.GroupFailures(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: level}), 2*time.Second)) // far more than the lines below take
	for i := range 30 {
		args := []any{"export", "vm", "error", fmt.Errorf("read at %d: %w", i, syscall.EIO)}
		if i == 29 {
			args = append(args, "lines_left_out_before", 70)
		}
		log.Warn("request failed", args...)
	}
	log.Warn("request failed", "export", "vm", "error", fmt.Errorf("write: %w", syscall.ENOSPC))
	log.Warn("another matter")
	for deadline := time.Now().Add(testutil.StartTimeout); !strings.Contains(text.String(), "repeated=99"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no count:\n%s", text.String())
		}
	}
	if n := strings.Count(text.String(), "read at "); n != 2 || !strings.Contains(text.String(), "read at 0") || !strings.Contains(text.String(), "read at 29") {
		t.Errorf("%d lines about the same failure:\n%s", n, text.String())
	}
	if !strings.Contains(text.String(), "write: no space") || !strings.Contains(text.String(), "another matter") {
		t.Errorf("others are lost:\n%s", text.String())
	}
}

func TestCreatingOptionsCouldNotBeGiven(t *testing.T) {
	dir := folder(t)
	expect(t, 1, "serve --create 1M --create-options nocov=on "+dir+"/a.img", `driver file has no option "nocov"`)
	expect(t, 1, "serve --create 1M --create-options extent-size-hint=x "+dir+"/a.img", `"x" is not a size`)
	p := launch(t, nil, "--create", "1M", "--create-options", "extent-size-hint=4M,nocow=off", "--listen", "unix:"+dir+"/s", dir+"/a.img")
	if !p.ready().Disks[0].Created {
		t.Error("not made")
	}
}

func TestManualPagesHadNoValueNames(t *testing.T) {
	dir := folder(t)
	expect(t, 0, "man "+dir)
	page, err := os.ReadFile(dir + "/platter-serve.1")
	if err != nil || !strings.Contains(string(page), `\fB--cache\fP=MODE`) || !strings.Contains(string(page), `\fB--read-only\fP[=on]`) || !strings.Contains(string(page), `.TH "PLATTER-SERVE" "1"`) {
		t.Errorf("%v:\n%.3000s", err, page)
	}
	if left, _ := filepath.Glob(dir + "/*completion*"); len(left) > 0 {
		t.Errorf("pages of completion: %v", left)
	}
}

// TestHowToMakeCertificatesWasNowhere runs the commands of the page.
func TestHowToMakeCertificatesWasNowhere(t *testing.T) {
	page, err := os.ReadFile("../docs/tls.md")
	if err != nil {
		t.Fatal(err)
	}
	_, script, _ := strings.Cut(string(page), "```sh\n")
	script, _, _ = strings.Cut(script, "```")
	_, after, ok := strings.Cut(script, "\n")
	if !ok {
		t.Fatal("the page has no commands")
	}
	for _, key := range []string{"ec -pkeyopt ec_paramgen_curve:P-256", "rsa:3072"} {
		if !strings.Contains(script, key) {
			t.Errorf("the page lacks %s", key)
		}
		dir := folder(t)
		cmd := exec.Command("sh", "-ec", "KEY='"+key+"'\n"+after)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", key, err, out)
		}
		p := launch(t, func(c *exec.Cmd) { c.Dir = dir }, "--listen", "localhost:0", "--tls-cert", "server-cert.pem", "--tls-key", "server-key.pem",
			"--tls-ca", "ca-cert.pem", "--tls-verify-client", "mem:1M")
		r := p.ready()
		for _, line := range r.Disks[0].Exports[0].Commands[:2] {
			if out, err := exec.Command("sh", "-c", line).CombinedOutput(); err != nil || !strings.Contains(string(out), "1048576") {
				t.Errorf("%s: %s: %v\n%s", key, line, err, out)
			}
		}
		if last := r.Disks[0].Exports[0].Commands[3]; !strings.HasSuffix(last, " -x -A "+dir+"/ca-cert.pem -F "+dir+"/client-cert.pem -K "+dir+"/client-key.pem") {
			t.Errorf("the line of nbd-client: %s", last)
		}
		if !strings.Contains(r.Certificates, "client-key.pem") || !strings.HasSuffix(r.Certificates, " in "+dir) {
			t.Errorf("where certificates go: %s", r.Certificates)
		}
	}
}

// TestWaysReadAsDirectIO: the word for "neither copied nor padded" is no other's,
// and each way is explained.
func TestWaysReadAsDirectIO(t *testing.T) {
	page, err := os.ReadFile("../docs/serve.md")
	if err != nil {
		t.Fatal(err)
	}
	for i := range block.NumPaths {
		name := block.PathName(i)
		if name == "direct" || !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/serve.md does not explain %s", name)
		}
	}
}
