package cgroup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Driver makes the groups of one instance.
type Driver struct {
	layout Layout
	base   Dirs // dsec-INST in each hierarchy that is in use
}

// Open finds the hierarchies and makes dsec-INSTANCE in each that is needed. It fails with a [*ControllerError] when
// memory, cpu or pids can't be limited on this machine.
func Open(instance string) (*Driver, error) {
	mounts, err := systemMounts()
	if err != nil {
		return nil, err
	}
	r, err := openRoots(mounts)
	if err != nil {
		return nil, err
	}
	d, err := newDriver(&r, instance)
	return d, errors.Join(err, r.at.close())
}

func newDriver(r *roots, instance string) (*Driver, error) {
	if err := checkName(instance); err != nil {
		return nil, err
	}
	l, err := r.choose()
	if err != nil {
		return nil, err
	}
	d := &Driver{layout: l}
	if d.base, err = makeDirs(r.at, "dsec-"+instance); err != nil {
		return nil, err
	}
	if err := d.enableAll(d.base.V2, "."); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// enableAll gives the children of a v2 group the controllers that are used through v2.
func (d *Driver) enableAll(dir int, path string) error {
	l := d.layout
	for _, c := range (&Dirs{}).controllers(&l) {
		if *c.version != 2 {
			continue
		}
		if err := enable(dir, path, c.name); err != nil {
			return fmt.Errorf("enable %s below %s: %w", c.name, path, err)
		}
	}
	return nil
}

// Close gives the descriptors back and leaves all groups as they are.
func (d *Driver) Close() error { return d.base.close() }

// Layout tells where the controllers were found.
func (d *Driver) Layout() Layout { return d.layout }

// Keeper makes dsec-INSTANCE/keeper if need be, and opens it for CLONE_INTO_CGROUP. The caller closes the descriptor.
func (d *Driver) Keeper() (int, error) {
	if err := makeDir(d.base.V2, "keeper"); err != nil {
		return -1, err
	}
	return openDir(d.base.V2, "keeper")
}

// ShardBoxes is one shard with its boxes, as [Driver.List] finds them.
type ShardBoxes struct {
	Shard string
	Boxes []string
}

// List tells which groups of this instance exist in any hierarchy, sorted by name.
func (d *Driver) List() ([]ShardBoxes, error) {
	boxes := map[string]map[string]bool{}
	for _, h := range d.base.all() {
		shards, err := subgroups(h.fd, ".")
		if err != nil {
			return nil, fmt.Errorf("%s: %w", h.name, err)
		}
		for _, shard := range shards {
			if checkShard(shard) != nil {
				continue
			}
			if boxes[shard] == nil {
				boxes[shard] = map[string]bool{}
			}
			names, err := subgroups(h.fd, shard)
			if err != nil && !isGone(err) {
				return nil, fmt.Errorf("%s: %w", h.name, err)
			}
			for _, n := range names {
				boxes[shard][n] = checkName(n) == nil
			}
		}
	}
	var list []ShardBoxes
	for shard, names := range boxes {
		e := ShardBoxes{Shard: shard}
		for n, ok := range names {
			if ok {
				e.Boxes = append(e.Boxes, n)
			}
		}
		slices.Sort(e.Boxes)
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b ShardBoxes) int { return strings.Compare(a.Shard, b.Shard) })
	return list, nil
}

// RemoveAll kills everything that lives in the groups of instance, keeper and shards too, and removes the groups, in
// v1 hierarchies that aren't in use any more too. What is left when ctx ends (5 s if it has no deadline) is told by a
// [*LeftError]. Groups of other instances, and of anybody else, aren't looked at.
func RemoveAll(ctx context.Context, instance string) error {
	if err := checkName(instance); err != nil {
		return err
	}
	mounts, err := systemMounts()
	if err != nil {
		return err
	}
	r, err := openRoots(mounts)
	if err != nil {
		return err
	}
	return errors.Join(remove(ctx, r.at, "dsec-"+instance), r.at.close())
}

// Shard makes the groups of the shard called name ("shard-0"), or opens them if they exist, for a shard that runs as
// uid.
func (d *Driver) Shard(name string, uid int) (*Shard, error) {
	if err := checkShard(name); err != nil {
		return nil, err
	}
	dirs, err := makeDirs(d.base, name)
	if err != nil {
		return nil, err
	}
	s := &Shard{name: name, uid: uid, parent: d.base, dirs: dirs, self: -1}
	err = errors.Join(d.enableAll(dirs.V2, "."), makeDir(dirs.V2, "self"), chown(dirs.V2, "cgroup.procs", uid))
	if err == nil {
		s.self, err = openDir(dirs.V2, "self")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("shard %s: %w", name, err), s.Close())
	}
	return s, nil
}

// makeDir makes a group, or is content with the one that exists.
func makeDir(dir int, path string) error {
	if err := unix.Mkdirat(dir, path, 0o755); err != nil && err != unix.EEXIST {
		return fmt.Errorf("make group %s: %w", path, err)
	}
	return nil
}

// makeDirs makes a group of that name in each hierarchy, or takes what exists, and opens them.
func makeDirs(in Dirs, name string) (Dirs, error) {
	out := Dirs{V2: -1, Memory: -1, CPU: -1, PIDs: -1}
	to := []*int{&out.V2, &out.Memory, &out.CPU, &out.PIDs}
	for i, fd := range []int{in.V2, in.Memory, in.CPU, in.PIDs} {
		if fd < 0 {
			continue
		}
		err := makeDir(fd, name)
		if err == nil {
			*to[i], err = openDir(fd, name)
		}
		if err != nil {
			return Dirs{}, errors.Join(err, out.close())
		}
	}
	return out, nil
}

func chown(dir int, path string, uid int) error {
	if err := unix.Fchownat(dir, path, uid, -1, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("give %s to %d: %w", path, uid, err)
	}
	return nil
}
