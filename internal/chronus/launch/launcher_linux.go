package launch

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/linux/caps"
	"github.com/dsec-io/dsec/internal/linux/cgroup"
	"github.com/dsec-io/dsec/internal/linux/pidfd"
	"github.com/dsec-io/dsec/internal/linux/seccomp"
	"github.com/dsec-io/dsec/internal/spawn"
)

// Launcher starts commands and helpers in boxes.
type Launcher struct {
	dirs   cgroup.Dirs
	filter *seccomp.Program
	drop   []caps.Cap
	limits []rlimit
	cpus   unix.CPUSet // those that the shard may use
	slots  slots
	watch  spawn.Watch
	works  sync.Pool // *work
	rooms  rooms

	lingering atomic.Int32 // runs that wait for their command's end
}

type rlimit struct {
	resource uintptr
	cur, max uint64
}

// New makes a Launcher for the boxes below dirs.
func New(dirs cgroup.Dirs) (*Launcher, error) {
	filter, err := seccomp.Default()
	if err != nil {
		return nil, err
	}
	drop, err := caps.Drop()
	if err != nil {
		return nil, err
	}
	l := &Launcher{
		dirs: dirs, filter: filter, drop: drop, slots: newSlots(),
		works: sync.Pool{New: func() any { return new(work) }},
		rooms: rooms{dirs: dirs, all: make(map[string]*room)},
	}
	if err := unix.SchedGetaffinity(0, &l.cpus); err != nil {
		return nil, fmt.Errorf("read the shard's processors: %w", err)
	}
	// The soft limits are what programs expect; the hard ones can't be above the shard's.
	for _, r := range []struct {
		resource int
		soft     uint64
	}{
		{unix.RLIMIT_NOFILE, 1024}, {unix.RLIMIT_CORE, 0}, {unix.RLIMIT_STACK, 8 << 20},
	} {
		var own unix.Rlimit
		if err := unix.Getrlimit(r.resource, &own); err != nil {
			return nil, fmt.Errorf("read resource limit %d: %w", r.resource, err)
		}
		l.limits = append(l.limits, rlimit{uintptr(r.resource), min(r.soft, own.Max), own.Max})
	}
	return l, nil
}

// Killed tells how many children the watchdog has killed: those that a tenant had stopped, and those that took too long.
func (l *Launcher) Killed() (stopped, expired int64) {
	return l.watch.Stopped.Load(), l.watch.Expired.Load()
}

// Box is what a launcher has to know of a sandbox.
type Box struct {
	Name  string // of its cgroups
	PIDFD int    // of its init
	CPUs  int    // processors that a command is allowed to run on; 0: all
}

// Dead tells whether the sandbox's init has ended.
func (b Box) Dead() bool {
	ended, err := pidfd.Exited(b.PIDFD)
	return err != nil || ended
}

// Dying tells whether the sandbox's init is ending, or has ended. The kernel kills what is in a sandbox before it lets
// init's end be seen, and by then has taken init's namespaces away; of a sandbox that is killed as a whole a command may
// even end first, hence the short wait.
func (b Box) Dying() bool {
	const soon = 20 // milliseconds
	for range 2 {
		fd, err := pidfd.UserNS(b.PIDFD)
		if errors.Is(err, unix.ESRCH) {
			return true
		}
		if err == nil {
			_ = unix.Close(fd)
		}
		poll := []unix.PollFd{{Fd: int32(b.PIDFD), Events: unix.POLLIN}}
		if n, err := unix.Poll(poll, soon); n > 0 && err == nil {
			return true
		}
	}
	return false
}

// OpenInside opens files of the sandbox for reading, as its root, in a helper that has joined it: no path of a tenant's is
// ever walked outside. The descriptor of a file that can't be opened is -1.
func (l *Launcher) OpenInside(b Box, paths ...string) ([]int, error) {
	var h spawn.Script
	h.Call(unix.SYS_SETNS, uintptr(b.PIDFD), unix.CLONE_NEWUSER|unix.CLONE_NEWNS).As(stepEnter)
	becomeRoot(&h)
	const flags = unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY
	opens := make([]*spawn.Step, len(paths))
	for i, p := range paths {
		opens[i] = h.Call(unix.SYS_OPENAT, atFDCWD, h.String(p), flags).Ignore()
	}
	h.Exit()
	err := l.help(b, &h)
	fds := make([]int, len(paths))
	for i, st := range opens {
		fds[i] = received(st)
	}
	if err != nil {
		for _, fd := range fds {
			closeFD(fd)
		}
		return nil, err
	}
	return fds, nil
}

// received is the descriptor that a helper's step has made in this process, -1 if it hasn't.
func received(st *spawn.Step) int {
	if n := int(st.Result()); n >= LowFDs {
		return n
	}
	return -1
}

func closeFD(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

// becomeRoot takes the ids of the sandbox's root, which makes what follows subject to the sandbox's own permissions.
func becomeRoot(h *spawn.Script) {
	h.Call(unix.SYS_SETGROUPS, 0, 0).As(stepIDs)
	h.Call(unix.SYS_SETRESGID, 0, 0, 0).As(stepIDs)
	h.Call(unix.SYS_SETRESUID, 0, 0, 0).As(stepIDs)
}

// help runs a helper that shares this process's descriptors, so that what it opens is here afterwards.
func (l *Launcher) help(b Box, h *spawn.Script) error {
	out, err := spawn.Run(spawn.Attr{Flags: unix.CLONE_FILES, Cgroup: -1, Watch: &l.watch}, h)
	if err != nil {
		return api.Errorf(api.CodeNotStarted, "clone a helper: %v", err)
	}
	ws, _ := spawn.Wait(out.PID)
	switch {
	case out.Failed == nil && !ws.Signaled():
		return nil
	case b.Dead():
		return api.Errorf(api.CodeSandboxDied, "the sandbox's first process has ended")
	case out.Failed == nil:
		return api.Errorf(api.CodeNotStarted, "a helper in the sandbox was killed")
	default:
		return api.Errorf(api.CodeNotStarted, "a helper in the sandbox: %v", out.Failed)
	}
}
