package cgroup

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"
)

// Held is what every command needs of its box's files, kept open by a shard that starts many commands there. It keeps
// no group from being removed; after that its methods fail. They may be used at once, but not beside Close.
type Held struct {
	freeze, oom int
	procs       []int
}

// Hold opens a box's files. The caller closes them.
func (d Dirs) Hold(box string) (*Held, error) {
	if err := checkName(box); err != nil {
		return nil, err
	}
	h := &Held{freeze: -1, oom: -1}
	var err error
	if h.freeze, err = openAt(d.V2, box+"/cgroup.freeze", unix.O_RDONLY); err != nil {
		return nil, fmt.Errorf("open %s/cgroup.freeze: %w", box, err)
	}
	if dir, file := d.oomFile(); dir >= 0 {
		h.oom, _ = openAt(dir, box+"/"+file, unix.O_RDONLY) // without the controller there is none, and nothing is counted
	}
	if h.procs, err = d.OpenProcs(nil, box); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// oomFile is where the kernel counts its kills.
func (d Dirs) oomFile() (dir int, file string) {
	if d.Memory >= 0 {
		return d.Memory, "memory.oom_control"
	}
	return d.V2, "memory.events"
}

// Close gives the files back.
func (h *Held) Close() {
	for _, fd := range append(h.procs, h.freeze, h.oom) {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	h.freeze, h.oom, h.procs = -1, -1, nil
}

// Frozen is [Dirs.Frozen].
func (h *Held) Frozen() (bool, error) {
	var buf [16]byte
	n, err := pread(h.freeze, buf[:])
	return n > 0 && buf[0] == '1', err
}

// OOMKills is [Dirs.OOMKills], 0 where it isn't counted.
func (h *Held) OOMKills() (int64, error) {
	if h.oom < 0 {
		return 0, nil
	}
	var buf [512]byte
	n, err := pread(h.oom, buf[:])
	if err != nil {
		return 0, err
	}
	return findKey(buf[:n], "the box's file", "oom_kill")
}

// Procs are the box's v1 cgroup.procs files; see [Dirs.OpenProcs].
func (h *Held) Procs() []int { return h.procs }

// HeldExec is the group of a command that has ended, kept open for the next one.
type HeldExec struct {
	Name        string
	dir, events int
}

// HoldExec opens the group of a command. The caller closes it.
func (d Dirs) HoldExec(box, exec string) (*HeldExec, error) {
	path, err := execPath(box, exec)
	if err != nil {
		return nil, err
	}
	e := &HeldExec{Name: exec, dir: -1}
	if e.events, err = openAt(d.V2, path+"/cgroup.events", unix.O_RDONLY); err != nil {
		return nil, fmt.Errorf("open %s/cgroup.events: %w", path, err)
	}
	if e.dir, err = openDir(d.V2, path); err != nil {
		e.Close()
		return nil, fmt.Errorf("open group %s: %w", path, err)
	}
	return e, nil
}

// Dir is the group for CLONE_INTO_CGROUP; it stays e's.
func (e *HeldExec) Dir() int { return e.dir }

// Empty tells whether no process lives in the group. Zombies don't count.
func (e *HeldExec) Empty() (bool, error) {
	var buf [128]byte
	n, err := pread(e.events, buf[:])
	return bytes.Contains(buf[:n], []byte("populated 0\n")), err
}

// Close lets go of the group. It goes on to be there.
func (e *HeldExec) Close() {
	for _, fd := range []*int{&e.dir, &e.events} {
		if *fd >= 0 {
			unix.Close(*fd)
		}
		*fd = -1
	}
}

// pread reads a short file of the kernel's anew.
func pread(fd int, buf []byte) (int, error) {
	for {
		if n, err := unix.Pread(fd, buf, 0); err != unix.EINTR {
			return max(n, 0), err
		}
	}
}
