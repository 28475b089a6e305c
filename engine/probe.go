package engine

import "sync"

// Report says which engines work here.
type Report struct {
	Uring   UringReport  `json:"io_uring"`
	Native  NativeReport `json:"native"`
	Threads EngineReport `json:"threads"`
}

// EngineReport is one engine's verdict.
type EngineReport struct {
	Usable bool `json:"usable"`
	// Why is a sentence: what the engine has, or why it does not work and what
	// to do about it.
	Why string `json:"why"`
}

// UringReport adds what the kernel says of io_uring.
type UringReport struct {
	EngineReport
	Errno      int      `json:"errno,omitempty"`    // of io_uring_setup
	Disabled   string   `json:"disabled,omitempty"` // sysctl kernel.io_uring_disabled
	Features   uint32   `json:"features,omitempty"` // IORING_FEAT_ bits
	Setup      []string `json:"setup,omitempty"`    // optional abilities of a locked owner's ring
	Operations int      `json:"operations,omitempty"`
}

// NativeReport adds what the kernel says of Linux AIO.
type NativeReport struct {
	EngineReport
	Errno  int    `json:"errno,omitempty"`      // of io_setup
	MaxNr  string `json:"aio_max_nr,omitempty"` // sysctl fs.aio-max-nr
	UsedNr string `json:"aio_nr,omitempty"`     // sysctl fs.aio-nr
}

// Probe tries each engine, once in the life of the process.
var Probe = sync.OnceValue(probe)

const threadsWork = "worker threads with blocking calls work everywhere"
