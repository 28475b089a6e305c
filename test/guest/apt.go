package guest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// keyring is where Debian keeps its archive's keys. Where it is missing, apt
// falls back on the keys that the machine trusts anyway.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// apt is a package client with a state of its own below dir: it downloads
// packages of one suite and installs nothing, and the machine's own state is
// neither read nor changed. Proxies and the like in the machine's apt
// configuration apply.
type apt struct {
	ctx  context.Context
	dir  string
	conf string
}

// source is where this machine gets its own packages from.
type source struct {
	site  string
	suite string
}

// machineSource asks apt for it, so that both forms of source lists, and
// mirrors, are understood.
func machineSource(ctx context.Context) (source, error) {
	suite, err := codename()
	if err != nil {
		return source{}, err
	}
	out, err := output(ctx, "apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)", "Created-By: Packages")
	if err != nil {
		return source{}, fmt.Errorf("asking apt for this machine's sources: %w", err)
	}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 3 && f[1] == suite && f[2] == "main" {
			return source{site: f[0], suite: suite}, nil
		}
	}
	return source{}, fmt.Errorf("no source of %s/main is configured in apt: the guest's kernel is a package of it", suite)
}

// codename is Debian's name of this release.
func codename() (string, error) {
	const path = "/etc/os-release"
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "VERSION_CODENAME="); ok {
			return strings.Trim(value, `"`), nil
		}
	}
	return "", fmt.Errorf("%s: no VERSION_CODENAME: guests are made of Debian's packages", path)
}

// newApt makes the state and fetches the index of one suite.
func newApt(ctx context.Context, dir, site, suite string) (*apt, error) {
	a := &apt{ctx: ctx, dir: dir, conf: filepath.Join(dir, "apt.conf")}
	for _, sub := range []string{"lists/partial", "cache/archives/partial", "debs"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	options := "arch=amd64 lang=none target=Packages"
	if _, err := os.Stat(keyring); err == nil {
		options += " signed-by=" + keyring
	}
	list := fmt.Sprintf("deb [%s] %s %s main\n", options, site, suite)
	err := writeAll(map[string]string{
		a.conf:                             a.config(),
		filepath.Join(dir, "sources.list"): list,
		filepath.Join(dir, "status"):       "",
	})
	if err != nil {
		return nil, err
	}
	if _, err = a.run("update", "--error-on=any"); err != nil {
		return nil, fmt.Errorf("fetching the index of %s: %w", suite, err)
	}
	return a, nil
}

// config keeps all state below the folder, and the machine's hooks out.
func (a *apt) config() string {
	var s strings.Builder
	for _, kv := range [][2]string{
		{"Dir::Etc::sourcelist", a.dir + "/sources.list"},
		{"Dir::Etc::sourceparts", "/dev/null"},
		{"Dir::Etc::preferences", "/dev/null"},
		{"Dir::Etc::preferencesparts", "/dev/null"},
		{"Dir::State::lists", a.dir + "/lists"},
		{"Dir::State::status", a.dir + "/status"},
		{"Dir::State::extended_states", a.dir + "/extended"},
		{"Dir::Cache", a.dir + "/cache"},
		{"APT::Architecture", "amd64"},
		{"APT::Sandbox::User", "root"},
		{"Acquire::Retries", "3"},
	} {
		fmt.Fprintf(&s, "%s %q;\n", kv[0], kv[1])
	}
	return s.String() + "#clear APT::Update::Post-Invoke;\n#clear APT::Update::Post-Invoke-Success;\n#clear DPkg::Post-Invoke;\n"
}

func (a *apt) run(args ...string) (string, error) {
	return output(a.ctx, "apt-get", append([]string{"-q", "-c", a.conf}, args...)...)
}

// closure downloads packages and everything that they depend on, and unpacks
// all of it into root.
func (a *apt) closure(root string, names ...string) error {
	if _, err := a.run(append([]string{"install", "-y", "--download-only", "--no-install-recommends"}, names...)...); err != nil {
		return fmt.Errorf("downloading %s: %w", strings.Join(names, " "), err)
	}
	return a.unpackAll(filepath.Join(a.dir, "cache/archives"), root)
}

// kernel downloads the newest kernel for virtual machines, by the package
// that depends on it, and unpacks it into root.
func (a *apt) kernel(root string) error {
	const meta = "linux-image-cloud-amd64"
	out, err := output(a.ctx, "apt-cache", "-c", a.conf, "depends", meta)
	if err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: ")
		if !ok || !strings.HasPrefix(name, "linux-image-") {
			continue
		}
		debs := filepath.Join(a.dir, "debs")
		if err := a.download(debs, name); err != nil {
			return err
		}
		return a.unpackAll(debs, root)
	}
	return fmt.Errorf("%s depends on no kernel", meta)
}

func (a *apt) download(into, name string) error {
	cmd := exec.CommandContext(a.ctx, "apt-get", "-q", "-c", a.conf, "download", name)
	cmd.Dir = into
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("downloading %s: %w\n%s", name, err, out)
	}
	return nil
}

// unpackAll unpacks the packages in a folder: it runs none of their scripts.
func (a *apt) unpackAll(debs, root string) error {
	found, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil || len(found) == 0 {
		return fmt.Errorf("%s: no package was downloaded", debs)
	}
	for _, deb := range found {
		if _, err := output(a.ctx, "dpkg-deb", "-x", deb, root); err != nil {
			return err
		}
	}
	return nil
}

func writeAll(files map[string]string) error {
	for name, content := range files {
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// output runs a command and returns what it prints; the error has what it
// complained about.
func output(ctx context.Context, name string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Env = append(cmd.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}
