package chronus

import (
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/chronus/input"
	"github.com/dsec-io/dsec/internal/chronus/journal"
	"github.com/dsec-io/dsec/internal/chronus/launch"
	"github.com/dsec-io/dsec/internal/chronus/pause"
	"github.com/dsec-io/dsec/internal/keeper"
	"github.com/dsec-io/dsec/internal/linux/cgroup"
)

// lostAfter is how long the status of a process that ended under another parent may take to arrive.
const lostAfter = 60 * time.Second

// removed says why the process is no longer known. A sandbox that ends takes its processes along, and whoever waits for one
// mustn't take that for a process that was forgotten.
func (p *process) removed() *api.Error {
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	if p.box.gone {
		return api.Errorf(api.CodeSandboxDied, "the sandbox ended while process %s was known", p.meta.ID)
	}
	return api.Errorf(api.CodeNoSuchProcess, "process %s was removed", p.meta.ID)
}

// killWait bounds how long a result waits for the processes of a killed tree to be gone.
const killWait = 2 * time.Second

// process is one command that has started. At first nobody but its caller knows it. When it is to be kept, or takes
// longer than a moment, it gets journals and a place in the box's list, and the keeper holds its descriptors: see keep.
type process struct {
	shard *Shard
	box   *box
	meta  meta
	launch.Child
	outputs
	own   bool // our child; else that of a shard before us, and the keeper tells its status
	stdin *input.Input

	turn

	// Set by keep.
	stop chan struct{} // closed by forget
	told chan int32    // the keeper's word on the status of a process that isn't ours; buffered, one value
	wg   sync.WaitGroup

	// putMu is held while descriptors are sent to the keeper, and while any of them is closed. It comes before mu.
	putMu sync.Mutex
	kept  int // descriptors in the keeper

	// mu guards what follows.
	mu      sync.Mutex
	changed chan struct{} // closed at the next change; nil: nobody waits
	reaped  bool          // the pid is no longer its own
	cause   cause         // why the tree was killed, if we did
	timer   *pause.Timer
	result  *aether.Exited // set once the command has ended
	ended   time.Time
	owner   *aether.Stream // whose input counts
	files   bool           // sources are given back, the keeper has the journals only
	drop    bool           // forget it once everything has ended
	readers
	gone bool
}

// turn is a session's command's.
type turn struct {
	session *session // nil: no session's, or over. endSession clears it
	state   int      // memfd that the session's state is read from at the end; -1: none
}

// readers are those who read the journals, which stay open for them.
type readers struct {
	followers map[*follower]struct{}
	following sync.WaitGroup
}

// outputs is where a process's output comes from and goes to.
type outputs struct {
	outs int                 // 2, or 1 for a terminal
	raw  [2]int              // read ends of the pipes until keep; -1: none
	src  [2]*journal.Source  // from keep on; nil: the last writer has gone
	out  [2]*journal.Journal // from keep on
}

// cause is why we killed a process tree.
type cause struct{ timedOut, cancelled, oom bool }

func (c cause) any() bool { return c.timedOut || c.cancelled || c.oom }

// signal sends sig to the command alone.
func (p *process) signal(sig unix.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped || p.result != nil || p.gone {
		return unix.ESRCH
	}
	return unix.PidfdSendSignal(p.FD, sig, nil, 0)
}

// interrupt sends SIGINT to the command's process group, as Ctrl-C on a terminal does.
func (p *process) interrupt() {
	p.mu.Lock()
	defer p.mu.Unlock()
	// The group's number is the command's as long as that hasn't been reaped.
	if p.own && !p.reaped && p.result == nil {
		_ = unix.Kill(-p.PID, unix.SIGINT)
	} else if !p.own {
		_ = unix.PidfdSendSignal(p.FD, unix.SIGINT, nil, 0)
	}
}

// kill ends everything that the command has started, also what has made a session of its own.
func (p *process) kill(why cause) {
	p.mu.Lock() // to the end: the group may be another command's right after it was given back
	defer p.mu.Unlock()
	if p.result == nil {
		p.cause.timedOut = p.cause.timedOut || why.timedOut
		p.cause.cancelled = p.cause.cancelled || why.cancelled
		p.cause.oom = p.cause.oom || why.oom
	}
	if p.meta.Group != "" {
		_ = p.shard.dirs.KillExec(p.box.Name, p.meta.Group) // gone: nothing to kill
	}
}

// cancel kills the command whose caller has left. One that has ended can't be cancelled: a caller that leaves when it has
// been told mustn't take the command's background children along.
func (p *process) cancel() {
	p.mu.Lock()
	ended := p.result != nil
	p.mu.Unlock()
	if !ended {
		p.kill(cause{cancelled: true})
	}
}

// startTimer arms the time-out, counted from the command's start in the sandbox's own time.
func (p *process) startTimer() {
	if p.meta.TimeoutMS <= 0 {
		return
	}
	left := time.Duration(p.meta.TimeoutMS)*time.Millisecond - (p.box.gate.Now() - time.Duration(p.meta.Began))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = p.box.gate.AfterFunc(left, func() { p.kill(cause{timedOut: true}) })
}

// wait waits for the command's end, in a goroutine of a kept process.
func (p *process) wait() {
	raw, lost := p.awaitStatus()
	if raw < 0 && lost == "" {
		return // forgotten
	}
	p.conclude(raw, lost)
	for i := range p.outs {
		p.out[i].SetOver()
		if p.src[i] != nil {
			p.src[i].Settle()
		}
	}
	p.notify()
}

// awaitStatus returns the raw wait status, or why there is none; -1 and "" when the process was forgotten.
func (p *process) awaitStatus() (int32, string) {
	var raw int32
	err := error(keeper.ErrNotChild)
	if p.own || !p.statusTold(&raw) {
		conn, connErr := p.File.SyscallConn()
		if connErr != nil {
			return -1, ""
		}
		readErr := conn.Read(func(fd uintptr) bool {
			raw, err = keeper.WaitPIDFD(int(fd), false)
			if p.own {
				return !errors.Is(err, keeper.ErrRunning)
			}
			return readable(int(fd))
		})
		if readErr != nil {
			return -1, ""
		}
		if !p.own {
			return p.foreignStatus()
		}
		if err != nil {
			return 0, "wait for the command: " + err.Error()
		}
		// First the keeper knows, then the kernel may forget.
		_ = p.shard.keeper().Status(p.key(), raw)
		p.mu.Lock()
		p.reaped = true
		_, _ = keeper.WaitPIDFD(p.FD, true)
		p.mu.Unlock()
	}
	return raw, ""
}

// statusTold takes the keeper's word if it is there already.
func (p *process) statusTold(raw *int32) bool {
	select {
	case *raw = <-p.told:
		return true
	default:
		return false
	}
}

// foreignStatus waits for the status of an ended process that isn't our child: the keeper tells it, or the kernel once
// it has been reaped.
func (p *process) foreignStatus() (int32, string) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(lostAfter)
	defer deadline.Stop()
	for {
		if raw, ok := keeper.ExitInfo(p.FD); ok {
			return raw, ""
		}
		select {
		case raw := <-p.told:
			return raw, ""
		case <-p.stop:
			return -1, ""
		case <-deadline.C:
			return 0, "the exit status was lost with the processes that parented the command"
		case <-tick.C:
		}
	}
}

func readable(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return n > 0 && err == nil
}

// conclude records how the command ended. lost says why its status isn't known.
func (p *process) conclude(raw int32, lost string) {
	now := time.Now()
	r := &aether.Exited{
		InfraError: lost, StartedAtUnixNano: p.meta.Started, DurationNano: now.UnixNano() - p.meta.Started, TimeoutMS: p.meta.TimeoutMS,
	}
	if lost == "" {
		ws := unix.WaitStatus(raw)
		if ws.Signaled() {
			r.Signal = int32(ws.Signal())
		} else {
			r.HasCode, r.Code = true, int32(ws.ExitStatus())
		}
	}
	if raw != 0 && p.outOfMemory() {
		p.kill(cause{oom: true})
	}
	p.mu.Lock()
	if p.timer != nil {
		p.timer.Stop()
	}
	why := p.cause
	p.mu.Unlock()
	if r.Signal == int32(unix.SIGKILL) && !why.any() && p.box.Dying() {
		r.InfraError = "the sandbox ended while the command ran"
	}
	r.LeftProcesses = p.removeGroup(why.any())
	if p.stdin != nil {
		r.StdinClosedEarly = p.stdin.Finish()
	}
	r.TimedOut, r.Cancelled, r.OOMKilled = why.timedOut, why.cancelled, why.oom
	if why.oom {
		r.MemoryLimit, r.MemoryPeak = p.shard.dirs.MemoryBounds(p.box.Name)
	}
	p.endSession()
	over := p.box.gate.Now()
	p.mu.Lock()
	p.result, p.ended, p.meta.Over = r, now, int64(over)
	p.mu.Unlock()
}

// outOfMemory tells whether the kernel has killed something in the box for want of memory while the command ran.
func (p *process) outOfMemory() bool {
	n, err := p.shard.dirs.OOMKills(p.box.Name)
	return err == nil && n > p.meta.OOMKills
}

// removeGroup gives the command's cgroup back and tells whether processes are left in it. Those of a killed tree are
// dying and are waited for. Only of a command that the keeper never knew may the group be used again: the record of
// another names it for minutes.
func (p *process) removeGroup(killed bool) (left bool) {
	for end := time.Now().Add(killWait); ; {
		p.mu.Lock()
		err := p.shard.launcher.Leave(p.box.Name, p.meta.Group, !killed && p.stop == nil)
		if err == nil {
			p.meta.Group = ""
		}
		p.mu.Unlock()
		if err == nil {
			return false
		}
		if !killed || time.Now().After(end) {
			p.box.leave(p.meta.Group)
			return errors.Is(err, cgroup.ErrPopulated)
		}
		time.Sleep(time.Millisecond)
	}
}

// watch returns a channel that is closed at the next change.
func (p *process) watch() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.changed
}

// notify wakes everybody who watches.
func (p *process) notify() {
	p.mu.Lock()
	changed := p.changed
	p.changed = nil
	p.mu.Unlock()
	if changed != nil {
		close(changed)
	}
}

// finished returns the result once the command has ended and all output from before its end is stored.
func (p *process) finished() *aether.Exited {
	p.mu.Lock()
	r := p.result
	p.mu.Unlock()
	if r == nil {
		return nil
	}
	for _, j := range p.out[:p.outs] {
		if !j.Settled() {
			return nil
		}
	}
	out := *r
	out.StdoutTotal = p.out[0].Total()
	if p.outs > 1 {
		out.StderrTotal = p.out[1].Total()
	}
	return &out
}
