package virtio

import "fmt"

// A Rule is what a driver did that it must not do.
type Rule uint8

// The rules that Pop checks.
const (
	RuleNone          Rule = iota
	RuleAvailIndex         // the available index is further ahead than the ring is long
	RuleHead               // a head that is no descriptor of the table
	RuleOutstanding        // more chains or descriptors out than the ring has, or a head that is on record as in flight
	RuleNext               // a next that is no descriptor of the table
	RuleLoop               // a chain longer than its table, or than MaxSegs
	RuleIndirect           // an indirect descriptor without the feature, within a table, or in the middle of a chain
	RuleTable              // an indirect table that is empty, not of whole descriptors, or not in guest memory
	RuleNoStatus           // the chain is wrong, and there is no writable byte to say so in
	RuleOrder              // a readable descriptor after a writable one
	RuleAddress            // bytes that are not in guest memory
	RuleSegments           // more than MaxSegs pieces of memory
	RuleLength             // more than 2^32 bytes
	RuleRecordedChain      // an in-flight record of a chain that cannot be
)

var rules = [...]struct{ text, section string }{
	RuleNone:          {"nothing", ""},
	RuleAvailIndex:    {"the available index is further ahead than the ring is long", "2.7.13.3"},
	RuleHead:          {"the available ring names a descriptor beyond the table", "2.7.6"},
	RuleOutstanding:   {"more is on offer than the ring can hold", "2.7.13"},
	RuleNext:          {"the chain goes on beyond the table", "2.7.5"},
	RuleLoop:          {fmt.Sprintf("the chain is longer than its table or than %d descriptors", MaxSegs), "2.7.5.2"},
	RuleIndirect:      {"an indirect descriptor where none may be", "2.7.5.3.1"},
	RuleTable:         {"an indirect table that is empty, not of whole descriptors, or outside guest memory", "2.7.5.3"},
	RuleNoStatus:      {"the chain is wrong and has no byte in guest memory to say so in", "2.7.5"},
	RuleOrder:         {"a readable descriptor after a writable one", "2.7.4.2"},
	RuleAddress:       {"a buffer outside guest memory", "2.7.5"},
	RuleSegments:      {fmt.Sprintf("the chain lies in more than %d pieces of memory", MaxSegs), "2.7.4.1"},
	RuleLength:        {"the chain has more than 2^32 bytes", "2.7.5.2"},
	RuleRecordedChain: {"the in-flight record describes a chain that cannot be", "2.8.6"},
}

func (r Rule) String() string {
	if int(r) < len(rules) {
		return rules[r].text
	}
	return fmt.Sprintf("rule %d", r)
}

// An Error is a chain that breaks the rules.
//
// If it is not Fatal the ring goes on: the Chain has its Handle, its Out is
// empty and its In holds the last writable piece, whose last byte is where a
// block request has its status (Chain.StatusByte): say so there and push it back,
// with nothing written for certain.
//
// If it is Fatal the ring cannot be understood any further, or nobody can be
// told: a chain given back without a status might look like a success. Pop
// answers the same error from then on. The device needs a reset.
type Error struct {
	Rule  Rule
	Fatal bool
	Index uint16 // the descriptor, in its table; or the value that was wrong
	Addr  uint64 // what the descriptor points at, if it was about that
	Len   uint32
}

func (e *Error) Error() string {
	what := rules[RuleNone]
	if int(e.Rule) < len(rules) {
		what = rules[e.Rule]
	}
	where := fmt.Sprintf("virtqueue: %s (virtio 1.2, %s): descriptor or index %d", what.text, what.section, e.Index)
	if e.Len != 0 {
		where += fmt.Sprintf(", %d bytes at guest address %#x", e.Len, e.Addr)
	}
	if e.Fatal {
		return where + ": the queue stops until the driver resets the device"
	}
	return where + ": this request fails, the queue goes on"
}
