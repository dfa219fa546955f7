package spawn

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const (
	cloneVM            = syscall.CLONE_VM
	cloneVfork         = syscall.CLONE_VFORK
	cloneParentSetTID  = syscall.CLONE_PARENT_SETTID
	cloneChildSetTID   = syscall.CLONE_CHILD_SETTID
	cloneChildClearTID = syscall.CLONE_CHILD_CLEARTID
	cloneClearSighand  = 1 << 32
	cloneIntoCgroup    = 1 << 33
)

// cloneArgs is the kernel's struct clone_args up to Linux 5.7.
type cloneArgs struct {
	flags, _, _, parentTID, exitSignal, _, _, _, _, _, cgroup uint64 // pidfd, child_tid, stack … aren't used
}

// Attr says how the outer child is made.
type Attr struct {
	Flags  uint64 // added to CLONE_VM|CLONE_VFORK|CLONE_CLEAR_SIGHAND|CLONE_PARENT_SETTID
	Cgroup int    // directory descriptor of the v2 group the child is born in (CLONE_INTO_CGROUP); -1: none
	Watch  *Watch // nil: nobody ends a child that doesn't come to its exec or exit
	// Linger waits that long for the child of the last Clone to end as well, so that who starts a short command is woken
	// once and not three times. The outer child has been waited for then, and [Outcome.ChildFD] is made. 0: not.
	Linger time.Duration

	holdP bool // a test's: keep the scheduler's P, to show why it has to be released
}

// Outcome is what a run left behind. PID is a zombie, or the program that the script exec'd: either way the caller waits
// for it ([Wait]), unless it was to linger.
type Outcome struct {
	PID      int
	ChildTID int      // of the last Clone; 0: the outer child didn't get that far
	Failed   *Failure // the first step that failed and wasn't to be ignored, in either script; nil: none

	// Of a run that was to linger.
	ChildFD int   // the child's pidfd, O_NONBLOCK, for the caller to close; -1: there is none, see FDErr
	FDErr   error // why there is no ChildFD though there is a child
	Ended   bool  // the child has ended; nobody has waited for it
}

// Failure tells which step ended a script early.
type Failure struct {
	Script int // 0: the script that was run, 1: its child's, 2: that one's child's
	Index  int
	NR     uintptr // system call number
	Name   string  // from [Step.As]
	Errno  syscall.Errno
}

// Error names the step and what the kernel said.
func (f *Failure) Error() string {
	if f.Name != "" {
		return fmt.Sprintf("%s (step %d.%d, system call %d): %v", f.Name, f.Script, f.Index, f.NR, f.Errno)
	}
	return fmt.Sprintf("step %d.%d, system call %d: %v", f.Script, f.Index, f.NR, f.Errno)
}

// Unwrap is the errno.
func (f *Failure) Unwrap() error { return f.Errno }

// Run makes a child that executes s and returns when the child has exec'd or exited. An error means that no child was
// made. The caller's goroutine is blocked meanwhile, the scheduler is not.
//
//go:norace
func Run(a Attr, s *Script) (Outcome, error) {
	if s.n == 0 {
		s.Exit()
	}
	b := s.blockOf()
	b.clone = cloneArgs{
		flags:      a.Flags | cloneVM | cloneVfork | cloneParentSetTID | cloneClearSighand,
		parentTID:  uint64(uintptr(unsafe.Pointer(&b.outerTID))),
		exitSignal: uint64(syscall.SIGCHLD),
	}
	if a.Cgroup >= 0 {
		b.clone.flags |= cloneIntoCgroup
		b.clone.cgroup = uint64(a.Cgroup)
	}
	b.failStep, b.failErr = 0, 0
	b.after = linger{fd: -1}
	atomic.StoreInt32(&b.outerTID, 0)
	atomic.StoreInt32(&b.childTID, 0)
	atomic.StoreInt32(&b.unborn, 0)
	a.Watch.start(&s.watch, b)
	var r uintptr
	switch {
	case a.holdP:
		r = vforkScript(&b.clone, s.step(0), &b.failStep)
	case a.Linger > 0:
		b.after.left = syscall.NsecToTimespec(int64(a.Linger))
		r = lingering(b, s.step(0))
	default:
		r = released(&b.clone, s.step(0), &b.failStep)
	}
	a.Watch.stop(&s.watch)
	runtime.KeepAlive(s)
	if e := errnoOf(r); e != 0 {
		return Outcome{}, fmt.Errorf("clone3: %w", e)
	}
	out := Outcome{PID: int(r), ChildTID: int(atomic.LoadInt32(&b.childTID)), ChildFD: b.after.fd, Ended: b.after.ended}
	if b.after.errno != 0 {
		out.FDErr = fmt.Errorf("open its pidfd: %w", b.after.errno)
	}
	if b.failErr != 0 {
		out.Failed = s.failure(b)
	}
	return out, nil
}

// failure finds the failed step by its address.
func (s *Script) failure(b *block) *Failure {
	for depth := 0; s != nil; depth, s = depth+1, s.child {
		for i := range s.n {
			if st := s.step(i); uintptr(unsafe.Pointer(st)) == b.failStep {
				return &Failure{Script: depth, Index: i, NR: st.nr, Name: st.name, Errno: errnoOf(b.failErr)}
			}
		}
	}
	return &Failure{Script: -1, Errno: errnoOf(b.failErr)}
}

// Wait waits for the child pid and returns its raw status.
func Wait(pid int) (syscall.WaitStatus, error) {
	var ws syscall.WaitStatus
	for {
		_, err := syscall.Wait4(pid, &ws, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		return ws, err
	}
}

// vforkScript is clone3 with args; the child executes first and what follows it, the parent returns clone3's result once
// the child has exec'd or exited. fail points at two words: the failed step's address and its result.
//
//go:noescape
func vforkScript(args *cloneArgs, first *Step, fail *uintptr) uintptr

// released is vforkScript with the P given back meanwhile, at once: a P that is left in a system call keeps the runtime's
// monitor awake, which looks at it every 20 us. It may not have a stack check of its own: between the two runtime calls
// the goroutine must not grow its stack.
//
//go:norace
//go:nosplit
//go:noinline
func released(args *cloneArgs, first *Step, fail *uintptr) uintptr {
	entersyscallblock()
	r := vforkScript(args, first, fail)
	exitsyscall()
	return r
}

// The two are in the runtime's list of names that are linked to from outside and therefore stay (go.dev/issue/67401).

//go:linkname entersyscallblock runtime.entersyscallblock
func entersyscallblock()

//go:linkname exitsyscall runtime.exitsyscall
func exitsyscall()
