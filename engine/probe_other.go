//go:build !linux

package engine

func probe() Report {
	var r Report
	r.Uring.Why = "only Linux has io_uring"
	r.Native.Why = "only Linux has Linux AIO"
	r.Threads = EngineReport{true, threadsWork}
	return r
}
