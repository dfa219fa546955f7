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
	File   *os.File // pidfd, in the poller; nil: the command has ended, see Await
	FD     int      // its number, for the keeper
}

// Await puts the pidfd into the poller, where that hasn't been done.
func (c *Child) Await() {
	if c.File == nil && c.FD >= 0 {
		c.File = os.NewFile(uintptr(c.FD), "pidfd")
	}
}

// Close gives the pidfd back.
func (c *Child) Close() {
	if c.File != nil {
		_ = c.File.Close()
	} else if c.FD >= 0 {
		_ = unix.Close(c.FD)
		c.FD = -1
	}
}

// Spawn starts c, or says why it provably didn't start. The caller closes the descriptors it gave.
func (l *Launcher) Spawn(c *Command) (Child, error) {
	w := l.works.Get().(*work)
	defer l.works.Put(w)
	rm, err := l.rooms.enter(c.Box.Name)
	if err != nil {
		return Child{}, notStarted(c, "open the sandbox's cgroups", err)
	}
	defer l.rooms.leave(rm)
	frozen, err := rm.held.Frozen()
	if err != nil {
		return Child{}, notStarted(c, "read the sandbox's freeze state", err)
	}
	if frozen {
		// A helper that joined a frozen group would stop there, and with it one thread of this shard.
		return Child{}, api.Errorf(api.CodeFrozen, "the sandbox is paused")
	}
	c.OOMKills, _ = rm.held.OOMKills()
	into, done, err := l.group(rm, c)
	if err != nil {
		return Child{}, err
	}
	defer done()
	w.procs = rm.held.Procs()
	ch, err := l.spawnInto(w, c, into)
	w.procs = nil
	if err != nil {
		// A helper or command that failed has been reaped, so the group is empty.
		l.ungroup(c)
	}
	return ch, err
}

// makeGroup makes the group of a command.
func (l *Launcher) makeGroup(c *Command) error {
	err := l.dirs.MakeExec(c.Box.Name, c.Group)
	if errors.Is(err, unix.EEXIST) {
		// An earlier command of that name has left processes, or its group to others.
		c.Group += "-" + strings.ToLower(rand.Text())
		err = l.dirs.MakeExec(c.Box.Name, c.Group)
	}
	return err
}

// ungroup gives the group of a command back that hasn't started.
func (l *Launcher) ungroup(c *Command) {
	if err := l.Leave(c.Box.Name, c.Group, false); err != nil {
		c.Left = c.Group
	}
}

func (l *Launcher) spawnInto(w *work, c *Command, into int) (Child, error) {
	slot, err := l.slots.fill(c.FDs[:])
	if err != nil {
		return Child{}, notStarted(c, "pass the descriptors", err)
	}
	l.build(w, c, slot)
	linger := c.Linger
	if linger > 0 && l.lingering.Add(1) > maxLingering {
		l.lingering.Add(-1)
		linger = 0
	}
	out, err := spawn.Run(spawn.Attr{Flags: unix.CLONE_FILES, Cgroup: into, Watch: &l.watch, Linger: linger}, &w.h)
	if linger > 0 {
		l.lingering.Add(-1)
	}
	l.slots.empty(slot, c.FDs[:])
	if errors.Is(err, unix.EAGAIN) {
		return Child{}, tooManyProcesses()
	}
	if err != nil {
		return Child{}, notStarted(c, "clone the helper", err)
	}
	if linger == 0 {
		_, _ = spawn.Wait(out.PID)
	}
	return l.born(w, c, &out)
}

// maxLingering is how many threads may wait for short commands at a time: threads that the runtime has made stay.
const maxLingering = 16

// born sorts out what a run has left.
func (l *Launcher) born(w *work, c *Command, out *spawn.Outcome) (Child, error) {
	fail := func(err error) (Child, error) {
		closeFD(out.ChildFD)
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
	if out.ChildFD < 0 && out.FDErr == nil {
		// The number is C's own as long as nobody has waited for it.
		out.ChildFD, out.FDErr = unix.PidfdOpen(out.ChildTID, unix.PIDFD_NONBLOCK)
	}
	if out.FDErr != nil {
		return fail(api.Errorf(api.CodeNotStarted, "killed as it started: %v", out.FDErr))
	}
	ch := Child{PID: out.ChildTID, Inside: int(w.pid.Result()), FD: out.ChildFD}
	if !out.Ended {
		ch.Await()
	}
	return ch, nil
}
