package chronus

import (
	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/chronus/launch"
)

// defaultRows and defaultCols are a terminal's size when the caller doesn't say.
const (
	defaultRows = 24
	defaultCols = 80
)

// openTerminal makes a terminal for the command.
func (x *execution) openTerminal() error {
	pts, err := x.box.terminals()
	if err != nil {
		return err
	}
	master, slave, err := x.shard.launcher.OpenTerminal(x.box.Box, pts, x.cmd.Who)
	if err != nil {
		return err
	}
	x.master = master
	x.cmd.FDs[0], x.cmd.FDs[1], x.cmd.FDs[2] = slave, slave, slave
	if x.req.Rows == 0 || x.req.Cols == 0 {
		x.req.Rows, x.req.Cols = defaultRows, defaultCols
	}
	return launch.SetSize(master, uint16(x.req.Rows), uint16(x.req.Cols))
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
	if over || p.finished() != nil {
		return api.Errorf(api.CodeNoSuchProcess, "process %s has ended", p.meta.ID)
	}
	return launch.SetSize(p.src[0].FD(), uint16(m.Rows), uint16(m.Cols))
}

// terminals returns the sandbox's devpts mount. It is made at the first terminal, because a superblock that nobody needs
// costs memory in every memory cgroup.
func (b *box) terminals() (int, error) {
	fd, fresh, err := b.mountOnce()
	if fresh {
		b.shard.putPinned(b)
	}
	return fd, err
}

func (b *box) mountOnce() (fd int, fresh bool, err error) {
	b.ptyMu.Lock()
	defer b.ptyMu.Unlock()
	if b.devpts >= 0 {
		return b.devpts, false, nil
	}
	if fd, err = b.shard.launcher.MountTerminals(b.Box); err != nil {
		return -1, false, err
	}
	b.devpts = fd
	return fd, true, nil
}
