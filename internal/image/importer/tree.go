package importer

import (
	"maps"
	"strings"

	"github.com/dsec-io/dsec/internal/image/erofs"
)

const (
	maxLinks = 40   // that the kernel would follow for one name
	maxPath  = 4000 // bytes of a name in an archive; the kernel's limit is 4,095 with what comes before
)

// entry is a name in a directory.
type entry struct {
	dir  *erofs.Node
	name string
}

// tree is a file system in memory, and what the layer that is being applied has put there.
type tree struct {
	root  *erofs.Node
	files int
	fresh map[entry]bool
}

func newTree() *tree {
	return &tree{root: newDir(), fresh: map[entry]bool{}}
}

// newDir is a directory that nobody has described.
func newDir() *erofs.Node {
	return &erofs.Node{Mode: erofs.Dir | 0o755, Children: map[string]*erofs.Node{}}
}

// nextLayer makes what is there what lower layers have put there.
func (t *tree) nextLayer() { clear(t.fresh) }

// put gives a node a name. A directory in a directory's place takes over what is in that.
func (t *tree) put(dir *erofs.Node, name string, n *erofs.Node) {
	if old := dir.Children[name]; old == nil {
		t.files++
	} else if old.IsDir() && n.IsDir() {
		children := old.Children
		*old = *n
		old.Children = children
		n = old
	}
	dir.Children[name] = n
	t.fresh[entry{dir, name}] = true
}

// resolve finds a directory, following links within the tree. With create, those that are missing are made.
func (t *tree) resolve(path string, create bool) (*erofs.Node, error) {
	at := []*erofs.Node{t.root} // the way from the root
	links := 0
	for rest := strings.Split(path, "/"); len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			at = at[:max(len(at)-1, 1)]
			continue
		}
		dir := at[len(at)-1]
		next := dir.Children[part]
		switch {
		case next == nil && create:
			next = newDir()
			t.put(dir, part, next)
		case next == nil:
			return nil, fault("%q: there is no %q", clip(path), clip(part))
		case next.Type() == erofs.Link:
			if links++; links > maxLinks {
				return nil, fault("%q: too many links on the way", clip(path))
			}
			if strings.HasPrefix(next.Target, "/") {
				at = at[:1]
			}
			rest = append(strings.Split(next.Target, "/"), rest...)
			continue
		case !next.IsDir():
			return nil, fault("%q: %q isn't a directory", clip(path), clip(part))
		}
		at = append(at, next)
	}
	return at[len(at)-1], nil
}

// find finds a file without following a link in its place; nil when there is none.
func (t *tree) find(path string) (*erofs.Node, error) {
	parent, name := split(path)
	dir, err := t.resolve(parent, false)
	if err != nil || name == "" {
		return dir, err
	}
	return dir.Children[name], nil
}

// regular finds a regular file, following links; nil when there is none.
func (t *tree) regular(path string) *erofs.Node {
	for range maxLinks {
		n, err := t.find(path)
		switch {
		case err != nil || n == nil:
			return nil
		case n.Type() == erofs.Regular:
			return n
		case n.Type() != erofs.Link:
			return nil
		}
		if parent, _ := split(path); !strings.HasPrefix(n.Target, "/") {
			path = parent + "/" + n.Target
		} else {
			path = n.Target
		}
	}
	return nil
}

// hide applies a whiteout: what lower layers have put there goes, what this one has stays.
func (t *tree) hide(dir *erofs.Node, name string) {
	n := dir.Children[name]
	if n == nil {
		return
	}
	if n.IsDir() {
		t.hideAll(n)
	}
	if !t.fresh[entry{dir, name}] && len(n.Children) == 0 {
		delete(dir.Children, name)
		t.files--
	}
}

// hideAll makes a directory opaque.
func (t *tree) hideAll(dir *erofs.Node) {
	for name := range maps.Clone(dir.Children) {
		t.hide(dir, name)
	}
}

// split splits a cleaned path into the parent and the name in it.
func split(path string) (parent, name string) {
	i := strings.LastIndexByte(path, '/')
	return path[:max(i, 0)], path[i+1:]
}

// clip keeps what is told of a foreign string short.
func clip(s string) string {
	if len(s) > 200 {
		return s[:200] + "…"
	}
	return s
}
