package chronus

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/linux/caps"
	"github.com/dsec-io/dsec/internal/linux/seccomp"
	"github.com/dsec-io/dsec/internal/spawn"
)

// sandboxNamespaces is everything that a sandbox has of its own; the helper enters all of it in one call.
const sandboxNamespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// command is what a helper needs to know to bring one command to life.
type command struct {
	box       *box
	group     string // name of its cgroup in the box
	paths     []string
	argv, env [][]byte
	cwd       []byte
	cwdCreate bool
	who       *account
	fds       [slotSize]int // stdin, stdout, stderr, and one more; -1: /dev/null for the first three, nothing for the last
	extra     int           // number of the fourth descriptor in the command
	tty       bool          // stdin is a terminal to be the controlling one
}

// work is the memory of one exec, reused.
type work struct {
	h, c  spawn.Script
	procs []int
	tries []*spawn.Step // the execve attempts
	pid   *spawn.Step   // getpid in the command's own pid namespace
	paths []string
	out   [2][]byte
}

// launcher holds what is the same for every command of this shard.
type launcher struct {
	filter *seccomp.Program
	drop   []caps.Cap
	limits []rlimit
	cpus   unix.CPUSet // those that the shard may use
}

type rlimit struct {
	resource uintptr
	cur, max uint64
}

func newLauncher() (*launcher, error) {
	filter, err := seccomp.Default()
	if err != nil {
		return nil, err
	}
	drop, err := caps.Drop()
	if err != nil {
		return nil, err
	}
	l := &launcher{filter: filter, drop: drop}
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

// affinity is the set of n processors that a box's commands see, and false when that is no restriction. Which ones
// depends on the box, so that boxes spread over the machine.
func (l *launcher) affinity(name string, n int) (unix.CPUSet, bool) {
	have := l.cpus.Count()
	if n <= 0 || n >= have {
		return unix.CPUSet{}, false
	}
	start := 0
	for _, c := range []byte(name) {
		start = (start*31 + int(c)) % have
	}
	var set unix.CPUSet
	nth := 0
	for cpu := 0; nth < have; cpu++ {
		if !l.cpus.IsSet(cpu) {
			continue
		}
		if (nth-start+have)%have < n {
			set.Set(cpu)
		}
		nth++
	}
	return set, true
}

// Names of steps by which a failure is told apart.
const (
	stepJoin    = "join the cgroup"
	stepEnter   = "enter the sandbox"
	stepWorkdir = "enter the working directory"
	stepIDs     = "take the user's ids"
	stepClone   = "clone the command"
)

// build writes both scripts: the order is that of MECHANISMS §6.0, and each step is where it is for a reason given there.
func (l *launcher) build(w *work, c *command, slot int) {
	w.buildCommand(c)
	h := &w.h
	h.Reset()
	zero := h.String("0")
	for _, fd := range w.procs {
		// Before the ids change: v1 wants the writer's uid to be the task's.
		h.Call(unix.SYS_WRITE, uintptr(fd), zero, 1).As(stepJoin)
	}
	h.Call(unix.SYS_SETNS, uintptr(c.box.pidfd), sandboxNamespaces).As(stepEnter)
	// Until here the helper shares the shard's descriptor table. From here on it has its own, without any other sandbox's.
	h.Call(unix.SYS_CLOSE_RANGE, lowFDs, lastFD, unix.CLOSE_RANGE_UNSHARE).As("close_range")
	for i := range 3 {
		h.Call(unix.SYS_DUP3, uintptr(slot+i), uintptr(i), 0).As("dup3")
	}
	if c.fds[3] < 0 {
		h.Call(unix.SYS_CLOSE_RANGE, 3, lastFD, 0).As("close_range")
	} else {
		extra := uintptr(c.extra)
		h.Call(unix.SYS_DUP3, uintptr(slot+3), extra, 0).As("dup3")
		if extra > 3 {
			h.Call(unix.SYS_CLOSE_RANGE, 3, extra-1, 0).As("close_range")
		}
		h.Call(unix.SYS_CLOSE_RANGE, extra+1, lastFD, 0).As("close_range")
	}
	for _, r := range l.limits {
		h.Call(unix.SYS_PRLIMIT64, 0, r.resource, h.Word(r.cur, r.max), 0).As("prlimit")
	}
	if set, ok := c.box.cpus(l); ok {
		words := make([]uint64, len(set))
		for i := range set {
			words[i] = uint64(set[i])
		}
		h.Call(unix.SYS_SCHED_SETAFFINITY, 0, uintptr(8*len(words)), h.Word(words...)).As("sched_setaffinity").Ignore()
	}
	for _, c := range l.drop {
		h.Call(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c)).As("drop a capability")
	}
	const setModeFilter = 1
	h.Call(unix.SYS_SECCOMP, setModeFilter, 0, l.filter.Addr()).As("seccomp")
	h.Call(unix.SYS_UMASK, 0o022).As("umask")
	w.takeIDs(c)
	h.Call(unix.SYS_CHDIR, h.Bytes(c.cwd)).As(stepWorkdir)
	h.Clone(unix.CLONE_PARENT, &w.c).As(stepClone)
	h.Exit()
}

const lastFD = uintptr(^uint32(0))

// takeIDs makes the working directory as the sandbox's root if that is asked for, then becomes the user.
func (w *work) takeIDs(c *command) {
	h := &w.h
	uid, gid := uintptr(c.who.uid), uintptr(c.who.gid)
	if c.cwdCreate {
		h.Call(unix.SYS_SETRESGID, 0, 0, 0).As(stepIDs)
		h.Call(unix.SYS_SETRESUID, 0, 0, 0).As(stepIDs)
		for i := 1; i <= len(c.cwd); i++ {
			if i < len(c.cwd) && c.cwd[i] != '/' {
				continue
			}
			path := h.Bytes(c.cwd[:i])
			make := h.Call(unix.SYS_MKDIRAT, atFDCWD, path, 0o755)
			h.Call(unix.SYS_FCHOWNAT, atFDCWD, path, uid, gid, unix.AT_SYMLINK_NOFOLLOW).Ignore() // only what was made here
			make.Else(h.Call(unix.SYS_GETPID))
		}
	}
	groups := uintptr(0)
	if n := len(c.who.groups); n > 0 {
		words := make([]uint64, (n+1)/2)
		for i, g := range c.who.groups {
			words[i/2] |= uint64(g) << (32 * (i % 2))
		}
		groups = h.Word(words...)
	}
	h.Call(unix.SYS_SETGROUPS, uintptr(len(c.who.groups)), groups).As(stepIDs)
	h.Call(unix.SYS_SETRESGID, gid, gid, gid).As(stepIDs)
	// By way of root: the kernel takes the capabilities away only from who was root before, and the helper, which has all
	// of them in the sandbox, never was. What follows is checked against what the user may do.
	h.Call(unix.SYS_SETRESUID, 0, 0, 0).As(stepIDs)
	h.Call(unix.SYS_SETRESUID, uid, uid, uid).As(stepIDs)
}

const atFDCWD = ^uintptr(99) // AT_FDCWD

// buildCommand writes the script of C: by now it has nothing left to do but become a session and exec.
func (w *work) buildCommand(c *command) {
	s := &w.c
	s.Reset()
	w.tries = w.tries[:0]
	s.Call(unix.SYS_SETSID).As("setsid")
	if c.tty {
		s.Call(unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 0).As("take the terminal")
	}
	w.pid = s.Call(unix.SYS_GETPID)
	s.Call(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, s.Word(0), 0, 8).As("sigprocmask")
	argv, envp := s.Strings(c.argv), s.Strings(c.env)
	for _, path := range c.paths {
		w.tries = append(w.tries, s.Call(unix.SYS_EXECVE, s.String(path), argv, envp).Ignore())
	}
	s.Exit()
}

// execError tells why no attempt to exec worked, or nil if one did.
func (w *work) execError(c *command) *api.Error {
	worst := unix.ENOENT
	for _, t := range w.tries {
		switch e := t.Errno(); e {
		case 0:
			return nil
		case unix.ENOENT, unix.ENOTDIR, unix.ENAMETOOLONG, unix.ELOOP:
		default:
			if worst == unix.ENOENT {
				worst = e
			}
		}
	}
	name := shorten(c.argv[0])
	switch worst {
	case unix.ENOENT:
		err := api.Errorf(api.CodeCommandNotFound, "%q: no such command, or its interpreter doesn't exist", name)
		err.Hint = "give the path of an executable file, or a name that is on the command's PATH"
		return err
	case unix.EACCES:
		return api.Errorf(api.CodeCommandNotExecutable, "%q: not an executable file, or not permitted", name)
	case unix.ENOEXEC, unix.EINVAL, unix.ELIBBAD, unix.EISDIR, unix.ETXTBSY, unix.EPERM:
		return api.Errorf(api.CodeCommandNotExecutable, "%q: %v", name, worst)
	case unix.E2BIG:
		return tooLarge("arguments and environment", size(c.argv)+size(c.env), maxArgs)
	default:
		return api.Errorf(api.CodeNotStarted, "exec %q: %v", name, worst)
	}
}

// Limits of execve: of one string, and of all of them together, which is a quarter of the stack limit.
const (
	maxString = 128<<10 - 1
	maxArgs   = 2 << 20
)

func tooLarge(what string, size, limit int) *api.Error {
	err := api.Errorf(api.CodeTooLarge, "%s of %d bytes are over the limit of %d", what, size, limit)
	err.Hint = "put large data into a file or into stdin; a script may be given as shell text of up to 16 MiB"
	return err
}

func size(v [][]byte) int {
	n := 0
	for _, b := range v {
		n += len(b) + 1
	}
	return n
}

// shorten makes untrusted text fit for an error.
func shorten(b []byte) string {
	const most = 200
	if len(b) > most {
		return string(b[:most]) + "…"
	}
	return string(b)
}

// stepError turns a failed step of either script into what the caller is told. Nothing was started.
func stepError(c *command, f *spawn.Failure) *api.Error {
	switch f.Name {
	case stepWorkdir:
		err := api.FieldError(api.CodeWorkdirNotFound, "cwd", "", "working directory %q: %v", shorten(c.cwd), f.Errno)
		if errors.Is(f.Errno, unix.EACCES) {
			err.Hint = fmt.Sprintf("uid %d may not enter it", c.who.uid)
		}
		return err
	case stepEnter:
		if c.box.dead() {
			return api.Errorf(api.CodeSandboxDied, "the sandbox's first process has ended")
		}
	}
	if f.Name == stepClone && errors.Is(f.Errno, unix.EAGAIN) {
		return tooManyProcesses()
	}
	return api.Errorf(api.CodeNotStarted, "nothing was started: %v", f)
}

func tooManyProcesses() *api.Error {
	err := api.Errorf(api.CodeQuota, "the sandbox has as many processes as its limit allows")
	err.Hint = "end some, or raise resources.pids"
	return err
}
