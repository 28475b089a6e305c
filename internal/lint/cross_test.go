//go:build cross

package lint

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// everywhere lists what builds on macOS, Windows and FreeBSD too: the library
// and the image side. A part that does not exist yet is left out.
var everywhere = []string{
	".", "block/...", "graph/...", "engine/...", "protocol/...", "format/...", "filter/...", "job/...",
	"image/...", "wire/...", "virtio/...", "sim/...", "internal/...",
}

func TestBuildsOnArm64(t *testing.T) {
	cross(t, "linux", "arm64", []string{"./..."})
}

func TestLibraryBuildsElsewhere(t *testing.T) {
	packages, err := listPackages(repository(t).root)
	if err != nil {
		t.Fatal(err)
	}
	var library []string
	for _, p := range packages {
		if ours(p.ImportPath) && matchAny(everywhere, relative(p.ImportPath)) {
			library = append(library, p.ImportPath)
		}
	}
	for _, system := range []string{"darwin", "windows", "freebsd"} {
		t.Run(system, func(t *testing.T) { cross(t, system, "amd64", library) })
	}
}

// cross builds and vets packages for another system. Vet looks at the tests
// too; a package all of whose files are for Linux is left out.
func cross(t *testing.T, system, arch string, packages []string) {
	t.Helper()
	env := []string{"GOOS=" + system, "GOARCH=" + arch, "CGO_ENABLED=0"}
	cmd := exec.Command("go", append([]string{"list", "-e", "-f", "{{if .GoFiles}}{{.ImportPath}}{{end}}"}, packages...)...)
	cmd.Dir = repository(t).root
	cmd.Env = append(cmd.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list for %s: %v\n%s", system, err, stderr.String())
	}
	present := strings.Fields(string(out))
	if len(present) == 0 {
		t.Fatalf("no package has a file for %s/%s", system, arch)
	}
	runTool(t, env, "go", slices.Concat([]string{"build"}, present)...)
	runTool(t, env, "go", slices.Concat([]string{"vet"}, present)...)
}
