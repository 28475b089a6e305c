package block

import (
	"errors"
	"syscall"
	"testing"
)

// The error of a flush that several share is not the object of the request that
// ran it, which goes on to fail in other ways.
func TestSharedFlushErrorLasts(t *testing.T) {
	rq := Req{failure: Error{Op: OpFlush, Node: "disk", Err: syscall.ENOSPC}}
	shared := lasting(&rq.failure)
	said := shared.Error()
	rq.failure = Error{Op: OpRead, Node: "other", Err: syscall.EIO}
	if shared.Error() != said || !errors.Is(shared, syscall.ENOSPC) {
		t.Errorf("%v, want %s", shared, said)
	}
	if lasting(nil) != nil || lasting(errFlushLost) != errFlushLost {
		t.Error("an error that is nobody's was changed")
	}
}
