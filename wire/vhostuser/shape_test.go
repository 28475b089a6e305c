package vhostuser

import (
	"strings"
	"testing"
)

// fake is a message with n descriptors that are none.
func fake(r Request, fl Flags, size, n int) *Message {
	m := &Message{Request: r, Flags: fl, Payload: make([]byte, size)}
	m.Fds.n = n
	return m
}

func TestCheck(t *testing.T) {
	const all = ^Protocol(0)
	cases := []struct {
		name    string
		m       *Message
		inForce Protocol
		want    string // part of the error; empty: it passes
	}{
		{"good", fake(SetFeatures, Version, 8, 0), 0, ""},
		{"good with need_reply", fake(SetFeatures, Version|FlagNeedReply, 8, 0), all, ""},
		{"short", fake(SetFeatures, Version, 7, 0), all, "the payload has 7 bytes, not 8"},
		{"long", fake(SetFeatures, Version, 9, 0), all, "the payload has 9 bytes, not 8"},
		{"version", fake(SetFeatures, 2, 8, 0), all, "version 2"},
		{"no version", fake(SetFeatures, 0, 8, 0), all, "version 0"},
		{"reply", fake(SetFeatures, Version|FlagReply, 8, 0), all, "marked as a reply"},
		{"descriptors that it has not", fake(SetFeatures, Version, 8, 1), all, "carries 1 descriptors, not 0"},
		{"without its descriptor", fake(AddMemReg, Version, 40, 0), all, "carries 0 descriptors, not 1"},
		{"two descriptors", fake(AddMemReg, Version, 40, 2), all, "carries 2 descriptors, not 1"},
		{"feature that is not in force", fake(AddMemReg, Version, 40, 1), all &^ ProtocolConfigureMemSlots, "CONFIGURE_MEM_SLOTS has not been negotiated"},
		{"largest table", fake(SetMemTable, Version, 8+8*32, 8), 0, ""},
		{"table too large", fake(SetMemTable, Version, 8+9*32, 8), 0, "the payload has 296 bytes, not 8 to 264"},
		{"inflight, packed", fake(SetInflightFd, Version, 20, 1), all, ""},
		{"inflight, padded", fake(SetInflightFd, Version, 24, 1), all, ""},
		{"unknown", fake(Request(99), Version, 0, 0), all, "request 99: the message is not known here"},
		{"known to the document only", fake(NetSetMTU, Version, 8, 0), all, "NET_SET_MTU: the message is not known here"},
		{"zero", fake(0, Version, 0, 0), all, "not known"},
	}
	for _, c := range cases {
		err := c.m.Check(c.inForce)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestTableAndItsDescriptors(t *testing.T) {
	for _, c := range []struct {
		regions, fds, cut int
		want              string
	}{
		{1, 1, 0, ""}, {0, 0, 0, ""}, {8, 8, 0, ""},
		{2, 1, 0, "1 descriptors for 2 regions"},
		{2, 2, 32, "2 regions in a payload of 40 bytes"},
		{9, 8, 0, "9 regions, more than 8"},
	} {
		b := AppendMemTable(nil, make([]Region, c.regions))
		m := fake(SetMemTable, Version, 0, c.fds)
		m.Payload = b[:len(b)-c.cut]
		got, err := m.MemTable(nil)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
		if err == nil && len(got) != c.regions {
			t.Errorf("%+v: %d regions", c, len(got))
		}
	}
}

func TestConfigBounds(t *testing.T) {
	for _, c := range []struct {
		off, n uint32
		size   int
		good   bool
	}{
		{0, 256, 268, true}, {255, 1, 13, true}, {256, 0, 12, true},
		{0, 257, 269, false}, {256, 1, 13, false}, {0, 8, 19, false}, {0, 8, 21, false},
		{1<<32 - 1, 1, 13, false}, {0, 1<<32 - 1, 12, false},
	} {
		m := fake(GetConfig, Version, c.size, 0)
		order.PutUint32(m.Payload, c.off)
		order.PutUint32(m.Payload[4:], c.n)
		if _, err := m.Config(); (err == nil) != c.good {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestNames(t *testing.T) {
	for r := Request(1); r < numRequests; r++ {
		if strings.HasPrefix(r.String(), "request") {
			t.Errorf("%v has no name", r)
		}
	}
	if s := numRequests.String(); s != "request 45" {
		t.Errorf("%q", s)
	}
	if s := (ProtocolMQ | ProtocolStatus | 1<<40).String(); s != "MQ STATUS bit 40" {
		t.Errorf("%q", s)
	}
	if s := BackendConfigChange.String() + ", " + BackendRequest(77).String(); s != "BACKEND_CONFIG_CHANGE_MSG, back-end request 77" {
		t.Errorf("%q", s)
	}
}
