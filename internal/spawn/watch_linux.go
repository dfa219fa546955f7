package spawn

import (
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// Watch ends children that don't come to their exec or exit. The inner child is inside the sandbox for a moment, where
// the tenant's root may stop it by guessing its number; a stopped one is killed within a tick, because nothing of ours
// ever stops it. Anything else may just be slow on a loaded machine and gets Limit. One Watch serves any number of runs.
type Watch struct {
	Tick  time.Duration // default 20 ms
	Limit time.Duration // default 5 s

	Stopped atomic.Int64 // children killed because they were stopped
	Expired atomic.Int64 // runs that reached Limit

	// mu guards what follows. While a run is in active under mu, neither of its children has been waited for by the caller,
	// so their numbers can't belong to anybody else; see linger.phase for the runs that wait themselves.
	mu     sync.Mutex
	active []*watchState
	timer  *time.Timer // one for all runs: to set it wakes the thread that waits for the network
	armed  bool
}

const (
	defaultTick  = 20 * time.Millisecond
	defaultLimit = 5 * time.Second
)

func (w *Watch) tick() time.Duration {
	if w.Tick > 0 {
		return w.Tick
	}
	return defaultTick
}

func (w *Watch) limit() time.Duration {
	if w.Limit > 0 {
		return w.Limit
	}
	return defaultLimit
}

// watchState is what the watchdog knows of one run.
type watchState struct {
	at      int // its place in active
	b       *block
	started time.Time
	expired bool
}

func (w *Watch) start(ws *watchState, b *block) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	ws.at, ws.b, ws.started, ws.expired = len(w.active), b, time.Now(), false
	w.active = append(w.active, ws)
	if w.armed {
		return
	}
	w.armed = true
	if w.timer == nil {
		w.timer = time.AfterFunc(w.tick(), w.onTick)
		return
	}
	w.timer.Reset(w.tick())
}

func (w *Watch) stop(ws *watchState) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(w.active) - 1
	last := w.active[n]
	w.active[ws.at], last.at = last, ws.at
	w.active[n] = nil
	w.active = w.active[:n]
	ws.b = nil
}

// onTick looks at the children of all runs, and again a tick later while there are any.
func (w *Watch) onTick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ws := range w.active {
		phase := &ws.b.after.phase
		if atomic.CompareAndSwapInt32(phase, phaseBirth, phaseWatched) {
			w.look(ws)
			atomic.StoreInt32(phase, phaseBirth)
		}
	}
	if w.armed = len(w.active) > 0; w.armed {
		w.timer.Reset(w.tick())
	}
}

// look looks at one run. The inner child is always killed first; the outer one's turn comes a tick later.
func (w *Watch) look(ws *watchState) {
	inner, outer := atomic.LoadInt32(&ws.b.childTID), atomic.LoadInt32(&ws.b.outerTID)
	switch {
	case ws.expired:
		kill(outer)
	case inner > 0 && stopped(inner) && atomic.LoadInt32(&ws.b.unborn) != 0: // in this order: what is stopped comes to no exec
		w.Stopped.Add(1)
		kill(inner)
	case time.Since(ws.started) >= w.limit():
		w.Expired.Add(1)
		ws.expired = true
		kill(inner)
		if inner == 0 {
			kill(outer)
		}
	}
}

func kill(pid int32) {
	if pid > 0 {
		_ = syscall.Kill(int(pid), syscall.SIGKILL) // gone already: what we want
	}
}

// stopped asks for a pending stop report without taking it. Only our own children can be asked; for others it says no.
func stopped(pid int32) bool {
	const (
		pPID     = 1
		wStopped = 2
		wNoHang  = 1
		wNoWait  = 0x01000000
	)
	var info [128]byte // siginfo_t
	_, _, e := syscall.RawSyscall6(syscall.SYS_WAITID, pPID, uintptr(pid), uintptr(unsafe.Pointer(&info)), wStopped|wNoHang|wNoWait, 0, 0)
	return e == 0 && *(*int32)(unsafe.Pointer(&info)) != 0
}
