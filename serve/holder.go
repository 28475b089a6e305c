package serve

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Processes are named as far as /proc tells: a message is better with the
// holder's name, and is not held up where it cannot be known.

// maxCommand bounds how much of a command line a message shows.
const maxCommand = 80

// describeProcess names a process for messages: its id and command line.
func describeProcess(pid int) string {
	cmd, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil || len(cmd) == 0 {
		return fmt.Sprintf("process %d", pid)
	}
	s := strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, strings.TrimRight(string(cmd), "\x00"))
	if len(s) > maxCommand {
		s = s[:maxCommand] + "…"
	}
	return fmt.Sprintf("process %d (%s)", pid, s)
}

// portHolder names who listens on a TCP port, or is empty.
func portHolder(port int) string {
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		inode := ""
		eachLine(table, func(f []string) bool {
			// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
			if len(f) > 9 && f[3] == "0A" && localPort(f[1]) == port {
				inode = f[9]
			}
			return inode == ""
		})
		if pid := socketOwner(inode); pid != 0 {
			return describeProcess(pid)
		}
	}
	return ""
}

// localPort reads ADDRESS:PORT, both in hexadecimal.
func localPort(s string) int {
	_, port, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(port)
	if err != nil || len(b) != 2 {
		return -1
	}
	return int(b[0])<<8 | int(b[1])
}

// eachLine splits a table of /proc into fields until f returns false.
func eachLine(table string, f func(fields []string) bool) {
	file, err := os.Open(table)
	if err != nil {
		return
	}
	defer file.Close()
	for sc := bufio.NewScanner(file); sc.Scan(); {
		if !f(strings.Fields(sc.Text())) {
			return
		}
	}
}

// socketOwner is a process that has the socket of this inode open, or 0.
func socketOwner(inode string) int {
	if inode == "" || inode == "0" {
		return 0
	}
	want := "socket:[" + inode + "]"
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == want {
			pid, _ := strconv.Atoi(strings.Split(fd, "/")[2])
			return pid
		}
	}
	return 0
}

// socketState is what stands at the path of a Unix socket.
type socketState int

const (
	socketFree  socketState = iota // nothing
	socketStale                    // a socket that nobody listens on any more
	socketLive                     // somebody listens
)

// acceptsConnections is the flag __SO_ACCEPTCON in /proc/net/unix.
const acceptsConnections = "00010000"

// lookAtSocket says what stands at path, and who listens there. The kernel's
// table is asked first, because a connection made only to see whether somebody
// answers could be taken for a client; it decides where the table, which shows
// one network name space, has nothing.
func lookAtSocket(path string) (state socketState, holder string, err error) {
	st, err := os.Lstat(path)
	switch {
	case os.IsNotExist(err):
		return socketFree, "", nil
	case err != nil:
		return socketFree, "", err
	case st.Mode()&os.ModeSocket == 0:
		return socketFree, "", fmt.Errorf("%s is there already and is no socket: choose another path, or remove it", path)
	}
	eachLine("/proc/net/unix", func(f []string) bool {
		// Num RefCount Protocol Flags Type St Inode Path
		if len(f) > 7 && f[3] == acceptsConnections && strings.Join(f[7:], " ") == path {
			state = socketLive
			if pid := socketOwner(f[6]); pid != 0 {
				holder = describeProcess(pid)
			}
		}
		return state != socketLive
	})
	if state == socketLive {
		return state, holder, nil
	}
	return knock(path)
}

// knock connects to the socket to see whether somebody listens.
func knock(path string) (socketState, string, error) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		if slices.Contains([]error{unix.ECONNREFUSED, unix.ENOENT}, rootCause(err)) {
			return socketStale, "", nil
		}
		return socketLive, "", nil // full, or not ours to connect to: leave it alone
	}
	defer conn.Close()
	return socketLive, peerOf(conn), nil
}

// peerOf names the process that listens at the other end.
func peerOf(conn net.Conn) string {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return ""
	}
	holder := ""
	err = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil && cred.Pid > 0 {
			holder = describeProcess(int(cred.Pid))
		}
	})
	if err != nil {
		return ""
	}
	return holder
}
