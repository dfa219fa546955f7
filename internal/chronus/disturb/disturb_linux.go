// Package disturb is what a test can do to a shard that was started for that. In all others it does nothing.
package disturb

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

// Hooks are what tests do to a shard that was started for that.
type Hooks struct {
	On bool // else every method is unknown

	once sync.Once
	wg   sync.WaitGroup
	end  chan struct{}
	// mu guards end.
	mu sync.Mutex
}

// Run runs "gc" (collect once), "gc.loop" (collect without pause for the milliseconds in the body), "fds" (no more than so
// many descriptors) and "crash".
func (h *Hooks) Run(open *aether.Open) error {
	if !h.On {
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
		end := h.channel()
		h.wg.Go(func() {
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

func (h *Hooks) channel() chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.end == nil {
		h.end = make(chan struct{})
	}
	return h.end
}

// Stop ends what was begun, and waits.
func (h *Hooks) Stop() {
	h.once.Do(func() { close(h.channel()) })
	h.wg.Wait()
}
