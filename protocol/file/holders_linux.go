package file

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The kernel does not say who holds a lock of an open file description. What
// each process has open, and which locks lie on it, stands in /proc.

// maxHolders bounds how many holders a message names.
const maxHolders = 4

// holdersText names the processes that hold locks in our bytes of the file
// that is open as fd. known is the process that the kernel named, or 0.
func holdersText(fd, known int) string { return listHolders(lockHolders(fd, known)) }

// lockHolders are those processes, and how many others may not be examined.
func lockHolders(fd, known int) (names []string, hidden int) {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return []string{"another program"}, 0
	}
	same := func(s *unix.Stat_t) bool { return s.Dev == st.Dev && s.Ino == st.Ino }
	names, hidden = openers("/proc", same, holdsOurBytes, fd)
	if known > 0 && !slices.ContainsFunc(names, func(n string) bool { return strings.Contains(n, fmt.Sprintf("(pid %d,", known)) }) {
		names = append(names, processText("/proc", known))
	}
	return names, hidden
}

func listHolders(names []string, hidden int) string {
	if len(names) > maxHolders {
		names = append(names[:maxHolders], fmt.Sprintf("%d more", len(names)-maxHolders))
	}
	switch {
	case len(names) > 0:
		return strings.Join(names, " and ")
	case hidden > 0:
		return fmt.Sprintf("an unknown program (%d processes of other users may not be examined; root may)", hidden)
	}
	return "an unknown program (on another machine, or out of our sight in a container)"
}

// openers names the processes below proc that have a file open of which same
// holds and in whose fdinfo holds finds what it looks for. hidden counts those
// that may not be examined. own is our descriptor, which does not count.
func openers(proc string, same func(*unix.Stat_t) bool, holds func(fdinfo string) bool, own int) (names []string, hidden int) {
	dirs, _ := filepath.Glob(proc + "/[0-9]*")
	for _, dir := range dirs {
		fds, err := os.ReadDir(dir + "/fd")
		if os.IsPermission(err) {
			hidden++
		}
		pid, _ := strconv.Atoi(filepath.Base(dir))
		for _, e := range fds {
			var st unix.Stat_t
			if unix.Stat(dir+"/fd/"+e.Name(), &st) != nil || !same(&st) || pid == os.Getpid() && e.Name() == strconv.Itoa(own) {
				continue
			}
			text, err := os.ReadFile(dir + "/fdinfo/" + e.Name())
			if err == nil && holds(string(text)) {
				names = append(names, processText(proc, pid))
				break
			}
		}
	}
	return names, hidden
}

// holdsOurBytes looks for a lock on one of the bytes that lock_linux.go uses,
// in lines like "lock: 1: OFDLCK ADVISORY READ -1 fe:00:1234 100 101".
func holdsOurBytes(fdinfo string) bool {
	for line := range strings.Lines(fdinfo) {
		f := strings.Fields(line)
		if len(f) < 9 || f[0] != "lock:" || f[2] != "OFDLCK" && f[2] != "POSIX" {
			continue
		}
		from, err1 := strconv.ParseInt(f[len(f)-2], 10, 64)
		to, err2 := strconv.ParseInt(f[len(f)-1], 10, 64)
		if f[len(f)-1] == "EOF" {
			to, err2 = 1<<62, nil
		}
		if err1 == nil && err2 == nil && from < lockRefuses+numPerms && to >= lockUses {
			return true
		}
	}
	return false
}

// processText is a process for people: command, number, start.
func processText(proc string, pid int) string {
	dir := fmt.Sprintf("%s/%d", proc, pid)
	name := "a process"
	if comm, err := os.ReadFile(dir + "/comm"); err == nil {
		name = strings.TrimSpace(string(comm))
	}
	if pid == os.Getpid() {
		name += ", this very process"
	}
	if t, ok := startTime(proc, pid); ok {
		return fmt.Sprintf("%s (pid %d, since %s)", name, pid, t.Format("2006-01-02 15:04:05"))
	}
	return fmt.Sprintf("%s (pid %d, start unknown)", name, pid)
}

// clockTicks is USER_HZ, which is 100 on every Linux that programs see.
const clockTicks = 100

// startTime is when a process began: field 22 of its stat, in ticks since the
// system was started.
func startTime(proc string, pid int) (time.Time, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("%s/%d/stat", proc, pid))
	if err != nil {
		return time.Time{}, false
	}
	// The command, in brackets, may have spaces and brackets of its own.
	rest := string(stat[strings.LastIndexByte(string(stat), ')')+1:])
	f := strings.Fields(rest)
	const afterCommand = 22 - 3
	if len(f) <= afterCommand {
		return time.Time{}, false
	}
	ticks, err := strconv.ParseInt(f[afterCommand], 10, 64)
	boot, ok := bootTime(proc)
	if err != nil || !ok {
		return time.Time{}, false
	}
	return time.Unix(boot+ticks/clockTicks, 0), true
}

// bootTime is btime of /proc/stat, in seconds since 1970.
func bootTime(proc string) (int64, bool) {
	f, err := os.Open(proc + "/stat")
	if err != nil {
		return 0, false
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if rest, ok := strings.CutPrefix(sc.Text(), "btime "); ok {
			n, err := strconv.ParseInt(rest, 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// busyText says who has claimed the block device at path.
func busyText(path string) string {
	uses, names, hidden := deviceUses(path)
	if len(uses) == 0 {
		uses = append(uses, listHolders(names, hidden)+" has claimed it (or a partition of it is mounted)")
	}
	return strings.Join(uses, ", ") + ": end that use, or open it read-only (--read-only); --locking off (option locking=off) opens it all the same, at the risk of its content"
}

// deviceUses says what a device is used for by the kernel and, where it is for
// nothing, which processes have it open.
func deviceUses(path string) (uses, names []string, hidden int) {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return []string{"it is in use"}, nil, 0
	}
	dev := fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	for _, m := range mountsOf("/proc/self/mountinfo", dev) {
		uses = append(uses, "it is mounted at "+m)
	}
	held, _ := filepath.Glob("/sys/dev/block/" + dev + "/holders/*")
	for _, h := range held {
		uses = append(uses, "it is a part of "+filepath.Base(h))
	}
	if len(uses) == 0 {
		same := func(s *unix.Stat_t) bool { return s.Mode&unix.S_IFMT == unix.S_IFBLK && s.Rdev == st.Rdev }
		names, hidden = openers("/proc", same, func(string) bool { return true }, -1)
	}
	return uses, names, hidden
}

// mountsOf lists where device dev, "major:minor", is mounted.
func mountsOf(mountinfo, dev string) []string {
	text, err := os.ReadFile(mountinfo)
	if err != nil {
		return nil
	}
	var at []string
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 && f[2] == dev {
			at = append(at, f[4])
		}
	}
	return at
}
