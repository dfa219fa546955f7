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

// watchState is the watchdog of one Script. Its timer is made once and reset for each run.
type watchState struct {
	// mu guards the fields below. While active is true under mu, neither child has been waited for by the caller, so
	// their numbers can't belong to anybody else.
	mu      sync.Mutex
	active  bool
	w       *Watch
	b       *block
	started time.Time
	expired bool
	timer   *time.Timer
}

func (ws *watchState) start(w *Watch, b *block) {
	if w == nil {
		return
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.active, ws.w, ws.b, ws.expired = true, w, b, false
	ws.started = time.Now()
	if ws.timer == nil {
		ws.timer = time.AfterFunc(w.tick(), ws.onTick)
		return
	}
	ws.timer.Reset(w.tick())
}

func (ws *watchState) stop() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if !ws.active {
		return
	}
	ws.active = false
	ws.timer.Stop()
}

// onTick looks at the children. The inner one is always killed first; the outer one's turn comes a tick later.
func (ws *watchState) onTick() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if !ws.active {
		return
	}
	inner, outer := atomic.LoadInt32(&ws.b.childTID), atomic.LoadInt32(&ws.b.outerTID)
	switch {
	case ws.expired:
		kill(outer)
	case inner > 0 && stopped(inner):
		ws.w.Stopped.Add(1)
		kill(inner)
	case time.Since(ws.started) >= ws.w.limit():
		ws.w.Expired.Add(1)
		ws.expired = true
		kill(inner)
		if inner == 0 {
			kill(outer)
		}
	}
	ws.timer.Reset(ws.w.tick())
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
