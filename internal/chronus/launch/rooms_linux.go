package launch

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/internal/linux/cgroup"
)

const (
	maxRooms  = 64              // boxes whose files stay open; for others they are opened for each command
	maxSpares = 4               // groups of a box that wait for the next command
	roomRest  = 3 * time.Second // after the last command
)

// room is what a launcher keeps of a box in which commands are started often: its cgroup files, open, and the groups of
// commands that have ended, empty. To make and to remove a group costs the kernel as much as a fork.
type room struct {
	name string
	held *cgroup.Held

	// What follows is guarded by the launcher's mu.
	users  int // spawns on their way, for which the files stay open
	used   time.Time
	listed bool
	spares []*cgroup.HeldExec
	lent   map[string]*cgroup.HeldExec // to running commands, by name
}

// rooms are a launcher's.
type rooms struct {
	dirs cgroup.Dirs

	mu  sync.Mutex
	all map[string]*room
}

// enter finds a box's room, or makes it. Every enter wants a leave.
func (r *rooms) enter(box string) (*room, error) {
	r.mu.Lock()
	rm := r.all[box]
	if rm != nil {
		rm.users++
		r.mu.Unlock()
		return rm, nil
	}
	r.mu.Unlock()
	held, err := r.dirs.Hold(box)
	if err != nil {
		return nil, err
	}
	fresh := &room{name: box, held: held, users: 1}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch rm := r.all[box]; {
	case rm != nil: // another command was faster
		rm.users++
		held.Close()
		return rm, nil
	case len(r.all) < maxRooms:
		fresh.listed, fresh.lent = true, make(map[string]*cgroup.HeldExec)
		r.all[box] = fresh
	}
	return fresh, nil
}

func (r *rooms) leave(rm *room) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rm.users--
	rm.used = time.Now()
	r.closeIdle(rm)
}

// closeIdle closes a room that isn't listed any more once nobody is in it.
func (r *rooms) closeIdle(rm *room) {
	if !rm.listed && rm.users == 0 {
		rm.held.Close()
	}
}

// drop takes a room off the list. Its groups stay where they are; their names are returned, so that they can be removed.
func (r *rooms) drop(rm *room) (groups []string) {
	if !rm.listed {
		return nil
	}
	rm.listed = false
	delete(r.all, rm.name)
	for _, e := range rm.spares {
		groups = append(groups, e.Name)
		e.Close()
	}
	for _, e := range rm.lent {
		e.Close()
	}
	rm.spares, rm.lent = nil, nil
	r.closeIdle(rm)
	return groups
}

// take takes a spare group, nil if there is none. It counts as lent until it is given back.
func (r *rooms) take(rm *room) *cgroup.HeldExec {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(rm.spares) - 1
	if n < 0 {
		return nil
	}
	e := rm.spares[n]
	rm.spares = rm.spares[:n]
	rm.lent[e.Name] = e
	return e
}

// lentTo takes back what was lent under a name; nil if nothing was.
func (r *rooms) lentTo(box, name string) (e *cgroup.HeldExec, room bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rm := r.all[box]
	if rm == nil {
		return nil, false
	}
	e = rm.lent[name]
	delete(rm.lent, name)
	return e, len(rm.spares)+len(rm.lent) < maxSpares
}

// give adds an empty group to a box's spares and tells whether it was wanted.
func (r *rooms) give(box string, e *cgroup.HeldExec) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	rm := r.all[box]
	if rm == nil || len(rm.spares)+len(rm.lent) >= maxSpares {
		return false
	}
	rm.spares = append(rm.spares, e)
	return true
}

// Leave gives the group of an ended command back. With clean, the command's processes weren't killed by us, and the group
// may be the next command's. It fails with [cgroup.ErrPopulated] when processes live in it.
func (l *Launcher) Leave(box, group string, clean bool) error {
	r := &l.rooms
	e, wanted := r.lentTo(box, group)
	if e == nil && clean && wanted {
		e, _ = l.dirs.HoldExec(box, group) // it will be removed
	}
	if e == nil {
		return l.dirs.RemoveExec(box, group)
	}
	if empty, err := e.Empty(); clean && empty && err == nil && r.give(box, e) {
		return nil
	}
	e.Close()
	return l.dirs.RemoveExec(box, group)
}

// Rest closes the files of boxes in which nothing has been started for a while, and removes their spare groups.
func (l *Launcher) Rest() {
	r := &l.rooms
	type spare struct{ box, group string }
	var gone []spare
	r.mu.Lock()
	for _, rm := range r.all {
		if rm.users > 0 || time.Since(rm.used) < roomRest {
			continue
		}
		for _, g := range r.drop(rm) {
			gone = append(gone, spare{rm.name, g})
		}
	}
	r.mu.Unlock()
	for _, s := range gone {
		_ = l.dirs.RemoveExec(s.box, s.group) // the box may have ended
	}
}

// Forget closes the files of a box that has ended. Whoever removes the box removes the groups in it.
func (l *Launcher) Forget(box string) {
	l.rooms.mu.Lock()
	defer l.rooms.mu.Unlock()
	if rm := l.rooms.all[box]; rm != nil {
		l.rooms.drop(rm)
	}
}

// group finds a group for a command: a spare one, or a new one that the caller closes.
func (l *Launcher) group(rm *room, c *Command) (into int, done func(), err error) {
	if e := l.rooms.take(rm); e != nil {
		c.Group = e.Name
		return e.Dir(), func() {}, nil
	}
	if err := l.makeGroup(c); err != nil {
		return -1, nil, notStarted(c, "make the command's cgroup", err)
	}
	if into, err = l.dirs.OpenExec(c.Box.Name, c.Group); err != nil {
		l.ungroup(c)
		return -1, nil, notStarted(c, "open the command's cgroup", err)
	}
	return into, func() { _ = unix.Close(into) }, nil
}
