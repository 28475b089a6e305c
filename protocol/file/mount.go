package file

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/platter-storage/platter/block"
)

// Mount is what the kernel says of the NFS mount that a file lies on.
type Mount struct {
	// Version is "3" or "4.2".
	Version string `json:"version"`
	// ReadSize and WriteSize are the most bytes of one request (rsize, wsize).
	ReadSize  int64 `json:"read_size"`
	WriteSize int64 `json:"write_size"`
	// Soft mounts answer an error when the server is away for long; others
	// wait for it.
	Soft bool `json:"soft"`
	// Connections to the server (nconnect).
	Connections int `json:"connections"`
}

const (
	maxMountInfo   = 16 << 20 // of /proc/self/mountinfo that is read
	maxNFSTransfer = 64 << 20 // beyond that a size is not believed
)

// findMount looks for the NFS mount of device "major:minor" in text of the form
// of /proc/self/mountinfo (proc(5)). Of several the last counts, which lies on top.
func findMount(text, device string) (m Mount, ok bool) {
	for line := range strings.Lines(text) {
		before, after, found := strings.Cut(line, " - ")
		fields, super := strings.Fields(before), strings.Fields(after)
		if !found || len(fields) < 6 || len(super) < 3 || fields[2] != device {
			continue
		}
		if super[0] == "nfs" || super[0] == "nfs4" {
			m, ok = parseNFS(super[2]), true
		}
	}
	return m, ok
}

// parseNFS reads the options of an NFS mount, as nfs(5) has them.
func parseNFS(options string) Mount {
	m := Mount{Connections: 1}
	for o := range strings.SplitSeq(options, ",") {
		name, value, _ := strings.Cut(o, "=")
		n, err := strconv.ParseInt(value, 10, 32)
		good := err == nil && n > 0 && n <= maxNFSTransfer
		switch {
		case name == "vers":
			m.Version = value
		case name == "soft" || name == "softerr":
			m.Soft = true
		case name == "rsize" && good:
			m.ReadSize = n
		case name == "wsize" && good:
			m.WriteSize = n
		case name == "nconnect" && good:
			m.Connections = int(n)
		}
	}
	return m
}

// String is the mount in words.
func (m *Mount) String() string {
	away := "waits for a server that is away (hard)"
	if m.Soft {
		away = "gives up on a server that is away, with an error (soft): writes may be lost"
	}
	plural := "connection"
	if m.Connections != 1 {
		plural = "connections"
	}
	return fmt.Sprintf("NFS %s, requests of at most %s read and %s written, %d %s (nconnect), %s",
		m.Version, block.FormatSize(m.ReadSize), block.FormatSize(m.WriteSize), m.Connections, plural, away)
}

// lineModes are the values of the option linearise.
var lineModes = map[string]block.LineariseMode{"auto": block.LineariseAuto, "always": block.LineariseAlways, "never": block.LineariseNever}

// linearise sets up the decision how requests of several pieces go. The page
// cache takes them as they are, and so does memory.
func (n *node) linearise(res *resolution) {
	if !n.direct || res.fs.memory {
		return
	}
	c := block.LineariseConfig{Mode: lineModes[n.cfg.linearise], Name: n.cfg.path, Log: n.cfg.log, Whole: res.onDevice}
	if m := n.sys.place().mount; m != nil {
		n.reasons = append(n.reasons, "mount: "+m.String())
		c.MaxRead, c.MaxWrite = m.ReadSize, m.WriteSize
	}
	n.info.Linearise = block.NewLineariser(c)
}

// lookAtMount has everything learnt anew where the file is reached in another
// way than before. A mount's options change by remounting.
func (n *node) lookAtMount() {
	l := n.info.Linearise
	if l == nil {
		return
	}
	var read, write int64
	if m := n.sys.place().mount; m != nil {
		read, write = m.ReadSize, m.WriteSize
	}
	if r, w := l.Sizes(); r != read || w != write {
		l.Reset(read, write)
		n.env.Log.Info("the mount's transfer sizes have changed: what is linearised is decided anew", "file", n.cfg.path, "rsize", read, "wsize", write)
	}
}

// maxExplained classes are told to people.
const maxExplained = 16

// explainLinearise says what was decided about requests of several pieces.
func (n *node) explainLinearise() []string {
	l := n.info.Linearise
	if l == nil {
		return nil
	}
	switch l.Mode() {
	case block.LineariseAlways:
		return []string{"linearise: every request of several pieces goes through one buffer (linearise=always)"}
	case block.LineariseNever:
		return []string{"linearise: requests of several pieces go as they are (linearise=never)"}
	}
	lines := []string{"linearise: requests of several pieces go through one buffer where that is measured to be faster (linearise=auto)"}
	for _, x := range l.Classes() {
		if len(lines) > maxExplained {
			break
		}
		lines = append(lines, "  "+x.String())
	}
	return lines
}
