package files

import (
	"bytes"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/chronus/launch"
	"github.com/dsec-io/dsec/internal/spawn"
)

// node is a directory below what is watched, or that itself. Paths aren't kept, so a rename costs one node.
type node struct {
	parent   *node
	name     string
	children map[string]*node // directories; nil: none
	wd       int32            // of inotify; 0: none
	scan     uint32           // the last one that found it
	fresh    bool             // what is in it hasn't been told
	news     []byte           // its creation, which is told once it is watched and was looked into
	skipped  api.Code         // why it isn't watched
}

func (n *node) attach(c *node, name string) {
	c.parent, c.name = n, name
	if n.children == nil {
		n.children = map[string]*node{}
	}
	n.children[name] = c
}

func (n *node) detach() {
	if n.parent != nil && n.parent.children[n.name] == n {
		delete(n.parent.children, n.name)
	}
	n.parent = nil
}

// tree is what is watched. The kernel's number for a directory stays with it wherever it is moved.
type tree struct {
	root     *node
	prefix   []byte // the root's path, without a slash at the end
	byWD     map[int32]*node
	dir      bool   // the root is a directory
	dev, ino uint64 // of the root
	scans    uint32
	torn     bool // a scan missed a directory that went while it was looked for: it may have been moved
	counted  int  // nodes, as far as they have been counted
}

// trimSlashes is path without slashes at its end: empty for the root directory.
func trimSlashes(path []byte) []byte { return bytes.TrimRight(path, "/") }

// rel is n's path below the root, with a slash before each part.
func (t *tree) rel(n *node) []byte {
	if n.parent == nil {
		return nil
	}
	return append(append(t.rel(n.parent), '/'), n.name...)
}

// path is the path of the file of this name in n, or that of n itself.
func (t *tree) path(n *node, name string) string {
	p := append(bytes.Clone(t.prefix), t.rel(n)...)
	if name != "" {
		p = append(append(p, '/'), name...)
	}
	if len(p) == 0 {
		return "/"
	}
	return string(p)
}

// each calls fn with every node.
func (t *tree) each(fn func(*node) error) error {
	work := []*node{t.root}
	for len(work) > 0 {
		n := work[len(work)-1]
		work = work[:len(work)-1]
		if err := fn(n); err != nil {
			return err
		}
		for _, c := range n.children {
			work = append(work, c)
		}
	}
	return nil
}

// mapTo gives n the kernel's number wd, which may have been that of a path that leads elsewhere now.
func (t *tree) mapTo(n *node, wd int32) {
	if n.wd != wd {
		t.unmap(n)
	}
	if old := t.byWD[wd]; old != nil {
		old.wd = 0
	}
	n.wd = wd
	t.byWD[wd] = n
}

func (t *tree) unmap(n *node) {
	if n.wd != 0 && t.byWD[n.wd] == n {
		delete(t.byWD, n.wd)
	}
	n.wd = 0
}

// child is n's directory of this name, made where it isn't known.
func (w *watcher) child(n *node, name string) (*node, error) {
	if c := n.children[name]; c != nil {
		return c, nil
	}
	if err := w.count(1); err != nil {
		return nil, err
	}
	c := new(node)
	n.attach(c, name)
	return c, nil
}

// forget takes a directory and all below it out of the tree. Those that live on elsewhere are to be unwatched.
func (w *watcher) forget(n *node, unwatch bool) {
	if n == nil {
		return
	}
	n.detach()
	gone := tree{root: n}
	_ = gone.each(func(c *node) error {
		if unwatch && c.wd != 0 && w.tree.byWD[c.wd] == c {
			_, _ = unix.InotifyRmWatch(w.fd, uint32(c.wd)) // it may have ended by itself
		}
		w.tree.unmap(c)
		return w.count(-1)
	})
}

// rescan finds the directories that appeared, moved and went while events were lost.
func (w *watcher) rescan() error {
	if !w.v.req.Recursive || !w.tree.dir {
		return nil
	}
	w.tree.scans++
	w.tree.torn = false
	return w.scan(w.tree.root)
}

// scan watches a directory and all below it, and then looks what is in them: what appears meanwhile is seen by one or by
// both. What is in fresh directories is told.
func (w *watcher) scan(n *node) error {
	d, _ := w.v.lists.Get().(*directory)
	if d == nil {
		d = new(directory)
	}
	defer w.v.lists.Put(d)
	for work := []*node{n}; len(work) > 0; {
		n, work = work[0], work[1:]
		if n.parent == nil && n != w.tree.root {
			continue // has been forgotten
		}
		if err := w.alive(); err != nil {
			return err
		}
		fd, err := w.enter(n)
		if err != nil {
			return err
		}
		if fd < 0 {
			continue
		}
		d.v, d.fd, d.path, d.rest = w.v, fd, []byte(w.tree.path(n, "")), d.rest[:0]
		work, err = w.listInto(n, d, work)
		d.close()
		d.v = nil
		if err != nil {
			return err
		}
	}
	return nil
}

// listInto looks what is in n and adds the directories to work.
func (w *watcher) listInto(n *node, d *directory, work []*node) ([]*node, error) {
	defer w.announce(n)
	for {
		b, err := d.next()
		if err != nil {
			return work, err
		}
		if len(b.names) == 0 {
			break
		}
		w.announce(n)
		for i, name := range b.names {
			dir := b.stats[i].Mode&unix.S_IFMT == unix.S_IFDIR
			known := n.children[name] != nil
			if n.fresh || dir && !known && w.ready {
				w.tell(&api.FileEvent{Type: api.FileCreated, Dir: dir}, n, name)
			}
			if !dir {
				continue
			}
			c, err := w.child(n, name)
			if err != nil {
				return work, err
			}
			c.scan, c.fresh = w.tree.scans, !known && w.ready
			work = append(work, c)
		}
	}
	n.fresh = false
	for _, c := range n.children {
		if c.scan != w.tree.scans {
			w.forget(c, true)
		}
	}
	return work, nil
}

// announce tells that n was created. Who acts on it must find n watched, else what they do is missed, and looked into,
// else it is told twice.
func (w *watcher) announce(n *node) {
	if n.news != nil {
		w.out.add(n.news)
		n.news = nil
	}
}

// enter watches the directory n and opens it for listing. The descriptor is -1 where it has gone, or can't be watched by
// the user who asks, which is told.
func (w *watcher) enter(n *node) (int, error) {
	fd, no, err := w.add(n)
	if err != nil || no != 0 {
		w.announce(n)
	}
	switch {
	case err != nil:
		return -1, err
	case no == 0:
		return fd, nil
	case no == unix.ENOENT, no == unix.ENOTDIR, no == unix.ELOOP:
		if n == w.tree.root {
			return -1, errGone
		}
		w.tree.torn = true
		w.forget(n, true)
		return -1, nil
	case no == unix.ENOSPC:
		return -1, tooManyWatches()
	case no == unix.EACCES, no == unix.EPERM, no == unix.EXDEV, no == unix.ENAMETOOLONG:
		again := n.skipped != ""
		n.skipped = api.AsError(fault("watch", nil, no)).Code
		n.fresh = false
		if w.ready && !again {
			w.tell(&api.FileEvent{Type: api.FileSkipped, Dir: true, Reason: n.skipped}, n, "")
		}
		return -1, nil
	default:
		return -1, fault("watch", []byte(w.tree.path(n, "")), no)
	}
}

// add asks a helper to watch the directory n. It is found by its path from the root, never by way of a symlink or
// another mount, and watched as the very one that the descriptor is of.
func (w *watcher) add(n *node) (fd int, no unix.Errno, err error) {
	p := w.v.probes.get()
	defer w.v.probes.put(p)
	var root, dir, enter, watch *spawn.Step
	rootFD, fd := -1, -1
	err = w.v.visit(func(h *spawn.Script) {
		const how = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NONBLOCK | cloexec
		rel := []byte(".")
		if n != w.tree.root {
			rel = w.tree.rel(n)[1:]
		}
		root = h.Call(unix.SYS_OPENAT, atFDCWD, h.Bytes(w.v.req.Path), unix.O_PATH|unix.O_DIRECTORY|cloexec)
		p.ask(h, 0, h.String(""), unix.AT_EMPTY_PATH)
		dir = h.Call(unix.SYS_OPENAT2, 0, h.Bytes(rel), h.Word(how, 0, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_XDEV), 24)
		root.SaveTo(p.stat, 0).SaveTo(dir, 0)
		enter = h.Call(unix.SYS_FCHDIR, 0)
		dir.SaveTo(enter, 0)
		watch = h.Call(unix.SYS_INOTIFY_ADD_WATCH, uintptr(w.fd), h.String("."), watchMask|unix.IN_ONLYDIR).Ignore()
		// Without the directory "." is another one: what follows a failure is left out.
		end := h.Call(unix.SYS_GETPID)
		root.Else(end)
		dir.Else(end)
		enter.Else(end)
	}, func() { rootFD, fd = launch.Opened(root), launch.Opened(dir) })
	closeFD(rootFD)
	for _, st := range []*spawn.Step{root, dir, enter, watch} {
		if no == 0 {
			no = st.Errno()
		}
	}
	switch {
	case err != nil:
	case root.Errno() == unix.ENOENT, root.Errno() == unix.ENOTDIR, rootFD >= 0 && !w.isRoot(p):
		err = errGone
	case no == 0:
		w.tree.mapTo(n, int32(watch.Result()))
		n.skipped = ""
		return fd, 0, nil
	}
	closeFD(fd)
	return -1, no, err
}

// isRoot tells whether the probe saw what is watched.
func (w *watcher) isRoot(p *probe) bool {
	return p.stat.Errno() == 0 && p.st.Ino == w.tree.ino && uint64(p.st.Dev_major)<<32|uint64(p.st.Dev_minor) == w.tree.dev
}

func tooManyWatches() error {
	return api.FieldError(api.CodeQuota, "path", "watch a smaller tree, or end a program that watches files",
		"the sandbox's user has as many inotify watches as user.max_inotify_watches allows")
}

// addRoot watches what the path leads to.
func (w *watcher) addRoot() error {
	p := w.v.probes.get()
	defer w.v.probes.put(p)
	var watch *spawn.Step
	err := w.v.visit(func(h *spawn.Script) {
		path := h.Bytes(w.v.req.Path)
		watch = h.Call(unix.SYS_INOTIFY_ADD_WATCH, uintptr(w.fd), path, watchMask).Ignore()
		p.ask(h, atFDCWD, path, 0)
	}, func() {})
	switch {
	case err != nil:
		return err
	case watch.Errno() == unix.ENOSPC:
		return tooManyWatches()
	case watch.Errno() != 0:
		return fault("watch", w.v.req.Path, watch.Errno())
	case p.stat.Errno() != 0:
		return fault("watch", w.v.req.Path, p.stat.Errno())
	}
	w.tree.dev, w.tree.ino = uint64(p.st.Dev_major)<<32|uint64(p.st.Dev_minor), p.st.Ino
	w.tree.mapTo(w.tree.root, int32(watch.Result()))
	w.tree.dir = p.st.Mode&unix.S_IFMT == unix.S_IFDIR
	return nil
}

// look tells whether the path still leads to what is watched. The kernel says so by itself only when nothing has it
// open any more, and never when a directory above is moved.
func (w *watcher) look() error {
	p := w.v.probes.get()
	defer w.v.probes.put(p)
	err := w.v.visit(func(h *spawn.Script) { p.ask(h, atFDCWD, h.Bytes(w.v.req.Path), 0) }, func() {})
	switch no := p.stat.Errno(); {
	case err != nil:
		return err
	case no == unix.EACCES:
		return nil // a directory above was closed to the user, who watched before
	case no != 0, !w.isRoot(p):
		return errGone
	}
	return nil
}

// verify makes sure that a directory that was moved is the one that is known by its path: when things are moved faster
// than events come, it may be another.
func (w *watcher) verify(n *node) error {
	was := n.wd
	fd, no, err := w.add(n)
	closeFD(fd)
	if err != nil || no != 0 && !errors.Is(no, unix.ENOENT) && !errors.Is(no, unix.ENOTDIR) {
		if err == nil {
			_, err = w.enter(n)
		}
		return err
	}
	if w.tree.torn || no == 0 && n.wd != was {
		return w.rescan()
	}
	return nil
}
