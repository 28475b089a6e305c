package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/platter-storage/platter/block"
	"github.com/platter-storage/platter/export/vhostuser"
	_ "github.com/platter-storage/platter/filter/all" // what a disk's name may say
	_ "github.com/platter-storage/platter/format/all"
	"github.com/platter-storage/platter/graph"
	"github.com/platter-storage/platter/internal/realenv"
	_ "github.com/platter-storage/platter/protocol/all"
	"github.com/platter-storage/platter/queue"
)

// clearing is what a request object cost that was made anew for each request: so
// many bytes are cleared when one is admitted. It is a limiter that lets all
// pass, so the server is the one that is measured elsewhere.
type clearing struct {
	pool sync.Pool
}

func newClearing(n int) *clearing {
	c := &clearing{}
	c.pool.New = func() any {
		b := make([]byte, n)
		return &b
	}
	return c
}

func (c *clearing) Admit(block.Op, int64, int64) int64 {
	b := c.pool.Get().(*[]byte)
	clear(*b)
	c.pool.Put(b)
	return 0
}

// serve is the program as a server of one disk, until it is told to end.
func (o *options) serveDisk() (err error) {
	env := realenv.New(slog.Default(), 0)
	defer func() { err = errors.Join(err, env.CloseBuffers()) }()
	g := graph.New(env)
	defer func() { err = errors.Join(err, g.Close()) }()
	d := graph.Disk{Name: o.serveName, Format: "raw", Protocol: block.Values{}}
	if block.DriverForURI(o.serveName) == nil {
		d.Protocol["cache"] = o.serveCache
	}
	in, err := g.Open(context.Background(), d, "", false)
	if err != nil {
		return err
	}
	child, err := in.NewChild("benchmark", block.RoleRoot, block.PermRead|block.PermWrite, block.PermAll)
	if err != nil {
		return err
	}
	defer child.Close()
	var limiter queue.Limiter = newClearing(o.serveClears)
	dev, err := vhostuser.New(vhostuser.Config{Name: "disk", Child: child, Env: env, Queues: 2, Limiter: limiter})
	if err != nil {
		return err
	}
	l, err := net.Listen("unix", o.serve)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- dev.Serve(l) }()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	<-stop
	err = dev.Shutdown(context.Background())
	if end := <-ended; !errors.Is(end, vhostuser.ErrClosed) {
		err = errors.Join(err, end)
	}
	return err
}
