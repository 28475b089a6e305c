package guest

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxLibraries bounds the closure of a program.
const maxLibraries = 256

// userland finds programs and their libraries: first among the packages that
// were unpacked for the guest, then on this machine.
type userland struct {
	roots []string
}

var (
	programDirs = []string{"usr/sbin", "usr/bin", "sbin", "bin"}
	libraryDirs = []string{"lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "lib64", "usr/lib64", "lib", "usr/lib"}
)

// install puts a program into bin, with all libraries that it is linked to.
func (u userland) install(a *archive, name string) error {
	from, err := u.find(programDirs, name)
	if err != nil {
		return fmt.Errorf("%w: scripts/deps.sh installs what the guest takes from this machine", err)
	}
	if err := copyIn(a, "bin/"+name, from, 0o755); err != nil {
		return err
	}
	return u.libraries(a, from)
}

// libraries puts what an ELF file needs where the dynamic linker looks first.
func (u userland) libraries(a *archive, program string) error {
	seen := make(map[string]bool)
	for queue := []string{program}; len(queue) > 0; queue = queue[1:] {
		needed, interpreter, extra, err := linked(queue[0])
		if err != nil {
			return err
		}
		if interpreter != "" {
			from, err := u.find([]string{filepath.Dir(interpreter)}, filepath.Base(interpreter))
			if err != nil {
				return err
			}
			if err := copyIn(a, interpreter, from, 0o755); err != nil {
				return err
			}
		}
		for _, lib := range needed {
			if seen[lib] {
				continue
			}
			if seen[lib] = true; len(seen) > maxLibraries {
				return fmt.Errorf("%s needs more than %d libraries", program, maxLibraries)
			}
			from, err := u.find(append(slices.Clone(extra), libraryDirs...), lib)
			if err != nil {
				return fmt.Errorf("%s needs it: %w", queue[0], err)
			}
			if err := copyIn(a, libraryDirs[0]+"/"+lib, from, 0o755); err != nil {
				return err
			}
			queue = append(queue, from)
		}
	}
	return nil
}

// linked says which libraries an ELF file names, its dynamic linker and its
// own library folders, both relative to a root.
func linked(path string) (needed []string, interpreter string, extra []string, err error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, "", nil, err
	}
	defer f.Close()
	if f.Section(".dynamic") == nil {
		return nil, "", nil, nil // static
	}
	if needed, err = f.ImportedLibraries(); err != nil {
		return nil, "", nil, fmt.Errorf("%s: %w", path, err)
	}
	if s := f.Section(".interp"); s != nil {
		text, err := s.Data()
		if err != nil {
			return nil, "", nil, fmt.Errorf("%s: %w", path, err)
		}
		interpreter = strings.Trim(string(text), "/\x00")
	}
	for _, tag := range []elf.DynTag{elf.DT_RUNPATH, elf.DT_RPATH} {
		list, err := f.DynString(tag)
		if err != nil {
			continue // most files have none
		}
		for _, dir := range strings.Split(strings.Join(list, ":"), ":") {
			extra = append(extra, strings.TrimPrefix(dir, "/"))
		}
	}
	return needed, interpreter, extra, nil
}

// find looks for a file in folders of each root.
func (u userland) find(dirs []string, name string) (string, error) {
	for _, root := range u.roots {
		for _, dir := range dirs {
			path := filepath.Join(root, dir, name)
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("%s is in none of %s", name, strings.Join(dirs, ", "))
}

func copyIn(a *archive, name, from string, mode os.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	a.file(name, mode, data)
	return nil
}
