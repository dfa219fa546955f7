package launch

import (
	"fmt"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"
)

const memoryLimit = 64 << 20 // above this the collector works harder; a busy shard needs about 20 MiB

// PrepareProcess makes this process fit to be a shard. It comes before anything else.
func PrepareProcess() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("make the process non-dumpable: %w", err)
	}
	restoreDefaultSignals()
	debug.SetGCPercent(100)
	debug.SetMemoryLimit(memoryLimit)
	return checkLow()
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

// Directory returns fd if it is a directory: the keeper puts /dev/null where it has none.
func Directory(fd int) int {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return -1
	}
	return fd
}
