package rlbench

import (
	"syscall"
	"time"
)

// threadTime returns the processor time of the calling thread.
func threadTime() (used time.Duration, known bool) {
	const rusageThread = 1
	var u syscall.Rusage
	if err := syscall.Getrusage(rusageThread, &u); err != nil {
		return 0, false
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), true
}
