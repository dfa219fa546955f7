package chronus

import (
	"fmt"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/internal/keeper"
)

// Descriptor numbers below lowFDs are the shard's own few and the transfer slots. Every one of them is taken before
// anything is received, so whatever arrives later is at or above lowFDs; a helper closes from there up in one call.
const (
	lowFDs    = keeper.LowFDs
	firstSlot = 10
	slotSize  = 4 // stdin, stdout, stderr, and one more
	slotCount = (lowFDs - firstSlot) / slotSize
)

const memoryLimit = 64 << 20 // above this the collector works harder; a busy shard needs about 20 MiB

// prepareProcess makes this process fit to be a shard. It comes before anything else.
func prepareProcess() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("make the process non-dumpable: %w", err)
	}
	restoreDefaultSignals()
	debug.SetGCPercent(100)
	debug.SetMemoryLimit(memoryLimit)
	return nil
}

// restoreDefaultSignals turns every ignored signal into a default one. Neither execve nor CLONE_CLEAR_SIGHAND does, so
// a shard whose ancestors were started by "sh &" would give its commands a Ctrl-C that does nothing.
func restoreDefaultSignals() {
	const ignored = 1 // SIG_IGN
	for sig := uintptr(1); sig <= 64; sig++ {
		var action [32]byte // struct kernel_sigaction, the handler first
		at := uintptr(unsafe.Pointer(&action))
		_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, 0, at, 8, 0, 0)
		if e != 0 || *(*uintptr)(unsafe.Pointer(&action)) != ignored {
			continue
		}
		action = [32]byte{}
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, at, 0, 8, 0, 0) // SIGKILL and SIGSTOP refuse
	}
}

// checkLow makes sure that every number below lowFDs is taken, as the keeper promises, and that no command inherits one.
func checkLow() error {
	for fd := range lowFDs {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil {
			return fmt.Errorf("descriptor %d is free: not started by a keeper: %w", fd, err)
		}
		if fd > 2 && flags&unix.FD_CLOEXEC == 0 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// directory returns fd if it is a directory: the keeper puts /dev/null where it has none.
func directory(fd int) int {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return -1
	}
	return fd
}

// slots hands out groups of descriptor numbers in which a command's descriptors wait for the helper.
type slots chan int

func newSlots() slots {
	s := make(slots, slotCount) // one entry per slot
	for i := range slotCount {
		s <- firstSlot + i*slotSize
	}
	return s
}

// fill puts fds into a free slot and returns its first number. A negative descriptor leaves its place as it is.
func (s slots) fill(fds []int) (int, error) {
	first := <-s
	for i, fd := range fds {
		if fd < 0 {
			continue
		}
		if err := unix.Dup3(fd, first+i, unix.O_CLOEXEC); err != nil {
			s.empty(first, fds[:i])
			return -1, fmt.Errorf("put descriptor %d into slot %d: %w", fd, first+i, err)
		}
	}
	return first, nil
}

// empty gives a slot back. Its descriptors are replaced at once: a pipe's end would never be seen while they are here.
func (s slots) empty(first int, fds []int) {
	for i, fd := range fds {
		if fd >= 0 {
			_ = unix.Dup3(keeper.FDNull, first+i, unix.O_CLOEXEC) // a number below the limit onto an open one: can't fail
		}
	}
	s <- first
}
