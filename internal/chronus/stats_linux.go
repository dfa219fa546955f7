package chronus

import (
	"encoding/json"
	"errors"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
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
		Goroutines: runtime.NumGoroutine(), FDs: countFDs(), HeapBytes: mem.HeapAlloc, SysBytes: mem.Sys, GCs: mem.NumGC,
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

// countFDs counts open descriptors without /proc, which a shard can't see: poll says which of many aren't open.
func countFDs() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return -1
	}
	open := 0
	batch := make([]unix.PollFd, 1024)
	for first := 0; first < int(limit.Cur); first += len(batch) {
		n := min(len(batch), int(limit.Cur)-first)
		for i := range n {
			batch[i] = unix.PollFd{Fd: int32(first + i)}
		}
		if _, err := unix.Poll(batch[:n], 0); err != nil {
			return -1
		}
		for i := range n {
			if batch[i].Revents&unix.POLLNVAL == 0 {
				open++
			}
		}
	}
	return open
}

// hooks are what tests do to a shard that was started for that.
type hooks struct {
	once sync.Once
	wg   sync.WaitGroup
	end  chan struct{}
	// mu guards end.
	mu sync.Mutex
}

// hook runs "gc" (collect once), "gc.loop" (collect without pause for the milliseconds in the body), "fds" (no more than so
// many descriptors) and "crash".
func (s *Shard) hook(open *aether.Open) error {
	if !s.opts.TestHooks {
		return api.Errorf(api.CodeNotImplemented, "no method %q", open.Method)
	}
	switch open.Method {
	case "gc":
		runtime.GC()
	case "gc.loop":
		d, err := time.ParseDuration(string(open.Body))
		if err != nil {
			return api.Errorf(api.CodeInvalid, "duration: %v", err)
		}
		end := s.hooks.channel()
		s.hooks.wg.Go(func() {
			for until := time.Now().Add(d); time.Now().Before(until); {
				select {
				case <-end:
					return
				default:
					runtime.GC()
				}
			}
		})
	case "fds":
		var limit unix.Rlimit
		err := errors.Join(unix.Getrlimit(unix.RLIMIT_NOFILE, &limit), json.Unmarshal(open.Body, &limit.Cur))
		limit.Cur = min(limit.Cur, limit.Max)
		return errors.Join(err, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	case "crash":
		os.Exit(3) //nolint:forbidigo // what the hook is for
	}
	return nil
}

func (h *hooks) channel() chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.end == nil {
		h.end = make(chan struct{})
	}
	return h.end
}

func (h *hooks) stop() {
	h.once.Do(func() { close(h.channel()) })
	h.wg.Wait()
}
