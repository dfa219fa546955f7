package launch

import (
	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/internal/chronus/account"
	"github.com/dsec-io/dsec/internal/spawn"
)

// Enter begins the script of a helper that works on a sandbox's files as who: what follows is resolved from the
// sandbox's root, and checked against what who may do there.
func Enter(h *spawn.Script, b Box, who *account.Account) {
	h.Reset()
	h.Call(unix.SYS_SETNS, uintptr(b.PIDFD), unix.CLONE_NEWUSER|unix.CLONE_NEWNS).As(stepEnter)
	takeUser(h, who)
	h.Call(unix.SYS_UMASK, 0)
}

// EnterNetwork begins the script of a helper that has the sandbox's network, as who. Its files stay this process's own.
func EnterNetwork(h *spawn.Script, b Box, who *account.Account) {
	h.Reset()
	h.Call(unix.SYS_SETNS, uintptr(b.PIDFD), unix.CLONE_NEWUSER|unix.CLONE_NEWNET).As(stepEnter)
	takeUser(h, who)
}

// Visit runs a script that [Enter] or [EnterNetwork] began. The descriptors that it opens are this process's afterwards.
func (l *Launcher) Visit(b Box, h *spawn.Script) error { return l.help(b, h) }

// Opened is the descriptor that a step of a visit has made here, -1 if it hasn't.
func Opened(st *spawn.Step) int { return received(st) }

// takeUser takes who's ids, by way of root: see takeIDs.
func takeUser(h *spawn.Script, who *account.Account) {
	groups := uintptr(0)
	if n := len(who.Groups); n > 0 {
		words := make([]uint64, (n+1)/2)
		for i, g := range who.Groups {
			words[i/2] |= uint64(g) << (32 * (i % 2))
		}
		groups = h.Word(words...)
	}
	uid, gid := uintptr(who.UID), uintptr(who.GID)
	h.Call(unix.SYS_SETGROUPS, uintptr(len(who.Groups)), groups).As(stepIDs)
	h.Call(unix.SYS_SETRESGID, gid, gid, gid).As(stepIDs)
	h.Call(unix.SYS_SETRESUID, 0, 0, 0).As(stepIDs)
	h.Call(unix.SYS_SETRESUID, uid, uid, uid).As(stepIDs)
}

// ReadRegular reads the file of at most limit bytes behind fd into buf and closes it. What isn't a regular file, or is too large, counts as
// empty: reading a pipe or a device of the tenant's could block for ever.
func ReadRegular(fd int, buf []byte, limit int64) []byte {
	buf = buf[:0]
	if fd < 0 {
		return buf
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > limit {
		return buf
	}
	for int64(len(buf)) < limit {
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
