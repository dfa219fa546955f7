package launch

import (
	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/chronus/account"
	"github.com/dsec-io/dsec/internal/spawn"
)

// maxTerminals is how many terminals one sandbox may have: the kernel counts those of the whole machine.
const maxTerminals = "256"

// OpenTerminal makes a terminal that belongs to who on the devpts mount of a sandbox, and returns both ends.
//
// The master is opened through the mount's descriptor: no path of the tenant's is walked. The slave is had from the
// master, without a path as well.
func (l *Launcher) OpenTerminal(b Box, devpts int, who *account.Account) (master, slave int, err error) {
	var h spawn.Script
	h.Call(unix.SYS_SETNS, uintptr(b.PIDFD), unix.CLONE_NEWUSER).As(stepEnter)
	uid, gid := uintptr(who.UID), uintptr(who.GID)
	h.Call(unix.SYS_SETGROUPS, 0, 0).As(stepIDs)
	h.Call(unix.SYS_SETRESGID, gid, gid, gid).As(stepIDs)
	h.Call(unix.SYS_SETRESUID, uid, uid, uid).As(stepIDs)
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC | unix.O_NONBLOCK
	open := h.Call(unix.SYS_OPENAT, uintptr(devpts), h.String("ptmx"), flags).As("open a terminal")
	unlock := h.Call(unix.SYS_IOCTL, 0, unix.TIOCSPTLCK, h.Word(0)).As("unlock the terminal")
	open.SaveTo(unlock, 0)
	h.Exit()
	err = l.help(b, &h)
	master = received(open)
	if err != nil {
		closeFD(master)
		return -1, -1, err
	}
	const tiocgptpeer = 0x5441
	fd, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(master), tiocgptpeer, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if e != 0 {
		closeFD(master)
		return -1, -1, api.Errorf(api.CodeNotStarted, "open the terminal's other end: %v", e)
	}
	return master, int(fd), nil
}

// SetSize sets a terminal's size in characters; the kernel tells the foreground job by SIGWINCH.
func SetSize(master int, rows, cols uint16) error {
	size := &unix.Winsize{Row: rows, Col: cols}
	if err := unix.IoctlSetWinsize(master, unix.TIOCSWINSZ, size); err != nil {
		return api.Errorf(api.CodeInternal, "set the terminal's size: %v", err)
	}
	return nil
}

// MountTerminals mounts a devpts in a sandbox and returns the mount.
func (l *Launcher) MountTerminals(b Box) (int, error) {
	var h spawn.Script
	h.Call(unix.SYS_SETNS, uintptr(b.PIDFD), unix.CLONE_NEWUSER|unix.CLONE_NEWNS).As(stepEnter)
	becomeRoot(&h)
	dir := h.String("/dev/pts")
	h.Call(unix.SYS_MKDIRAT, atFDCWD, dir, 0o755).Ignore()
	h.Call(unix.SYS_SYMLINKAT, h.String("pts/ptmx"), atFDCWD, h.String("/dev/ptmx")).Ignore()
	context := h.Call(unix.SYS_FSOPEN, h.String("devpts"), unix.FSOPEN_CLOEXEC).As("fsopen devpts")
	// The result of a step goes to two places at most, so each use duplicates it for the next.
	opened := []*spawn.Step{context}
	use := func(step *spawn.Step) {
		last := opened[len(opened)-1]
		last.SaveTo(step, 0)
		dup := h.Call(unix.SYS_FCNTL, 0, unix.F_DUPFD_CLOEXEC, LowFDs).As("dup")
		last.SaveTo(dup, 0)
		opened = append(opened, dup)
	}
	for _, option := range [...][2]string{{"ptmxmode", "0666"}, {"mode", "0620"}, {"max", maxTerminals}} {
		use(h.Call(unix.SYS_FSCONFIG, 0, unix.FSCONFIG_SET_STRING, h.String(option[0]), h.String(option[1]), 0).As("fsconfig devpts"))
	}
	use(h.Call(unix.SYS_FSCONFIG, 0, unix.FSCONFIG_CMD_CREATE, 0, 0, 0).As("make devpts"))
	mount := h.Call(unix.SYS_FSMOUNT, 0, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC).As("fsmount devpts")
	opened[len(opened)-1].SaveTo(mount, 0)
	move := h.Call(unix.SYS_MOVE_MOUNT, 0, h.String(""), atFDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH).As("mount /dev/pts")
	mount.SaveTo(move, 0)
	h.Exit()
	err := l.help(b, &h)
	for _, st := range opened {
		closeFD(received(st))
	}
	fd := received(mount)
	if err != nil {
		closeFD(fd)
		return -1, err
	}
	return fd, nil
}
