package chronus

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/keeper"
	"github.com/dsec-io/dsec/internal/linux/pidfd"
	"github.com/dsec-io/dsec/internal/spawn"
)

// Limits of one box.
const (
	maxProcesses = 512 // kept ones, running or not
	maxEnded     = 256 // of which ended
	maxSessions  = 256
)

// box is a sandbox as its shard sees it.
type box struct {
	shard *Shard
	name  string
	pidfd int // of its init
	spec  aether.AddBox

	// mu guards what follows.
	mu       sync.Mutex
	procs    map[string]*process
	reserved map[string]struct{} // ids of commands that aren't in procs, yet or for good
	sessions map[string]*session
	left     map[string]struct{} // cgroups of commands that have ended and left processes
	gone     bool

	// accMu guards the accounts and is held while they are read.
	accMu     sync.Mutex
	acc       accounts
	accRead   time.Time
	accByName map[string]*account

	// ptyMu guards devpts and is held while it is mounted.
	ptyMu  sync.Mutex
	devpts int // mount of the sandbox's devpts; -1: none yet
}

func newBox(s *Shard, spec *aether.AddBox, initFD int) *box {
	return &box{
		shard: s, name: spec.Name, pidfd: initFD, devpts: -1,
		spec:     aether.AddBox{Name: spec.Name, User: spec.User, Hostname: spec.Hostname, CPUs: spec.CPUs},
		procs:    make(map[string]*process),
		reserved: make(map[string]struct{}),
		sessions: make(map[string]*session),
		left:     make(map[string]struct{}),
	}
}

// item is how the box is kept.
func (b *box) item() keeper.Item {
	it := keeper.Item{Key: boxKey + b.name, Blob: b.spec.AppendTo(nil), FDs: []int{b.pidfd}, Wait: keeper.NoWait}
	b.ptyMu.Lock()
	defer b.ptyMu.Unlock()
	if b.devpts >= 0 {
		it.FDs = append(it.FDs, b.devpts)
	}
	return it
}

// dead tells whether the sandbox's init has ended.
func (b *box) dead() bool {
	ended, err := pidfd.Exited(b.pidfd)
	return err != nil || ended
}

func (b *box) cpus(l *launcher) (unix.CPUSet, bool) { return l.affinity(b.name, int(b.spec.CPUs)) }

// leave remembers a command's cgroup that couldn't be removed, for the janitor.
func (b *box) leave(group string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left[group] = struct{}{}
}

// sweep removes the cgroups of commands whose last process has ended meanwhile.
func (b *box) sweep() {
	b.mu.Lock()
	groups := make([]string, 0, len(b.left))
	for g := range b.left {
		groups = append(groups, g)
	}
	b.mu.Unlock()
	for _, g := range groups {
		if b.shard.dirs.RemoveExec(b.name, g) == nil {
			b.mu.Lock()
			delete(b.left, g)
			b.mu.Unlock()
		}
	}
}

// close forgets everything about the box. Its processes are dead or about to be: the edge removes the sandbox.
func (b *box) close() {
	b.mu.Lock()
	b.gone = true
	procs := b.procs
	sessions := b.sessions
	b.procs, b.sessions = map[string]*process{}, map[string]*session{}
	b.mu.Unlock()
	for _, p := range procs {
		p.forget()
	}
	for _, se := range sessions {
		se.close()
	}
	b.shard.del(boxKey + b.name)
	_ = unix.Close(b.pidfd)
	b.ptyMu.Lock()
	defer b.ptyMu.Unlock()
	if b.devpts >= 0 {
		_ = unix.Close(b.devpts)
		b.devpts = -1
	}
}

const (
	accountsFor  = time.Second // how long what was read of the account files counts
	accountsFile = 1 << 20     // the most that is read of one
)

// account finds who a command runs as. Names that aren't known make the files be read again, so an account is there
// for the command after the one that made it.
func (b *box) account(who string) (*account, error) {
	if who == "" {
		who = b.spec.User
	}
	b.accMu.Lock()
	defer b.accMu.Unlock()
	fresh := time.Since(b.accRead) < accountsFor
	if acc := b.accByName[who]; acc != nil && fresh {
		return acc, nil
	}
	if !fresh {
		if err := b.readAccounts(); err != nil {
			return nil, err
		}
	}
	acc, err := b.acc.lookup(who)
	if api.IsCode(err, api.CodeNoSuchUser) && fresh {
		if err := b.readAccounts(); err != nil {
			return nil, err
		}
		acc, err = b.acc.lookup(who)
	}
	if err != nil {
		return nil, err
	}
	b.accByName[who] = acc
	return acc, nil
}

func (b *box) readAccounts() error {
	fds, err := b.shard.openInside(b, "/etc/passwd", "/etc/group")
	if err != nil {
		return err
	}
	b.acc.passwd, b.acc.group = readRegular(fds[0], b.acc.passwd), readRegular(fds[1], b.acc.group)
	b.accRead, b.accByName = time.Now(), make(map[string]*account)
	return nil
}

// readRegular reads the file behind fd into buf and closes it. What isn't a regular file, or is too large, counts as
// empty: reading a pipe or a device of the tenant's could block for ever.
func readRegular(fd int, buf []byte) []byte {
	buf = buf[:0]
	if fd < 0 {
		return buf
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > accountsFile {
		return buf
	}
	for len(buf) < accountsFile {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := unix.Pread(fd, buf[len(buf):cap(buf)], int64(len(buf)))
		if err != nil || n == 0 {
			break
		}
		buf = buf[:len(buf)+n]
	}
	return buf
}

// openInside opens files of the sandbox for reading, as its root, in a helper that has joined it: no path of a tenant's
// is ever walked outside. A file that can't be opened is -1.
func (s *Shard) openInside(b *box, paths ...string) ([]int, error) {
	var h spawn.Script
	h.Call(unix.SYS_SETNS, uintptr(b.pidfd), unix.CLONE_NEWUSER|unix.CLONE_NEWNS).As(stepEnter)
	becomeRoot(&h)
	const flags = unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY
	opens := make([]*spawn.Step, len(paths))
	for i, p := range paths {
		opens[i] = h.Call(unix.SYS_OPENAT, atFDCWD, h.String(p), flags).Ignore()
	}
	h.Exit()
	err := s.help(b, &h)
	fds := make([]int, len(paths))
	for i, st := range opens {
		fds[i] = -1
		if n := int(st.Result()); n >= lowFDs {
			fds[i] = n
		}
	}
	if err != nil {
		for _, fd := range fds {
			if fd >= 0 {
				_ = unix.Close(fd)
			}
		}
		return nil, err
	}
	return fds, nil
}

// becomeRoot takes the ids of the sandbox's root, which makes what follows subject to the sandbox's own permissions.
func becomeRoot(h *spawn.Script) {
	h.Call(unix.SYS_SETGROUPS, 0, 0).As(stepIDs)
	h.Call(unix.SYS_SETRESGID, 0, 0, 0).As(stepIDs)
	h.Call(unix.SYS_SETRESUID, 0, 0, 0).As(stepIDs)
}

// help runs a helper that shares this process's descriptors, so that what it opens is here afterwards.
func (s *Shard) help(b *box, h *spawn.Script) error {
	out, err := spawn.Run(spawn.Attr{Flags: unix.CLONE_FILES, Cgroup: -1, Watch: &s.watch}, h)
	if err != nil {
		return api.Errorf(api.CodeNotStarted, "%v", fmt.Errorf("clone a helper: %w", err))
	}
	ws, _ := spawn.Wait(out.PID)
	if out.Failed != nil || ws.Signaled() {
		if b.dead() {
			return api.Errorf(api.CodeSandboxDied, "the sandbox's first process has ended")
		}
		if out.Failed == nil {
			return api.Errorf(api.CodeNotStarted, "a helper in the sandbox was killed")
		}
		return api.Errorf(api.CodeNotStarted, "a helper in the sandbox: %v", out.Failed)
	}
	return nil
}
