package guest

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxModules bounds the closure of the modules that were asked for.
const maxModules = 256

// module is a kernel module, unpacked, with what its .modinfo says.
type module struct {
	name    string
	data    []byte
	depends []string
	aliases []string
}

// modules are those of one kernel, below lib/modules/VERSION.
type modules struct {
	version string
	paths   map[string]string // by name, as written by the kernel, with _
	builtin []byte            // the kernel's own list of what it has without a module
}

func findModules(root string) (*modules, error) {
	found, err := filepath.Glob(filepath.Join(root, "*", "kernel"))
	if err != nil || len(found) != 1 {
		return nil, fmt.Errorf("%s: want one kernel's modules, found %d", root, len(found))
	}
	dir := filepath.Dir(found[0])
	m := &modules{version: filepath.Base(dir), paths: make(map[string]string)}
	if m.builtin, err = os.ReadFile(filepath.Join(dir, "modules.builtin")); err != nil {
		return nil, err
	}
	err = filepath.WalkDir(found[0], func(p string, d fs.DirEntry, err error) error {
		if name, _, ok := strings.Cut(d.Name(), ".ko"); ok && err == nil && !d.IsDir() {
			m.paths[kernelName(name)] = p
		}
		return err
	})
	return m, err
}

// kernelName is a module's name as the kernel writes it.
func kernelName(name string) string { return strings.ReplaceAll(name, "-", "_") }

// has reports whether the kernel has it, as a module or without one.
func (m *modules) has(name string) bool {
	name = kernelName(name)
	return m.paths[name] != "" || strings.Contains(kernelName(string(m.builtin)), "/"+name+".ko\n")
}

// closure is names and all that they depend on, each after what it needs,
// without what is built in.
func (m *modules) closure(names ...string) ([]*module, error) {
	var out []*module
	seen := make(map[string]bool)
	var visit func(name string) error
	visit = func(name string) error {
		name = kernelName(name)
		if seen[name] || m.paths[name] == "" {
			return nil
		}
		if len(seen) == maxModules {
			return errors.New("more modules than a guest should need")
		}
		seen[name] = true
		mod, err := m.read(name)
		if err != nil {
			return err
		}
		for _, d := range mod.depends {
			if err := visit(d); err != nil {
				return err
			}
		}
		out = append(out, mod)
		return nil
	}
	for _, name := range names {
		if !m.has(name) {
			return nil, fmt.Errorf("kernel %s has no %s", m.version, name)
		}
		if err := visit(name); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (m *modules) read(name string) (*module, error) {
	path := m.paths[name]
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if data, err = unpack(data); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	mod := &module{name: name, data: data}
	return mod, mod.info(path)
}

// info reads the .modinfo section: strings of key=value, each ended by a zero.
func (mod *module) info(path string) error {
	f, err := elf.NewFile(bytes.NewReader(mod.data))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	section := f.Section(".modinfo")
	if section == nil {
		return fmt.Errorf("%s: no .modinfo section: not a module", path)
	}
	text, err := section.Data()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, line := range strings.Split(string(text), "\x00") {
		key, value, _ := strings.Cut(line, "=")
		switch key {
		case "depends":
			mod.depends = append(mod.depends, split(value, ",")...)
		case "softdep":
			value = strings.NewReplacer("pre:", " ", "post:", " ").Replace(value)
			mod.depends = append(mod.depends, split(value, " ")...)
		case "alias":
			mod.aliases = append(mod.aliases, value)
		}
	}
	return nil
}

func split(s, by string) []string {
	return slices.DeleteFunc(strings.Split(s, by), func(s string) bool { return s == "" })
}

// install puts modules into an archive with the indexes that busybox's
// modprobe reads, which is what the kernel calls for a module it misses.
func (m *modules) install(a *archive, mods []*module) {
	dir := "lib/modules/" + m.version + "/"
	needs := make(map[string][]string) // a module's whole closure, nearest first
	var deps, aliases strings.Builder
	for _, mod := range mods {
		a.file(dir+"kernel/"+mod.name+".ko", 0o644, mod.data)
		var all []string
		for _, d := range mod.depends {
			d = kernelName(d)
			if _, here := needs[d]; here {
				all = append(all, append([]string{d}, needs[d]...)...)
			}
		}
		needs[mod.name] = dedup(all)
		fmt.Fprintf(&deps, "kernel/%s.ko:", mod.name)
		for _, d := range needs[mod.name] {
			fmt.Fprintf(&deps, " kernel/%s.ko", d)
		}
		deps.WriteString("\n")
		for _, alias := range mod.aliases {
			fmt.Fprintf(&aliases, "alias %s %s\n", alias, mod.name)
		}
	}
	a.text(dir+"modules.dep", deps.String())
	a.text(dir+"modules.alias", aliases.String())
	a.text(dir+"modules.builtin", string(m.builtin))
}

// dedup keeps the last of equal names: a list is loaded from its end.
func dedup(names []string) []string {
	var out []string
	for i, name := range names {
		if !slices.Contains(names[i+1:], name) {
			out = append(out, name)
		}
	}
	return out
}
