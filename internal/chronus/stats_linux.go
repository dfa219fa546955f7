package chronus

import (
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/internal/chronus/launch"
)

// stats is the answer of method "stats".
type stats struct {
	Goroutines int    `json:"goroutines"`
	FDs        int    `json:"fds"`
	Boxes      int    `json:"boxes"`
	Processes  int    `json:"processes"`
	Sessions   int    `json:"sessions"`
	HeapBytes  uint64 `json:"heap_bytes"`
	SysBytes   uint64 `json:"sys_bytes"`
	PeakRSS    int64  `json:"peak_rss_bytes"`
	GCs        uint32 `json:"gcs"`
	Stopped    int64  `json:"stopped_helpers"` // killed by the watchdog because a tenant had stopped them
	Expired    int64  `json:"expired_helpers"`
}

func (s *Shard) stats() stats {
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	st := stats{
		Goroutines: runtime.NumGoroutine(), FDs: launch.CountFDs(), HeapBytes: mem.HeapAlloc, SysBytes: mem.Sys, GCs: mem.NumGC,
	}
	st.Stopped, st.Expired = s.launcher.Killed()
	var usage unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &usage) == nil {
		st.PeakRSS = usage.Maxrss << 10
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Boxes = len(s.boxes)
	for _, b := range s.boxes {
		b.mu.Lock()
		st.Processes += len(b.procs)
		st.Sessions += len(b.sessions)
		b.mu.Unlock()
	}
	return st
}
