package launch

import (
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/internal/chronus/account"
	"github.com/dsec-io/dsec/internal/spawn"
)

// sandboxNamespaces is everything that a sandbox has of its own; the helper enters all of it in one call.
const sandboxNamespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// Command is what a helper needs to know to bring one command to life.
type Command struct {
	Box       Box
	Group     string // name of its cgroup in the box; changed by Spawn if that is taken
	Paths     []string
	Argv, Env [][]byte
	Cwd       []byte
	CwdCreate bool // make the directory first, as the sandbox's root, and give it to the user
	Who       *account.Account
	FDs       [SlotSize]int // stdin, stdout, stderr, and one more; -1: /dev/null for the first three, nothing for the last
	Extra     int           // number of the fourth descriptor in the command
	TTY       bool          // stdin is a terminal to be the controlling one
	Linger    time.Duration // how long Spawn may wait for a short command's end

	OOMKills int64 // set by Spawn: how many of the box's processes the kernel had killed before

	Left string // set by a Spawn that failed and couldn't remove this cgroup
}

// work is the memory of one spawn, reused.
type work struct {
	h, c  spawn.Script
	procs []int
	tries []*spawn.Step // the execve attempts
	pid   *spawn.Step   // getpid in the command's own pid namespace
}

// affinity is the set of n processors that a box's commands see, and false when that is no restriction. Which ones
// depends on the box, so that boxes spread over the machine.
func (l *Launcher) affinity(name string, n int) (unix.CPUSet, bool) {
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
func (l *Launcher) build(w *work, c *Command, slot int) {
	w.buildCommand(c)
	h := &w.h
	h.Reset()
	zero := h.String("0")
	for _, fd := range w.procs {
		// Before the ids change: v1 wants the writer's uid to be the task's.
		h.Call(unix.SYS_WRITE, uintptr(fd), zero, 1).As(stepJoin)
	}
	h.Call(unix.SYS_SETNS, uintptr(c.Box.PIDFD), sandboxNamespaces).As(stepEnter)
	// Until here the helper shares the shard's descriptor table. From here on it has its own, without any other sandbox's.
	h.Call(unix.SYS_CLOSE_RANGE, LowFDs, lastFD, unix.CLOSE_RANGE_UNSHARE).As("close_range")
	for i := range 3 {
		h.Call(unix.SYS_DUP3, uintptr(slot+i), uintptr(i), 0).As("dup3")
	}
	if c.FDs[3] < 0 {
		h.Call(unix.SYS_CLOSE_RANGE, 3, lastFD, 0).As("close_range")
	} else {
		extra := uintptr(c.Extra)
		h.Call(unix.SYS_DUP3, uintptr(slot+3), extra, 0).As("dup3")
		if extra > 3 {
			h.Call(unix.SYS_CLOSE_RANGE, 3, extra-1, 0).As("close_range")
		}
		h.Call(unix.SYS_CLOSE_RANGE, extra+1, lastFD, 0).As("close_range")
	}
	for _, r := range l.limits {
		h.Call(unix.SYS_PRLIMIT64, 0, r.resource, h.Word(r.cur, r.max), 0).As("prlimit")
	}
	if set, ok := l.affinity(c.Box.Name, c.Box.CPUs); ok {
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
	h.Call(unix.SYS_CHDIR, h.Bytes(c.Cwd)).As(stepWorkdir)
	h.Clone(unix.CLONE_PARENT, &w.c).As(stepClone)
	h.Exit()
}

const lastFD = uintptr(^uint32(0))

// takeIDs makes the working directory as the sandbox's root if that is asked for, then becomes the user.
func (w *work) takeIDs(c *Command) {
	h := &w.h
	uid, gid := uintptr(c.Who.UID), uintptr(c.Who.GID)
	if c.CwdCreate {
		h.Call(unix.SYS_SETRESGID, 0, 0, 0).As(stepIDs)
		h.Call(unix.SYS_SETRESUID, 0, 0, 0).As(stepIDs)
		for i := 1; i <= len(c.Cwd); i++ {
			if i < len(c.Cwd) && c.Cwd[i] != '/' {
				continue
			}
			path := h.Bytes(c.Cwd[:i])
			make := h.Call(unix.SYS_MKDIRAT, atFDCWD, path, 0o755)
			h.Call(unix.SYS_FCHOWNAT, atFDCWD, path, uid, gid, unix.AT_SYMLINK_NOFOLLOW).Ignore() // only what was made here
			make.Else(h.Call(unix.SYS_GETPID))
		}
	}
	groups := uintptr(0)
	if n := len(c.Who.Groups); n > 0 {
		words := make([]uint64, (n+1)/2)
		for i, g := range c.Who.Groups {
			words[i/2] |= uint64(g) << (32 * (i % 2))
		}
		groups = h.Word(words...)
	}
	h.Call(unix.SYS_SETGROUPS, uintptr(len(c.Who.Groups)), groups).As(stepIDs)
	h.Call(unix.SYS_SETRESGID, gid, gid, gid).As(stepIDs)
	// By way of root: the kernel takes the capabilities away only from who was root before, and the helper, which has all
	// of them in the sandbox, never was. What follows is checked against what the user may do.
	h.Call(unix.SYS_SETRESUID, 0, 0, 0).As(stepIDs)
	h.Call(unix.SYS_SETRESUID, uid, uid, uid).As(stepIDs)
}

const atFDCWD = ^uintptr(99) // AT_FDCWD

// buildCommand writes the script of C: by now it has nothing left to do but become a session and exec.
func (w *work) buildCommand(c *Command) {
	s := &w.c
	s.Reset()
	w.tries = w.tries[:0]
	s.Call(unix.SYS_SETSID).As("setsid")
	if c.TTY {
		s.Call(unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 0).As("take the terminal")
	}
	w.pid = s.Call(unix.SYS_GETPID)
	s.Call(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, s.Word(0), 0, 8).As("sigprocmask")
	argv, envp := s.Strings(c.Argv), s.Strings(c.Env)
	for _, path := range c.Paths {
		w.tries = append(w.tries, s.Call(unix.SYS_EXECVE, s.String(path), argv, envp).Ignore())
	}
	s.Exit()
}

// maxCandidates bounds the execve attempts for one name.
const maxCandidates = 64

// Candidates appends the paths that execvp would try for name to paths.
func Candidates(paths []string, name, path string) []string {
	if strings.Contains(name, "/") {
		return append(paths, name)
	}
	for dir := range strings.SplitSeq(path, ":") {
		if len(paths) == maxCandidates {
			break
		}
		if dir == "" {
			dir = "."
		}
		paths = append(paths, dir+"/"+name)
	}
	return paths
}
