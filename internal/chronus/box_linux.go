package chronus

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/chronus/account"
	"github.com/dsec-io/dsec/internal/chronus/launch"
	"github.com/dsec-io/dsec/internal/chronus/pause"
	"github.com/dsec-io/dsec/internal/chronus/remember"
	"github.com/dsec-io/dsec/internal/keeper"
)

// Limits of one box.
const (
	maxProcesses = 512 // kept ones, running or not
	maxEnded     = 256 // of which ended
	maxSessions  = 256
)

// box is a sandbox as its shard sees it.
type box struct {
	launch.Box
	shard *Shard

	// pin is held for reading while PIDFD or devpts are in use, and for writing while they are closed: their numbers may
	// be another box's right afterwards.
	pin sync.RWMutex

	ended chan struct{} // closed with the box
	gate  pause.Gate    // whoever makes a process in the sandbox, or visits it, enters here

	// mu guards what follows.
	mu       sync.Mutex
	spec     aether.AddBox
	procs    map[string]*process
	reserved map[string]struct{} // ids of commands that aren't in procs, yet or for good
	sessions map[string]*session
	memory   remember.Budget     // of the sessions; has a lock of its own
	left     map[string]struct{} // cgroups of commands that have ended and left processes
	drafts   []keeper.Item       // unfinished files of an earlier shard's, while the sandbox is paused
	gone     bool

	accounts account.Cache

	// ptyMu guards devpts and is held while it is mounted.
	ptyMu  sync.Mutex
	devpts int // mount of the sandbox's devpts; -1: none yet
}

func newBox(s *Shard, spec *aether.AddBox, initFD int) *box {
	return &box{
		Box: launch.Box{Name: spec.Name, PIDFD: initFD, CPUs: int(spec.CPUs)}, shard: s, devpts: -1,
		spec:     aether.AddBox{Name: spec.Name, User: spec.User, Hostname: spec.Hostname, CPUs: spec.CPUs, Ends: spec.Ends},
		procs:    make(map[string]*process),
		reserved: make(map[string]struct{}),
		sessions: make(map[string]*session),
		left:     make(map[string]struct{}),
		ended:    make(chan struct{}),
	}
}

// target is the box as a command that starts now finds it.
func (b *box) target() launch.Box {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.Box
	t.CPUs = int(b.spec.CPUs)
	return t
}

// update changes how many processors commands that start from now on may run on, and when the box ends.
func (b *box) update(spec *aether.AddBox) {
	b.mu.Lock()
	b.spec.CPUs, b.spec.Ends = spec.CPUs, spec.Ends
	b.mu.Unlock()
	b.shard.putBox(b)
}

// use runs f while the box's descriptors stay open.
func (b *box) use(f func() error) error {
	b.pin.RLock()
	defer b.pin.RUnlock()
	b.mu.Lock()
	gone := b.gone
	b.mu.Unlock()
	if gone {
		return api.Errorf(api.CodeSandboxDied, "the sandbox has ended")
	}
	return f()
}

// item is how the box is kept.
func (b *box) item() keeper.Item {
	b.mu.Lock()
	blob := b.spec.AppendTo(nil)
	b.mu.Unlock()
	it := keeper.Item{Key: boxKey + b.Name, Blob: blob, FDs: []int{b.PIDFD}, Wait: keeper.NoWait}
	b.ptyMu.Lock()
	defer b.ptyMu.Unlock()
	if b.devpts >= 0 {
		it.FDs = append(it.FDs, b.devpts)
	}
	return it
}

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
		if b.shard.dirs.RemoveExec(b.Name, g) == nil {
			b.mu.Lock()
			delete(b.left, g)
			b.mu.Unlock()
		}
	}
}

// leaveUnknown leaves the cgroups to the janitor that an earlier shard made and no process names: of short commands, and
// those that were spare.
func (b *box) leaveUnknown() {
	names, err := b.shard.dirs.Execs(b.Name)
	if err != nil {
		return // the box has ended
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	known := make(map[string]bool)
	for _, p := range b.procs {
		p.mu.Lock()
		known[p.meta.Group] = true
		p.mu.Unlock()
	}
	for _, n := range names {
		if !known[n] {
			b.left[n] = struct{}{}
		}
	}
}

// close forgets everything about the box. Its processes are dead or about to be: the edge removes the sandbox.
func (b *box) close() {
	b.mu.Lock()
	if !b.gone {
		close(b.ended)
	}
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
	b.shard.launcher.Forget(b.Name)
	b.shard.del(boxKey + b.Name)
	if b.gate.Kept() != (pause.Kept{}) {
		b.shard.del(pauseKey + b.Name)
	}
	b.pin.Lock()
	defer b.pin.Unlock()
	_ = unix.Close(b.PIDFD)
	b.ptyMu.Lock()
	defer b.ptyMu.Unlock()
	if b.devpts >= 0 {
		_ = unix.Close(b.devpts)
		b.devpts = -1
	}
}

const accountsFile = 1 << 20 // the most that is read of an account file

// accountOf finds who a command runs as.
func (b *box) accountOf(who string) (*account.Account, error) {
	if who == "" {
		who = b.spec.User
	}
	return b.accounts.Find(who, b.readAccounts)
}

func (b *box) readAccounts(f *account.Files) error {
	fds, err := b.shard.launcher.OpenInside(b.Box, "/etc/passwd", "/etc/group")
	if err != nil {
		return err
	}
	f.Passwd, f.Group = launch.ReadRegular(fds[0], f.Passwd, accountsFile), launch.ReadRegular(fds[1], f.Group, accountsFile)
	return nil
}

// readAhead reads the accounts of a new box before its first command.
func (s *Shard) readAhead(st *aether.Stream) {
	if b, err := s.box(st.Open().Sandbox); err == nil { // paused or ended already: not needed
		_ = b.enter(st.Done(), func() error { b.accounts.Ahead(b.readAccounts); return nil })
	}
}
