package cgroup

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"golang.org/x/sys/unix"
)

// ErrPopulated says that a group can't be removed because processes live in it.
var ErrPopulated = errors.New("processes live in the group")

// Dirs are a shard's group directories as O_PATH descriptors: all that a shard has of the file system. The field of a
// controller that is used through v2 is -1. All methods work for the unprivileged user of the shard.
type Dirs struct{ V2, Memory, CPU, PIDs int }

// hierarchy is one of the directories with the name of its hierarchy.
type hierarchy struct {
	name string
	fd   int
}

func (d Dirs) v1() []hierarchy {
	var l []hierarchy
	for _, h := range []hierarchy{{"memory", d.Memory}, {"cpu", d.CPU}, {"pids", d.PIDs}} {
		if h.fd >= 0 {
			l = append(l, h)
		}
	}
	return l
}

// all is v2 and then v1.
func (d Dirs) all() []hierarchy { return append([]hierarchy{{"v2", d.V2}}, d.v1()...) }

// close closes what is open and leaves -1 behind.
func (d *Dirs) close() error {
	var err error
	for _, fd := range []*int{&d.V2, &d.Memory, &d.CPU, &d.PIDs} {
		if *fd >= 0 {
			err = errors.Join(err, unix.Close(*fd))
		}
		*fd = -1
	}
	return err
}

// MakeExec makes the group of one command.
func (d Dirs) MakeExec(box, exec string) error {
	path, err := execPath(box, exec)
	if err != nil {
		return err
	}
	if err := unix.Mkdirat(d.V2, path, 0o755); err != nil {
		return fmt.Errorf("make group %s: %w", path, err)
	}
	return nil
}

// OpenExec opens a command's group for CLONE_INTO_CGROUP. The caller closes the descriptor.
func (d Dirs) OpenExec(box, exec string) (int, error) {
	path, err := execPath(box, exec)
	if err != nil {
		return -1, err
	}
	fd, err := openDir(d.V2, path)
	if err != nil {
		return -1, fmt.Errorf("open group %s: %w", path, err)
	}
	return fd, nil
}

// OpenProcs opens the v1 cgroup.procs files of the box, to each of which a child writes "0" before it changes its ids;
// there are none where v2 has all controllers. They are appended to fds, so that a caller may reuse its array; on an
// error nothing has been appended and nothing is left open.
func (d Dirs) OpenProcs(fds []int, box string) ([]int, error) {
	if err := checkName(box); err != nil {
		return fds, err
	}
	n := len(fds)
	for _, dir := range [...]int{d.Memory, d.CPU, d.PIDs} {
		if dir < 0 {
			continue
		}
		fd, err := openAt(dir, box+"/cgroup.procs", unix.O_WRONLY)
		if err != nil {
			for _, fd := range fds[n:] {
				unix.Close(fd)
			}
			return fds[:n], fmt.Errorf("open %s/cgroup.procs: %w", box, err)
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// KillExec kills every process in the command's group, frozen ones too; no error if the group is gone.
func (d Dirs) KillExec(box, exec string) error {
	path, err := execPath(box, exec)
	if err != nil {
		return err
	}
	return kill(d.V2, path)
}

// KillBox kills every process in the box, its init too; no error if the group is gone.
func (d Dirs) KillBox(box string) error {
	if err := checkName(box); err != nil {
		return err
	}
	return kill(d.V2, box)
}

func kill(dir int, path string) error {
	if err := writeFile(dir, path+"/cgroup.kill", "1"); err != nil && !isGone(err) {
		return err
	}
	return nil
}

// RemoveExec removes the command's group. It fails with [ErrPopulated] when the command has left processes, which is a
// fact to report and not a fault. A group that is gone is no error.
func (d Dirs) RemoveExec(box, exec string) error {
	path, err := execPath(box, exec)
	if err != nil {
		return err
	}
	switch err := unix.Unlinkat(d.V2, path, unix.AT_REMOVEDIR); err {
	case nil, unix.ENOENT:
		return nil
	case unix.EBUSY:
		return fmt.Errorf("remove group %s: %w", path, ErrPopulated)
	default:
		return fmt.Errorf("remove group %s: %w", path, err)
	}
}

// Execs lists the groups of commands in the box, in no order.
func (d Dirs) Execs(box string) ([]string, error) {
	if err := checkName(box); err != nil {
		return nil, err
	}
	return subgroups(d.V2, box)
}

// Boxes lists the shard's boxes, in no order.
func (d Dirs) Boxes() ([]string, error) {
	names, err := subgroups(d.V2, ".")
	return slices.DeleteFunc(names, func(n string) bool { return checkName(n) != nil }), err
}

// Frozen tells if the box is frozen or about to be, so that nothing can be started in it.
func (d Dirs) Frozen(box string) (bool, error) {
	if err := checkName(box); err != nil {
		return false, err
	}
	// What was asked for and not what has been reached: a child born in between would stop with the others.
	n, err := readInt(d.V2, box+"/cgroup.freeze")
	return n == 1, err
}

// MemoryBounds tells how much memory the box may use and how much it has used at most since its start, in bytes. A limit
// of 0 is none, a peak of 0 not known: nothing depends on either.
func (d Dirs) MemoryBounds(box string) (limit, peak int64) {
	if checkName(box) != nil {
		return 0, 0
	}
	if d.Memory >= 0 {
		limit, _ = readInt(d.Memory, box+"/memory.limit_in_bytes")
		peak, _ = readInt(d.Memory, box+"/memory.max_usage_in_bytes")
	} else {
		limit, _ = readInt(d.V2, box+"/memory.max")
		peak, _ = readInt(d.V2, box+"/memory.peak") // Linux 5.19
	}
	if limit > math.MaxInt64-1<<20 {
		limit = 0 // v1's way to say none is the largest whole number of pages
	}
	return limit, peak
}

// OOMKills counts the processes of the box that the kernel has killed because the box had no memory left.
func (d Dirs) OOMKills(box string) (int64, error) {
	if err := checkName(box); err != nil {
		return 0, err
	}
	dir, file := d.oomFile()
	return readKey(dir, box+"/"+file, "oom_kill")
}

// Populated tells if a process lives in the command's group; it doesn't if the group is gone. Zombies don't count.
func (d Dirs) Populated(box, exec string) (bool, error) {
	path, err := execPath(box, exec)
	if err != nil {
		return false, err
	}
	n, err := readKey(d.V2, path+"/cgroup.events", "populated")
	if isGone(err) {
		return false, nil
	}
	return n == 1, err
}
