package lint

import (
	"go/ast"
	"path"
	"regexp"
	"strings"
)

// mayCallSystem lists the folders where system calls are made by hand, and
// why there. Tests may make them anywhere: they mount, and they look.
var mayCallSystem = []struct{ folder, why string }{
	{"internal/sys", "the one place for calls that several parts need"},
	{"engine", "hands requests to the kernel"},
	{"export", "speaks to guests and to the kernel's block layers"},
	{"protocol", "reaches storage"},
	{"serve", "sandbox, privileges and descriptors passed by a service manager"},
	{"cmd", "sets up the process before anything else runs"},
	{"internal/testutil", "loop devices and mounts for tests"},
	{"bench", "compares with bare system calls, and reads what the kernel counts"},
	{"test", "starts and ends whole programs, mounts what they serve"},
}

// plainSyscall matches what package syscall has that is only a name for
// something: error numbers, signals, the interface of a connection.
var plainSyscall = regexp.MustCompile(`^(Errno|E[A-Z0-9]+|Signal|SIG[A-Z0-9]+|Conn|RawConn)$`)

// Unsafe keeps package unsafe in files that say so.
func Unsafe(f *File) []Finding {
	if strings.Contains(path.Base(f.Path), "_unsafe") {
		return nil
	}
	var out []Finding
	for _, spec := range f.AST.Imports {
		if importPath(spec) == "unsafe" {
			out = append(out, f.finding(spec.Pos(), "imports unsafe: only files named *_unsafe.go do (also *_unsafe_linux.go and the like), so that they can be read with more care"))
		}
	}
	return out
}

// Syscalls keeps system calls in the folders that are for them.
func Syscalls(f *File) []Finding {
	if f.Test() {
		return nil
	}
	for _, m := range mayCallSystem {
		if underAny(f.Dir(), m.folder) {
			return nil
		}
	}
	const advice = "system calls belong in internal/sys, engine, export or protocol: put the call into internal/sys"
	var out []Finding
	for _, spec := range f.AST.Imports {
		if p := importPath(spec); underAny(p, "golang.org/x/sys") {
			out = append(out, f.finding(spec.Pos(), "imports %s: %s", p, advice))
		}
	}
	f.uses(func(sel *ast.SelectorExpr, pkg string) {
		if pkg == "syscall" && !plainSyscall.MatchString(sel.Sel.Name) {
			out = append(out, f.finding(sel.Pos(), "uses syscall.%s: %s", sel.Sel.Name, advice))
		}
	})
	return out
}
