// Package caps names Linux capabilities and says which of them a command in a sandbox may have.
//
// The set is docker's fourteen: what package managers, sudo, ping and servers need, and nothing that reaches past
// the sandbox's own user namespace. All other capabilities leave the bounding set, so that no file capability and no
// setuid program can bring them back. Everything here is safe for concurrent use.
package caps

import (
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// Cap is a capability's number in the kernel's ABI.
type Cap uint8

// DefaultMask is the bit set of [Default], as /proc/PID/status shows it.
const DefaultMask uint64 = 0xa80425fb

// Default lists the capabilities that stay in a command's bounding set, by number.
func Default() []Cap {
	return []Cap{
		unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_KILL, unix.CAP_SETGID,
		unix.CAP_SETUID, unix.CAP_SETPCAP, unix.CAP_NET_BIND_SERVICE, unix.CAP_NET_RAW, unix.CAP_SYS_CHROOT,
		unix.CAP_MKNOD, unix.CAP_AUDIT_WRITE, unix.CAP_SETFCAP,
	}
}

// Drop lists what has to be dropped from the bounding set so that only [Default] is left: every capability that the
// running kernel knows, but those. It asks the kernel by prctl and not /proc, because a shard has an empty root.
func Drop() ([]Cap, error) {
	last, err := Last()
	if err != nil {
		return nil, err
	}
	var drop []Cap
	for c := Cap(0); c <= last; c++ {
		if DefaultMask&(1<<c) == 0 {
			drop = append(drop, c)
		}
	}
	return drop, nil
}

// Last is the highest capability that the running kernel knows.
func Last() (Cap, error) {
	for c := range Cap(64) {
		if _, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0); err != nil {
			if c == 0 || err != unix.EINVAL {
				return 0, fmt.Errorf("read capability %d of the bounding set: %w", c, err)
			}
			return c - 1, nil
		}
	}
	return 63, nil
}

// String is the name that the kernel's headers give c, CAP_CHOWN for example; CAP_63 for one that has none here.
func (c Cap) String() string {
	if int(c) < len(names()) {
		return names()[c]
	}
	return "CAP_" + strconv.Itoa(int(c))
}

func names() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID",
		"CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST",
		"CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO",
		"CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE",
		"CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE",
		"CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG", "CAP_WAKE_ALARM",
		"CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE",
	}
}
