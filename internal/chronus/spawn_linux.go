package chronus

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/linux/cgroup"
	"github.com/dsec-io/dsec/internal/spawn"
)

// child is a command that has been started and not been waited for.
type child struct {
	pid    int
	inside int      // its number in the sandbox
	file   *os.File // pidfd, in the poller
	fd     int      // its number, for the keeper
}

// spawn starts c, or says why it provably didn't start. The caller closes the descriptors it gave.
func (s *Shard) spawn(w *work, c *command) (child, error) {
	frozen, err := s.dirs.Frozen(c.box.name)
	if err != nil {
		return child{}, notStarted(c, "read the sandbox's freeze state", err)
	}
	if frozen {
		// A helper that joined a frozen group would stop there, and with it one thread of this shard.
		return child{}, api.Errorf(api.CodeFrozen, "the sandbox is paused")
	}
	err = s.dirs.MakeExec(c.box.name, c.group)
	if errors.Is(err, unix.EEXIST) {
		// An earlier command of that name has left processes.
		c.group += "-" + strings.ToLower(rand.Text())
		err = s.dirs.MakeExec(c.box.name, c.group)
	}
	if err != nil {
		return child{}, notStarted(c, "make the command's cgroup", err)
	}
	ch, err := s.spawnInto(w, c)
	if err != nil {
		// A helper or command that failed has been reaped, so the group is empty.
		if rmErr := s.dirs.RemoveExec(c.box.name, c.group); rmErr != nil {
			c.box.leave(c.group)
		}
	}
	return ch, err
}

func (s *Shard) spawnInto(w *work, c *command) (child, error) {
	into, err := s.dirs.OpenExec(c.box.name, c.group)
	if err != nil {
		return child{}, notStarted(c, "open the command's cgroup", err)
	}
	defer func() { _ = unix.Close(into) }()
	w.procs, err = s.dirs.OpenProcs(w.procs[:0], c.box.name)
	if err != nil {
		return child{}, notStarted(c, "open the sandbox's cgroups", err)
	}
	defer func() {
		for _, fd := range w.procs {
			_ = unix.Close(fd)
		}
		w.procs = w.procs[:0]
	}()
	slot, err := s.slots.fill(c.fds[:])
	if err != nil {
		return child{}, notStarted(c, "pass the descriptors", err)
	}
	s.launcher.build(w, c, slot)
	out, err := spawn.Run(spawn.Attr{Flags: unix.CLONE_FILES, Cgroup: into, Watch: &s.watch}, &w.h)
	s.slots.empty(slot, c.fds[:])
	if errors.Is(err, unix.EAGAIN) {
		return child{}, tooManyProcesses()
	}
	if err != nil {
		return child{}, notStarted(c, "clone the helper", err)
	}
	_, _ = spawn.Wait(out.PID)
	return s.born(w, c, &out)
}

// born sorts out what a run has left.
func (s *Shard) born(w *work, c *command, out *spawn.Outcome) (child, error) {
	fail := func(err error) (child, error) {
		if out.ChildTID > 0 {
			_ = unix.Kill(out.ChildTID, unix.SIGKILL)
			_, _ = spawn.Wait(out.ChildTID)
		}
		return child{}, err
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
	return child{pid: out.ChildTID, inside: int(w.pid.Result()), file: os.NewFile(uintptr(fd), "pidfd"), fd: fd}, nil
}

// notStarted is an infrastructure failure before anything ran.
func notStarted(c *command, doing string, err error) *api.Error {
	if errors.Is(err, unix.ENOENT) && c.box.dead() || errors.Is(err, unix.ENODEV) {
		return api.Errorf(api.CodeSandboxDied, "the sandbox has ended")
	}
	if errors.Is(err, cgroup.ErrName) {
		return api.Errorf(api.CodeInvalid, "%v", err)
	}
	return api.Errorf(api.CodeNotStarted, "%s", fmt.Errorf("%s: %w", doing, err))
}
