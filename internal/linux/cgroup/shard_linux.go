package cgroup

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Shard is the groups of one shard.
type Shard struct {
	name   string
	uid    int
	parent Dirs // the driver's, not closed here
	dirs   Dirs
	self   int

	// mu guards what follows.
	mu    sync.Mutex
	alarm *alarm // nil: nobody is guarded yet
}

// Dirs are the shard's directories, for the shard itself. They are valid until [Shard.Close].
func (s *Shard) Dirs() Dirs { return s.dirs }

// Self is shard-N/self, for CLONE_INTO_CGROUP. It is valid until [Shard.Close].
func (s *Shard) Self() int { return s.self }

// Close gives the descriptors back and leaves the groups as they are.
func (s *Shard) Close() error {
	s.mu.Lock()
	a := s.alarm
	s.mu.Unlock()
	var err error
	if a != nil {
		err = a.close()
	}
	err = errors.Join(err, s.dirs.close())
	if s.self >= 0 {
		err = errors.Join(err, unix.Close(s.self))
		s.self = -1
	}
	return err
}

// Remove kills everything in the shard's groups, the shard too, and removes them as [Box.Remove] does.
func (s *Shard) Remove(ctx context.Context) error { return remove(ctx, s.parent, s.name) }

// Box makes the groups of a sandbox with its limits. It fails with fs.ErrExist if there is such a group.
func (s *Shard) Box(name string, l Limits) (*Box, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if err := unix.Mkdirat(s.dirs.V2, name, 0o755); err != nil {
		return nil, fmt.Errorf("make group %s/%s: %w", s.name, name, err)
	}
	b := &Box{sh: s, name: name}
	if err := b.fill(l); err != nil {
		return nil, errors.Join(fmt.Errorf("group %s/%s: %w", s.name, name, err), b.Remove(context.Background()))
	}
	return b, nil
}

// OpenBox takes up the groups of a sandbox that exists, wholly or in part. It fails with fs.ErrNotExist if there are
// none.
func (s *Shard) OpenBox(name string) (*Box, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	for _, h := range s.dirs.all() {
		var st unix.Stat_t
		err := unix.Fstatat(h.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil {
			return &Box{sh: s, name: name}, nil
		}
		if err != unix.ENOENT {
			return nil, fmt.Errorf("%s: look for group %s/%s: %w", h.name, s.name, name, err)
		}
	}
	return nil, fmt.Errorf("group %s/%s: %w", s.name, name, unix.ENOENT)
}

// Box is the groups of one sandbox. It holds no descriptors of its own and needs no Close, but its Shard must be open.
type Box struct {
	sh   *Shard
	name string
}

// fill makes the v1 groups, sets the limits and gives the shard what it needs, last, so that a group that the shard
// can use has its limits.
func (b *Box) fill(l Limits) error {
	d := b.sh.dirs
	for _, h := range d.v1() {
		// One v1 mount may carry several controllers, so the group may have been made a moment ago.
		if err := makeDir(h.fd, b.name); err != nil {
			return fmt.Errorf("%s: %w", h.name, err)
		}
	}
	if err := b.noSwap(); err != nil {
		return err
	}
	if err := b.SetLimits(l); err != nil {
		return err
	}
	for _, h := range d.v1() {
		if err := chown(h.fd, b.name+"/cgroup.procs", b.sh.uid); err != nil {
			return fmt.Errorf("%s: %w", h.name, err)
		}
	}
	for _, f := range []string{"/cgroup.procs", "/cgroup.kill", "/cgroup.freeze", ""} {
		if err := chown(d.V2, b.name+f, b.sh.uid); err != nil {
			return err
		}
	}
	return nil
}

// Join is what a process needs to be in a box: V2 for CLONE_INTO_CGROUP, and Procs, to each of which it writes "0".
type Join struct {
	V2    int
	Procs []int // v1 only: none where v2 has all controllers
}

// Close closes the descriptors.
func (j Join) Close() error {
	var err error
	for _, fd := range append([]int{j.V2}, j.Procs...) {
		if fd >= 0 {
			err = errors.Join(err, unix.Close(fd))
		}
	}
	return err
}

// JoinFDs opens what a process needs to join the box. The caller closes it.
func (b *Box) JoinFDs() (Join, error) {
	j := Join{V2: -1}
	var err error
	if j.V2, err = openDir(b.sh.dirs.V2, b.name); err != nil {
		return Join{}, fmt.Errorf("open group %s/%s: %w", b.sh.name, b.name, err)
	}
	if j.Procs, err = b.sh.dirs.OpenProcs(nil, b.name); err != nil {
		return Join{}, errors.Join(err, j.Close())
	}
	return j, nil
}

// Guard tells from now on when the box meets its limits, by one call at a time of a goroutine that ends with
// [Box.Unguard] or with the shard's Close.
func (b *Box) Guard(tell func(Hit)) error {
	b.sh.mu.Lock()
	defer b.sh.mu.Unlock()
	if b.sh.alarm == nil {
		a, err := b.sh.newAlarm()
		if err != nil {
			return err
		}
		b.sh.alarm = a
	}
	return b.sh.alarm.add(b, tell)
}

// Unguard ends what Guard has begun, if it has.
func (b *Box) Unguard() {
	b.sh.mu.Lock()
	a := b.sh.alarm
	b.sh.mu.Unlock()
	if a != nil {
		a.remove(b)
	}
}

// Kill kills every process of the box, frozen ones too. It doesn't wait for their end.
func (b *Box) Kill() error { return b.sh.dirs.KillBox(b.name) }

// Frozen tells if the box is frozen or about to be.
func (b *Box) Frozen() (bool, error) { return b.sh.dirs.Frozen(b.name) }

// Freeze stops every process of the box: see [Dirs.Freeze].
func (b *Box) Freeze(ctx context.Context) error { return b.sh.dirs.Freeze(ctx, b.name) }

// Thaw undoes [Box.Freeze] and returns when the processes may run.
func (b *Box) Thaw(ctx context.Context) error { return b.sh.dirs.Thaw(ctx, b.name) }

// Processes lists who lives in the box, by its group: "" is the box's own, with its init, the others are commands'.
// Strangers to our pid namespace are left out.
func (b *Box) Processes() (map[string][]int, error) {
	d := b.sh.dirs
	names, err := d.Execs(b.name)
	if err != nil {
		return nil, err
	}
	all := make(map[string][]int)
	for _, n := range append(names, "") {
		pids, err := processes(d.V2, b.name+"/"+n)
		if err != nil && !isGone(err) {
			return nil, err
		}
		all[n] = pids
	}
	return all, nil
}

// Remove kills what lives in the box, waits for its end until ctx ends (5 s if ctx has no deadline) and removes the
// groups, those of commands too. What is left then is told by a [*LeftError]. A box that is gone already is no error.
func (b *Box) Remove(ctx context.Context) error { return remove(ctx, b.sh.dirs, b.name) }
