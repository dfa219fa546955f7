package launch

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/internal/keeper"
)

// Descriptor numbers below LowFDs are the shard's own few and the transfer slots. Every one of them is taken before
// anything is received, so whatever arrives later is at or above LowFDs; a helper closes from there up in one call.
const (
	LowFDs    = keeper.LowFDs
	firstSlot = 10
	SlotSize  = 4 // stdin, stdout, stderr, and one more
	slotCount = (LowFDs - firstSlot) / SlotSize
)

// checkLow makes sure that every number below LowFDs is taken, as the keeper promises, and that no command inherits one.
func checkLow() error {
	for fd := range LowFDs {
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

// slots hands out groups of descriptor numbers in which a command's descriptors wait for the helper.
type slots chan int

func newSlots() slots {
	s := make(slots, slotCount) // one entry per slot
	for i := range slotCount {
		s <- firstSlot + i*SlotSize
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

// CountFDs counts open descriptors without /proc, which a shard can't see: poll says which of many aren't open.
func CountFDs() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return -1
	}
	open := 0
	batch := make([]unix.PollFd, 1024)
	for first := 0; first < int(limit.Cur); first += len(batch) {
		n := min(len(batch), int(limit.Cur)-first)
		for i := range n {
			batch[i] = unix.PollFd{Fd: int32(first + i)}
		}
		if _, err := unix.Poll(batch[:n], 0); err != nil {
			return -1
		}
		for i := range n {
			if batch[i].Revents&unix.POLLNVAL == 0 {
				open++
			}
		}
	}
	return open
}
