package luks

import (
	"strings"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/luks"
)

// slotFact is a key slot as a description shows it.
type slotFact struct {
	Active    bool   `json:"active"`
	Iters     uint32 `json:"iters,omitempty"`
	Stripes   uint32 `json:"stripes,omitempty"`
	KeyOffset int64  `json:"key-offset"`
}

// describe is the ability Describe.
func (n *node) describe(*block.Req) (block.Description, error) {
	h := n.header
	chain, iv, _ := strings.Cut(h.Mode, "-")
	generator, ivHash, _ := strings.Cut(iv, ":")
	var slots []slotFact
	for _, s := range h.Slots {
		f := slotFact{Active: s.Active, KeyOffset: int64(s.Offset) * luks.SectorSize}
		if s.Active {
			f.Iters, f.Stripes = s.Iterations, s.Stripes
		}
		slots = append(slots, f)
	}
	d := block.Description{Encrypted: true}
	add := func(name string, x any) { d.Fields = append(d.Fields, block.Field{Name: name, Value: x}) }
	add("cipher-alg", cipherName(h, chain))
	add("cipher-mode", chain)
	add("ivgen-alg", generator)
	if ivHash != "" {
		add("ivgen-hash-alg", ivHash)
	}
	add("hash-alg", h.Hash)
	add("payload-offset", n.payload)
	add("master-key-iters", h.DigestIterations)
	add("uuid", h.UUID)
	add("detached-header", false)
	add("slots", slots)
	return d, nil
}

// cipherName is that of the options of creating.
func cipherName(h *luks.Header, chain string) string {
	size := int(h.KeyBytes)
	if chain == "xts" {
		size /= 2
	}
	for name, n := range keyBytes {
		if n == size {
			return name
		}
	}
	return h.Cipher
}
