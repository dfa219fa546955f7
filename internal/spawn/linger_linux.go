package spawn

import (
	"syscall"
	"unsafe"
)

// linger is what is known of a run's inner child after its exec or exit, while the P is still away. It lives in a block:
// the kernel writes into it.
type linger struct {
	left  syscall.Timespec // how long to wait; the kernel counts it down when it is interrupted
	poll  pollFD
	fd    int // the child's pidfd; -1: none
	errno syscall.Errno
	ended bool

	// phase keeps the watchdog away from children that are waited for here: their numbers may be anybody's afterwards.
	phase int32
}

// Phases of a run.
const (
	phaseBirth   int32 = iota // the watchdog may look at the children
	phaseWatched              // it is looking
	phaseOver                 // it may not look any more
)

// pollFD is the kernel's struct pollfd.
type pollFD struct {
	fd      int32
	events  int16
	revents int16
}

const pollIn = 1

// sysPidfdOpen has the same number everywhere.
const sysPidfdOpen = 434

// lingering is [released], and what [Attr.Linger] says, with the P away all the time. The same rules hold: raw system
// calls only, and no stack check.
//
//go:norace
//go:nosplit
//go:noinline
func lingering(b *block, first *Step) uintptr {
	entersyscallblock()
	r := vforkScript(&b.clone, first, &b.failStep)
	if r <= maxResult {
		b.wait(r)
	}
	exitsyscall()
	return r
}

// maxResult is the largest result of a system call that isn't an error.
const maxResult = ^uintptr(4095)

//go:norace
//go:nosplit
func (b *block) wait(outer uintptr) {
	l := &b.after
	for !casWord(&l.phase, phaseBirth, phaseOver) {
		_, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
	}
	for {
		if _, _, e := syscall.RawSyscall6(syscall.SYS_WAIT4, outer, 0, 0, 0, 0, 0); e != syscall.EINTR {
			break
		}
	}
	child := loadWord(&b.childTID)
	if child <= 0 || b.failErr != 0 {
		return
	}
	// The number is the child's own as long as nobody has waited for it.
	fd, _, e := syscall.RawSyscall(sysPidfdOpen, uintptr(child), syscall.O_NONBLOCK, 0)
	if e != 0 {
		l.errno = e
		return
	}
	l.fd = int(fd)
	l.poll = pollFD{fd: int32(fd), events: pollIn}
	for {
		n, _, e := syscall.RawSyscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&l.poll)), 1, uintptr(unsafe.Pointer(&l.left)), 0, 0, 0)
		if e != syscall.EINTR {
			l.ended = e == 0 && n == 1
			return
		}
	}
}

// casWord and loadWord are sync/atomic's: those call the race detector, where it is built in, and that needs a P.
//
//go:noescape
func casWord(p *int32, old, new int32) bool

//go:noescape
func loadWord(p *int32) int32
