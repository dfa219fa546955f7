package files

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
)

const (
	watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_CLOSE_WRITE |
		unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_EXCL_UNLINK
	inboxSize  = 16 << 10
	largest    = unix.SizeofInotifyEvent + unix.NAME_MAX + 1 // the longest event
	pairTime   = 50 * time.Millisecond                       // how long the second half of a rename is waited for
	pairEvents = 64                                          // and how many events may come between the two
)

// notice is an event of the kernel's.
type notice struct {
	wd           int32
	mask, cookie uint32
	name         string
}

func (e *notice) dir() bool { return e.mask&unix.IN_ISDIR != 0 }

// inbox is what was read from inotify and not handled.
type inbox struct {
	buf  []byte
	from int // of buf: before it everything was handled
}

// parse reads the event at offset at and tells where the next one begins; ok is false at the end.
func (b *inbox) parse(at int) (e notice, next int, ok bool) {
	if len(b.buf)-at < unix.SizeofInotifyEvent {
		return e, at, false
	}
	p := b.buf[at:]
	e.wd, e.mask, e.cookie = int32(binary.NativeEndian.Uint32(p)), binary.NativeEndian.Uint32(p[4:]), binary.NativeEndian.Uint32(p[8:])
	end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(p[12:]))
	name, _, _ := bytes.Cut(p[unix.SizeofInotifyEvent:end], []byte{0})
	e.name = string(name)
	return e, at + end, true
}

// strike makes the event at offset at one that isn't seen again.
func (b *inbox) strike(at int) { binary.NativeEndian.PutUint32(b.buf[at+4:], 0) }

// second finds the other half of a rename among the events that are here, and strikes it out. It also tells how many
// events it has looked at.
func (b *inbox) second(cookie uint32) (e notice, found bool, seen int) {
	for at := b.from; ; seen++ {
		e, next, ok := b.parse(at)
		if !ok {
			return e, false, seen
		}
		if e.mask&unix.IN_MOVED_TO != 0 && e.cookie == cookie {
			b.strike(at)
			return e, true, seen
		}
		at = next
	}
}

// next is the next event, waited for until the given time.
func (w *watcher) next(until time.Time) (notice, error) {
	for {
		e, after, ok := w.in.parse(w.in.from)
		if !ok {
			if err := w.read(until); err != nil {
				return notice{}, err
			}
			continue
		}
		w.in.from = after
		if e.mask != 0 {
			return e, nil
		}
	}
}

// read reads more events behind those that are here.
func (w *watcher) read(until time.Time) error {
	b := &w.in
	if b.buf == nil {
		b.buf = make([]byte, 0, inboxSize)
	}
	b.buf = append(b.buf[:0], b.buf[b.from:]...)
	b.from = 0
	if err := w.readUntil(until); err != nil {
		return err
	}
	n, err := w.file.Read(b.buf[len(b.buf):cap(b.buf)])
	b.buf = b.buf[:len(b.buf)+max(n, 0)]
	if err == nil {
		return nil
	}
	if stopped := w.alive(); stopped != nil {
		return stopped
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return api.Errorf(api.CodeInternal, "read events: %v", err)
}

// pair finds the other half of a rename, which the kernel tells right after the first unless it is interrupted.
func (w *watcher) pair(cookie uint32) (notice, bool, error) {
	until := time.Now().Add(pairTime)
	for {
		e, found, seen := w.in.second(cookie)
		if found || seen >= pairEvents || cap(w.in.buf)-len(w.in.buf)+w.in.from < largest {
			return e, found, nil
		}
		err := w.read(until)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return e, false, nil
		}
		if err != nil {
			return e, false, err
		}
	}
}

// handle tells what has happened, and follows it with the tree. An error ends the watch.
func (w *watcher) handle(e *notice) error {
	if e.mask&unix.IN_Q_OVERFLOW != 0 {
		w.out.lose()
		return w.rescan()
	}
	n := w.tree.byWD[e.wd]
	switch {
	case n == nil:
		return nil // of a directory that isn't in the tree any more
	case n == w.tree.root && e.mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT|unix.IN_IGNORED) != 0:
		return errGone
	case e.mask&unix.IN_IGNORED != 0:
		w.tree.unmap(n)
		return nil
	case e.name == "" && n != w.tree.root:
		return nil // its parent tells it, too
	}
	switch {
	case e.mask&unix.IN_CREATE != 0:
		return w.appeared(n, e, false)
	case e.mask&unix.IN_DELETE != 0:
		w.tell(&api.FileEvent{Type: api.FileDeleted, Dir: e.dir()}, n, e.name)
		w.forget(n.children[e.name], false)
	case e.mask&unix.IN_MOVED_FROM != 0:
		return w.movedFrom(n, e)
	case e.mask&unix.IN_MOVED_TO != 0:
		return w.appeared(n, e, true)
	default:
		for _, as := range []struct {
			bit  uint32
			kind string
		}{{unix.IN_MODIFY, api.FileModified}, {unix.IN_ATTRIB, api.FileAttrib}, {unix.IN_CLOSE_WRITE, api.FileClosedWrite}} {
			if e.mask&as.bit != 0 {
				w.tell(&api.FileEvent{Type: as.kind, Dir: e.dir()}, n, e.name)
			}
		}
	}
	return nil
}

// appeared tells of a file that is there now, and watches it where it is a directory.
func (w *watcher) appeared(n *node, e *notice, moved bool) error {
	if c := n.children[e.name]; c != nil && e.dir() && c.wd != 0 {
		was := c.wd
		fd, no, err := w.add(c)
		closeFD(fd)
		if err != nil || no == 0 && c.wd == was {
			return err // it was told when it was found
		}
		w.forget(c, false)
	}
	created := w.line(&api.FileEvent{Type: api.FileCreated, Dir: e.dir(), Moved: moved}, n, e.name)
	if !e.dir() || !w.v.req.Recursive {
		w.out.add(created)
		return nil
	}
	c, err := w.child(n, e.name)
	if err != nil {
		w.out.add(created)
		return err
	}
	c.fresh, c.news = true, created
	return w.scan(c)
}

// movedFrom tells of a rename, or of a file that was moved out of what is watched.
func (w *watcher) movedFrom(n *node, e *notice) error {
	to, found, err := w.pair(e.cookie)
	if err != nil {
		return err
	}
	c := n.children[e.name]
	into := w.tree.byWD[to.wd]
	if !found || into == nil {
		w.tell(&api.FileEvent{Type: api.FileDeleted, Dir: e.dir(), Moved: true}, n, e.name)
		w.forget(c, true)
		return nil
	}
	told := api.FileEvent{Type: api.FileRenamed, Dir: e.dir()}
	told.SetTo(w.tree.path(into, to.name))
	w.tell(&told, n, e.name)
	if !e.dir() || !w.v.req.Recursive {
		return nil
	}
	w.forget(into.children[to.name], false)
	if c == nil {
		if c, err = w.child(into, to.name); err != nil {
			return err
		}
		c.fresh = true
		return w.scan(c)
	}
	c.detach()
	into.attach(c, to.name)
	return w.verify(c)
}
