package launch

import (
	"crypto/rand"
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/spawn"
)

// Child is a command that has been started and not been waited for.
type Child struct {
	PID    int
	Inside int      // its number in the sandbox
	File   *os.File // pidfd, in the poller
	FD     int      // its number, for the keeper
}

// Close gives the pidfd back.
func (c *Child) Close() {
	if c.File != nil {
		_ = c.File.Close()
	}
}

// Spawn starts c, or says why it provably didn't start. The caller closes the descriptors it gave.
func (l *Launcher) Spawn(c *Command) (Child, error) {
	w := l.works.Get().(*work)
	defer l.works.Put(w)
	frozen, err := l.dirs.Frozen(c.Box.Name)
	if err != nil {
		return Child{}, notStarted(c, "read the sandbox's freeze state", err)
	}
	if frozen {
		// A helper that joined a frozen group would stop there, and with it one thread of this shard.
		return Child{}, api.Errorf(api.CodeFrozen, "the sandbox is paused")
	}
	err = l.dirs.MakeExec(c.Box.Name, c.Group)
	if errors.Is(err, unix.EEXIST) {
		// An earlier command of that name has left processes.
		c.Group += "-" + strings.ToLower(rand.Text())
		err = l.dirs.MakeExec(c.Box.Name, c.Group)
	}
	if err != nil {
		return Child{}, notStarted(c, "make the command's cgroup", err)
	}
	ch, err := l.spawnInto(w, c)
	if err != nil {
		// A helper or command that failed has been reaped, so the group is empty.
		if rmErr := l.dirs.RemoveExec(c.Box.Name, c.Group); rmErr != nil {
			c.Left = c.Group
		}
	}
	return ch, err
}

func (l *Launcher) spawnInto(w *work, c *Command) (Child, error) {
	into, err := l.dirs.OpenExec(c.Box.Name, c.Group)
	if err != nil {
		return Child{}, notStarted(c, "open the command's cgroup", err)
	}
	defer func() { _ = unix.Close(into) }()
	w.procs, err = l.dirs.OpenProcs(w.procs[:0], c.Box.Name)
	if err != nil {
		return Child{}, notStarted(c, "open the sandbox's cgroups", err)
	}
	defer func() {
		for _, fd := range w.procs {
			_ = unix.Close(fd)
		}
		w.procs = w.procs[:0]
	}()
	slot, err := l.slots.fill(c.FDs[:])
	if err != nil {
		return Child{}, notStarted(c, "pass the descriptors", err)
	}
	l.build(w, c, slot)
	out, err := spawn.Run(spawn.Attr{Flags: unix.CLONE_FILES, Cgroup: into, Watch: &l.watch}, &w.h)
	l.slots.empty(slot, c.FDs[:])
	if errors.Is(err, unix.EAGAIN) {
		return Child{}, tooManyProcesses()
	}
	if err != nil {
		return Child{}, notStarted(c, "clone the helper", err)
	}
	_, _ = spawn.Wait(out.PID)
	return l.born(w, c, &out)
}

// born sorts out what a run has left.
func (l *Launcher) born(w *work, c *Command, out *spawn.Outcome) (Child, error) {
	fail := func(err error) (Child, error) {
		if out.ChildTID > 0 {
			_ = unix.Kill(out.ChildTID, unix.SIGKILL)
			_, _ = spawn.Wait(out.ChildTID)
		}
		return Child{}, err
	}
	if out.Failed != nil {
		return fail(stepError(c, out.Failed))
	}
	if out.ChildTID == 0 {
		return fail(api.Errorf(api.CodeNotStarted, "killed before it started: the sandbox is out of memory or being stopped"))
	}
	if err := w.execError(c); err != nil {
		return fail(err)
	}
	// The number is C's own as long as nobody has waited for it.
	fd, err := unix.PidfdOpen(out.ChildTID, unix.PIDFD_NONBLOCK)
	if err != nil {
		return fail(api.Errorf(api.CodeNotStarted, "killed as it started: open its pidfd: %v", err))
	}
	return Child{PID: out.ChildTID, Inside: int(w.pid.Result()), File: os.NewFile(uintptr(fd), "pidfd"), FD: fd}, nil
}
