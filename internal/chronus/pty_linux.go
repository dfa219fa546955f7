package chronus

import (
	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/spawn"
)

// defaultRows and defaultCols are a terminal's size when the caller doesn't say.
const (
	defaultRows = 24
	defaultCols = 80
)

// openTerminal makes a terminal in the sandbox that belongs to the command's user, and the command's end of it.
//
// The master is opened through the descriptor of the sandbox's devpts mount, which this shard has made: no path of the
// tenant's is walked. The slave is had from the master, without a path as well.
func (x *execution) openTerminal() error {
	pts, err := x.box.mountTerminals()
	if err != nil {
		return err
	}
	var h spawn.Script
	h.Call(unix.SYS_SETNS, uintptr(x.box.pidfd), unix.CLONE_NEWUSER).As(stepEnter)
	uid, gid := uintptr(x.cmd.who.uid), uintptr(x.cmd.who.gid)
	h.Call(unix.SYS_SETGROUPS, 0, 0).As(stepIDs)
	h.Call(unix.SYS_SETRESGID, gid, gid, gid).As(stepIDs)
	h.Call(unix.SYS_SETRESUID, uid, uid, uid).As(stepIDs)
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC | unix.O_NONBLOCK
	open := h.Call(unix.SYS_OPENAT, uintptr(pts), h.String("ptmx"), flags).As("open a terminal")
	unlock := h.Call(unix.SYS_IOCTL, 0, unix.TIOCSPTLCK, h.Word(0)).As("unlock the terminal")
	open.SaveTo(unlock, 0)
	h.Exit()
	err = x.shard.help(x.box, &h)
	if n := int(open.Result()); n >= lowFDs {
		x.master = n
	}
	if err != nil {
		return err
	}
	const tiocgptpeer = 0x5441
	slave, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(x.master), tiocgptpeer, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if e != 0 {
		return api.Errorf(api.CodeNotStarted, "open the terminal's other end: %v", e)
	}
	x.cmd.fds[0], x.cmd.fds[1], x.cmd.fds[2] = int(slave), int(slave), int(slave)
	if x.req.Rows == 0 || x.req.Cols == 0 {
		x.req.Rows, x.req.Cols = defaultRows, defaultCols
	}
	return setSize(x.master, x.req.Rows, x.req.Cols)
}

func setSize(master int, rows, cols uint32) error {
	size := &unix.Winsize{Row: uint16(rows), Col: uint16(cols)}
	if err := unix.IoctlSetWinsize(master, unix.TIOCSWINSZ, size); err != nil {
		return api.Errorf(api.CodeInternal, "set the terminal's size: %v", err)
	}
	return nil
}

// resize changes the terminal's size; the kernel sends SIGWINCH to the foreground job.
func (p *process) resize(m *aether.Resize) error {
	if !p.meta.TTY {
		return api.Errorf(api.CodeConflict, "process %s has no terminal", p.meta.ID)
	}
	if m.Rows == 0 || m.Cols == 0 || m.Rows > 1<<16-1 || m.Cols > 1<<16-1 {
		return api.FieldError(api.CodeInvalid, "rows", "", "a terminal of %d rows and %d columns", m.Rows, m.Cols)
	}
	p.putMu.Lock() // nobody closes the master meanwhile
	defer p.putMu.Unlock()
	p.mu.Lock()
	over := p.files || p.gone
	p.mu.Unlock()
	if over {
		return api.Errorf(api.CodeNoSuchProcess, "process %s has ended", p.meta.ID)
	}
	return setSize(p.src[0].fd, m.Rows, m.Cols)
}

// mountTerminals mounts the sandbox's devpts at its first terminal, because a superblock that nobody needs costs memory
// in every memory cgroup, and returns the mount.
func (b *box) mountTerminals() (int, error) {
	fd, fresh, err := b.mountTerminalsOnce()
	if err == nil && fresh {
		b.shard.putBox(b)
	}
	return fd, err
}

func (b *box) mountTerminalsOnce() (fd int, fresh bool, err error) {
	b.ptyMu.Lock()
	defer b.ptyMu.Unlock()
	if b.devpts >= 0 {
		return b.devpts, false, nil
	}
	var h spawn.Script
	h.Call(unix.SYS_SETNS, uintptr(b.pidfd), unix.CLONE_NEWUSER|unix.CLONE_NEWNS).As(stepEnter)
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
		dup := h.Call(unix.SYS_FCNTL, 0, unix.F_DUPFD_CLOEXEC, lowFDs).As("dup")
		last.SaveTo(dup, 0)
		opened = append(opened, dup)
	}
	for _, option := range [...][2]string{{"ptmxmode", "0666"}, {"mode", "0620"}} {
		use(h.Call(unix.SYS_FSCONFIG, 0, unix.FSCONFIG_SET_STRING, h.String(option[0]), h.String(option[1]), 0).As("fsconfig devpts"))
	}
	use(h.Call(unix.SYS_FSCONFIG, 0, unix.FSCONFIG_CMD_CREATE, 0, 0, 0).As("make devpts"))
	mount := h.Call(unix.SYS_FSMOUNT, 0, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC).As("fsmount devpts")
	opened[len(opened)-1].SaveTo(mount, 0)
	move := h.Call(unix.SYS_MOVE_MOUNT, 0, h.String(""), atFDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH).As("mount /dev/pts")
	mount.SaveTo(move, 0)
	h.Exit()
	err = b.shard.help(b, &h)
	for _, st := range opened {
		if n := int(st.Result()); n >= lowFDs {
			_ = unix.Close(n)
		}
	}
	if n := int(mount.Result()); n >= lowFDs {
		if err == nil {
			b.devpts = n
			return n, true, nil
		}
		_ = unix.Close(n)
	}
	return -1, false, err
}
