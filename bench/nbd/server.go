package main

import (
	"github.com/platter-storage/platter/bench/process"
)

// server is a process that this program started.
type server struct {
	*process.Process
	note   string // how it differs from its neighbours
	export string
	unlike bool // see command
}

// command is how to start a server.
type command struct {
	args   []string
	socket string
	export string // "" is the default one
	// pidFile: the process started forks, writes the server's id here, and
	// leaves.
	pidFile string
	// unlike: it does not do what the disk's name says, so it is shown and
	// not compared with.
	unlike bool
}

// start runs a server and waits until its socket answers.
func start(name, note string, c command) (*server, error) {
	p, err := process.Start(name, process.Command{Args: c.args, Socket: c.socket, PidFile: c.pidFile})
	if err != nil {
		return nil, err
	}
	return &server{Process: p, note: note, export: c.export, unlike: c.unlike}, nil
}

// uri is the server's export for other programs.
func (s *server) uri() string { return "nbd+unix:///" + s.export + "?socket=" + s.Socket }
