package block_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/platter-storage/platter/block"
	bt "github.com/platter-storage/platter/block/blocktest"
)

// Exclusive keeps requests away while it runs, and only those may call it who
// hold the permission that it needs.
func TestExclusiveKeepsRequestsAway(t *testing.T) {
	env := bt.NewEnv(t)
	e := bt.NewEmulator(t, bt.EmulatorConfig{Size: 1 << 20})
	in := bt.Attach(t, env, e, "disk")
	c := bt.NewClient(t, bt.Edge(t, in))
	wrote := make(chan error, 1)
	err := c.Do(block.OpFlush, func(rq *block.Req) error {
		return c.Child.Exclusive(rq, block.PermWrite, func(a *block.Abilities) error {
			if a != &e.Info().Abilities {
				t.Error("the abilities are not the node's")
			}
			go func() { wrote <- c.Write(0, 0, make([]byte, 512)) }()
			if n := e.Count(block.OpWrite); n != 0 {
				t.Errorf("%d writes reached the node", n)
			}
			return syscall.ENOSPC
		})
	})
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("the function's error became %v", err)
	}
	if err := <-wrote; err != nil {
		t.Errorf("a write afterwards: %v", err)
	}
	reader, err := in.NewChild("reader", block.RoleRoot, block.PermRead, block.PermAll)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	err = c.Do(block.OpFlush, func(rq *block.Req) error {
		return reader.Exclusive(rq, block.PermWrite, func(*block.Abilities) error { return nil })
	})
	if !errors.Is(err, syscall.EPERM) {
		t.Errorf("a reader's change was answered %v", err)
	}
}
