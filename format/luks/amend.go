package luks

import (
	"errors"
	"syscall"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/internal/luks"
)

var amendOptions = []block.Option{
	{Name: "state", Type: block.OptEnum, Enum: []string{"active", "inactive"}, Required: true, Help: "active adds a password, inactive removes one"},
	{Name: "new-password-file", Type: block.OptString, Help: "the password to add"},
	{Name: "old-password-file", Type: block.OptString, Help: "the password to remove, from every slot that it opens"},
	{Name: "keyslot", Type: block.OptInt, Help: "the slot, 0 to 7, rather than the first that is free, or those of the old password"},
	{Name: "iter-time", Type: block.OptInt, Default: "2000", Help: "milliseconds that trying the new password takes on this machine"},
}

// amend adds or removes a password. A power cut leaves the image with it or
// without it.
func (n *node) amend(rq *block.Req, vals block.Values, _ block.Progress) error {
	o, err := (&block.Driver{Name: "luks", Options: amendOptions}).Check(vals)
	if err != nil {
		return err
	}
	if s := o.Int("keyslot"); o.Has("keyslot") && (s < 0 || s >= luks.Slots) {
		return block.Errorf(syscall.EINVAL, "keyslot=%d: there are slots 0 to %d", s, luks.Slots-1)
	}
	if o.String("state") == "active" {
		return n.addPassword(rq, o)
	}
	return n.removePassword(rq, o)
}

func (n *node) addPassword(rq *block.Req, o *block.Options) error {
	if o.Has("old-password-file") || !o.Has("new-password-file") {
		return block.Errorf(syscall.EINVAL, "state=active needs new-password-file, and takes no old-password-file")
	}
	slot := -1
	for i, s := range n.header.Slots {
		if !s.Active && (!o.Has("keyslot") || int(o.Int("keyslot")) == i) {
			slot = i
			break
		}
	}
	if slot < 0 {
		return block.Errorf(syscall.EBUSY, "the key slot is in use, or all of them are: remove a password first")
	}
	password, err := readPassword(o.String("new-password-file"))
	if err != nil {
		return err
	}
	h := *n.header
	iterations, err := iterationsFor(n.env, o.Int("iter-time"), h.Hash, int(h.KeyBytes))
	if err != nil {
		return err
	}
	if err := h.Seal(slot, n.writer(rq), n.key, password, iterations); err != nil {
		return err
	}
	if err := n.file.Flush(rq); err != nil {
		return err
	}
	return n.commit(rq, &h)
}

func (n *node) removePassword(rq *block.Req, o *block.Options) error {
	if o.Has("new-password-file") || o.Has("keyslot") == o.Has("old-password-file") {
		return block.Errorf(syscall.EINVAL, "state=inactive needs either keyslot or old-password-file, and takes no new-password-file")
	}
	var gone []int
	h := *n.header
	if o.Has("keyslot") {
		gone = []int{int(o.Int("keyslot"))}
		if !h.Slots[gone[0]].Active {
			return nil // as it is wanted
		}
		h.Slots[gone[0]].Active = false
	} else {
		password, err := readPassword(o.String("old-password-file"))
		if err != nil {
			return err
		}
		read := func(off int64, b []byte) error { return n.file.Preadv(rq, off, block.Vec{b}, 0) }
		for {
			_, slot, err := h.Unlock(rq.Context(), read, password)
			if errors.Is(err, luks.ErrPassword) && len(gone) > 0 {
				break
			}
			if err != nil {
				return err
			}
			h.Slots[slot].Active = false
			gone = append(gone, slot)
		}
	}
	if !h.AnyActive() {
		return block.Errorf(syscall.EPERM, "that is the last password: without it the disk is lost; add another one first")
	}
	if err := n.commit(rq, &h); err != nil {
		return err
	}
	for _, slot := range gone {
		if err := h.Erase(slot, n.writer(rq)); err != nil {
			return err
		}
	}
	return n.file.Flush(rq)
}

func (n *node) writer(rq *block.Req) luks.WriteAt {
	return func(off int64, b []byte) error { return n.file.Pwritev(rq, off, block.Vec{b}, 0) }
}

// commit makes h the image's header.
func (n *node) commit(rq *block.Req, h *luks.Header) error {
	if err := n.writer(rq)(0, h.Bytes()); err != nil {
		return err
	}
	if err := n.file.Flush(rq); err != nil {
		return err
	}
	n.header = h
	return nil
}
