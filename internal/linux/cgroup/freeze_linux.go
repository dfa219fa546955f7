package cgroup

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// MovingError says that a box didn't come to a standstill. It runs again.
type MovingError struct {
	Groups []string // of commands that had processes that wouldn't stop; "" is the box's own, with its init
	Err    error
}

func (e *MovingError) Error() string {
	return fmt.Sprintf("freeze: %v; processes of groups %q didn't stop", e.Err, e.Groups)
}

func (e *MovingError) Unwrap() error { return e.Err }

// Freeze stops every process of the box and returns when all have stopped; what is born meanwhile is born stopped. If ctx
// ends before (5 s if it has no deadline), the box is thawed and the error is a [*MovingError]. Where the controllers are
// used through v1 as well: this is always v2's, because every process of a box is in its v2 group.
func (d Dirs) Freeze(ctx context.Context, box string) error {
	if err := checkName(box); err != nil {
		return err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	err := writeFile(d.V2, box+"/cgroup.freeze", "1")
	if err == nil {
		err = d.waitFrozen(ctx, box)
	}
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = &MovingError{Groups: d.moving(box), Err: err}
	}
	if terr := writeFile(d.V2, box+"/cgroup.freeze", "0"); !isGone(terr) {
		err = errors.Join(err, terr)
	}
	return err
}

// waitFrozen waits until every process of the box stands still. Of a group that holds processes and groups, as the box's
// own does, the kernel says that it is frozen when its own processes are, whatever those in the groups below do, and also
// when those below are, whatever its own do. So each command's group is asked, of which the kernel speaks the truth. The
// box's own process is its init, which waits for ever anyway.
func (d Dirs) waitFrozen(ctx context.Context, box string) error {
	names, err := d.Execs(box)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := waitEvent(ctx, d.V2, box+"/"+n, "frozen", 1); err != nil && !isGone(err) {
			return err
		}
	}
	return waitEvent(ctx, d.V2, box, "frozen", 1)
}

// moving lists the groups of a box that is being frozen in which something moves.
func (d Dirs) moving(box string) []string {
	names, err := d.Execs(box)
	if err != nil {
		return nil
	}
	names = slices.DeleteFunc(names, func(n string) bool { return d.stands(box + "/" + n) })
	if len(names) == 0 && !d.stands(box) {
		names = []string{""}
	}
	slices.Sort(names)
	return names
}

func (d Dirs) stands(path string) bool {
	n, err := readKey(d.V2, path+"/cgroup.events", "frozen")
	return err != nil || n == 1
}

// Thaw undoes [Dirs.Freeze] and returns when the processes may run.
func (d Dirs) Thaw(ctx context.Context, box string) error {
	if err := checkName(box); err != nil {
		return err
	}
	if err := writeFile(d.V2, box+"/cgroup.freeze", "0"); err != nil {
		return err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	return waitEvent(ctx, d.V2, box, "frozen", 0)
}
