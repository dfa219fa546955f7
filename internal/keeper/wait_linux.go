package keeper

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offsets in siginfo_t of a SIGCHLD, the same on all 64-bit Linux.
const (
	siginfoCode   = 8
	siginfoPID    = 12 + 4
	siginfoStatus = 24
)

// ErrNotChild means that the process isn't a child of the caller, or that it has been reaped.
var ErrNotChild = errors.New("not a child")

// ErrRunning means that the process hasn't ended.
var ErrRunning = errors.New("still running")

// waitid calls waitid and returns the process and its raw wait status; pid 0: nothing to report yet.
func waitid(idType, id, options int) (pid int, raw int32, err error) {
	var info unix.Siginfo
	for {
		info = unix.Siginfo{}
		err = unix.Waitid(idType, id, &info, options, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return 0, 0, err
	}
	at := func(off uintptr) int32 { return *(*int32)(unsafe.Add(unsafe.Pointer(&info), off)) }
	const killed, dumped = 2, 3 // CLD_KILLED, CLD_DUMPED
	status := at(siginfoStatus)
	switch at(siginfoCode) {
	case killed:
	case dumped:
		status |= 0x80
	default:
		status = status & 0xff << 8
	}
	return int(at(siginfoPID)), status, nil
}

// WaitPIDFD tells how the child behind pidfd ended, and reaps it if reap is set: ErrRunning, ErrNotChild, or its raw
// wait status. It never blocks. EAGAIN and EINTR are never taken for a status: with a pidfd whose O_NONBLOCK some other
// holder has set, both are common.
func WaitPIDFD(pidfd int, reap bool) (int32, error) {
	options := unix.WEXITED | unix.WNOHANG
	if !reap {
		options |= unix.WNOWAIT
	}
	pid, raw, err := waitid(unix.P_PIDFD, pidfd, options)
	switch {
	case errors.Is(err, unix.EAGAIN), err == nil && pid == 0:
		return 0, ErrRunning
	case errors.Is(err, unix.ECHILD):
		return 0, ErrNotChild
	case err != nil:
		return 0, fmt.Errorf("waitid: %w", err)
	}
	return raw, nil
}

const (
	pidfdGetInfo  = 0xC040FF0B // _IOWR(0xFF, 11, struct pidfd_info of 64 bytes)
	pidfdInfoPID  = 1 << 0
	pidfdInfoExit = 1 << 3
)

// ExitInfo asks the kernel for the raw wait status of a process that somebody else has reaped (Linux 6.15). ok is false
// while it hasn't been reaped, and on older kernels.
func ExitInfo(pidfd int) (raw int32, ok bool) {
	var info struct {
		mask uint64
		rest [52]byte
		exit int32
	}
	info.mask = pidfdInfoPID | pidfdInfoExit
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(pidfd), pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
	if e != 0 || info.mask&pidfdInfoExit == 0 {
		return 0, false
	}
	return info.exit, true
}

// pidOf reads the pid behind a pidfd; 0 when the process has gone.
func pidOf(pidfd int) int {
	b, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(pidfd))
	if err != nil {
		return 0
	}
	_, after, ok := bytes.Cut(b, []byte("\nPid:"))
	if !ok {
		return 0
	}
	line, _, _ := bytes.Cut(after, []byte("\n"))
	pid, err := strconv.Atoi(string(bytes.TrimSpace(line)))
	if err != nil || pid < 0 {
		return 0
	}
	return pid
}
