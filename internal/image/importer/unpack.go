package importer

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"path"
	"strings"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image/erofs"
)

const (
	maxID     = 65_535 // the ids that a sandbox has
	nobody    = 65_534
	whiteout  = ".wh."
	opaque    = ".wh..wh..opq"
	aufsNotes = ".wh..wh." // other notes of a file system that nobody has any more
	paxXattr  = "SCHILY.xattr."
)

// unpacker reads tars into a tree.
type unpacker struct {
	ctx    context.Context //nolint:containedctx // of the one import that it serves
	cfg    Config
	spool  *spool
	tree   *tree
	squash bool
	left   int64 // bytes that may still be unpacked
	tick   func(files int)
}

// asTyped is the client's error in a chain, or nil.
func asTyped(err error) *api.Error {
	e, _ := errors.AsType[*api.Error](err)
	return e
}

// tar applies one tar. In a layer, names that begin with .wh. take away what lower layers have.
func (u *unpacker) tar(r io.Reader, layer bool) error {
	u.tree.nextLayer()
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := u.entry(h, tr, layer); err != nil {
			return err
		}
		if u.tree.files > u.cfg.MaxFiles {
			return tooLarge("the archive has more than %d files", u.cfg.MaxFiles)
		}
		u.tick(u.tree.files)
	}
	// What follows the end is padding; what compresses has its checksum behind it.
	_, err := io.Copy(io.Discard, r)
	return err
}

func (u *unpacker) entry(h *tar.Header, r io.Reader, layer bool) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := cleanName(h.Name)
	if err != nil {
		return err
	}
	n, err := u.node(h, name)
	if err != nil {
		return err
	}
	parent, base := split(name)
	if layer && strings.HasPrefix(base, whiteout) {
		return u.white(parent, base)
	}
	if base == "" {
		return u.setRoot(h, n)
	}
	dir, err := u.tree.resolve(parent, true)
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeLink:
		if n, err = u.linked(h, name); err != nil {
			return err
		}
	case tar.TypeReg, tar.TypeRegA, tar.TypeCont, tar.TypeGNUSparse: //nolint:staticcheck // old archives have type A
		if n.Offset, err = u.spool.add(r, h.Size); err != nil {
			return err
		}
		n.Size = h.Size
	}
	u.tree.put(dir, base, n)
	return nil
}

// setRoot takes what an archive says of the root itself.
func (u *unpacker) setRoot(h *tar.Header, n *erofs.Node) error {
	if !n.IsDir() {
		return fault("%q is the root and not a directory", clip(h.Name))
	}
	n.Children = u.tree.root.Children
	*u.tree.root = *n
	return nil
}

// white applies a whiteout. Where there is nothing to hide it hides nothing.
func (u *unpacker) white(parent, base string) error {
	dir, err := u.tree.resolve(parent, false)
	switch {
	case err != nil: // the folder isn't there either
	case base == opaque:
		u.tree.hideAll(dir)
	case strings.HasPrefix(base, aufsNotes):
	case base == whiteout || base == whiteout+"." || base == whiteout+"..":
		return fault("%q hides nothing that has a name", clip(parent+"/"+base))
	default:
		u.tree.hide(dir, strings.TrimPrefix(base, whiteout))
	}
	return nil
}

// linked finds what a hard link leads to.
func (u *unpacker) linked(h *tar.Header, name string) (*erofs.Node, error) {
	target, err := cleanName(h.Linkname)
	if err != nil {
		return nil, err
	}
	n, err := u.tree.find(target)
	switch {
	case err != nil:
		return nil, err
	case n == nil:
		return nil, fault("%q is a hard link to %q, which isn't there", clip(name), clip(target))
	case n.IsDir():
		return nil, fault("%q is a hard link to %q, which is a directory", clip(name), clip(target))
	}
	return n, nil
}

// cleanName makes a name in an archive one from the root.
func cleanName(name string) (string, error) {
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "..":
			return "", fault("%q leads upwards", clip(name))
		case len(part) > erofs.MaxName:
			return "", fault("%q has a part of more than %d bytes", clip(name), erofs.MaxName)
		}
	}
	if len(name) > maxPath || strings.ContainsRune(name, 0) {
		return "", fault("%q isn't a name of at most %d bytes", clip(name), maxPath)
	}
	return strings.TrimPrefix(path.Clean("/"+name), "/"), nil
}

// node makes what a header describes, but for what a regular file holds.
func (u *unpacker) node(h *tar.Header, name string) (*erofs.Node, error) {
	n := &erofs.Node{Mode: uint32(h.Mode) & 0o7777}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeRegA, tar.TypeCont, tar.TypeGNUSparse: //nolint:staticcheck // old archives have type A
		n.Mode |= erofs.Regular
	case tar.TypeDir:
		n.Mode |= erofs.Dir
		n.Children = map[string]*erofs.Node{}
	case tar.TypeSymlink:
		n.Mode = erofs.Link | 0o777
		n.Target = h.Linkname
		if n.Target == "" || len(n.Target) > erofs.MaxTarget || strings.ContainsRune(n.Target, 0) {
			return nil, fault("%q links to a name that no file can have", clip(name))
		}
	case tar.TypeFifo:
		n.Mode |= erofs.FIFO
	case tar.TypeLink:
		return n, nil // all else is the other name's
	case tar.TypeChar, tar.TypeBlock:
		return nil, refusal("pack the tree without it: a sandbox has devices of its own in /dev", "%q is a device", clip(name))
	default:
		return nil, refusal("", "%q is of type %q, which an image can't have", clip(name), string(h.Typeflag))
	}
	if !h.ModTime.IsZero() && h.ModTime.Before(time.Unix(1<<34, 0)) && h.ModTime.After(time.Unix(-1<<34, 0)) {
		n.Sec, n.Nsec = h.ModTime.Unix(), uint32(h.ModTime.Nanosecond())
	}
	if err := setXattrs(n, h, name); err != nil {
		return nil, err
	}
	return n, u.own(n, h, name)
}

// own sets the owner.
func (u *unpacker) own(n *erofs.Node, h *tar.Header, name string) error {
	for _, id := range []int{h.Uid, h.Gid} {
		if 0 <= id && id <= maxID {
			continue
		}
		if !u.squash {
			return refusal("say squash to give such files to nobody (65534)", "%q belongs to id %d, above %d", clip(name), id, maxID)
		}
		if n.Type() != erofs.Dir {
			n.Mode &^= 0o6000 // they would be somebody else's
		}
		delete(n.Xattrs, capability)
	}
	n.UID, n.GID = squashed(h.Uid), squashed(h.Gid)
	return nil
}

func squashed(id int) uint32 {
	if id < 0 || id > maxID {
		return nobody
	}
	return uint32(id)
}

// capability is the attribute of file capabilities.
const capability = "security.capability"

func setXattrs(n *erofs.Node, h *tar.Header, name string) error {
	total := 0
	for key, value := range h.PAXRecords {
		attr, ok := strings.CutPrefix(key, paxXattr)
		if !ok {
			continue
		}
		total += len(attr) + len(value) + 8
		switch {
		case strings.HasPrefix(attr, "trusted.overlay.") || strings.HasPrefix(attr, "user.overlay."):
			return refusal("", "%q has attribute %q, which is a layer's own", clip(name), clip(attr))
		case attr == capability && len(value) != 20 && len(value) != 24:
			return fault("%q has capabilities of %d bytes", clip(name), len(value))
		case total > erofs.MaxXattrs-1024:
			return tooLarge("%q has more than %d bytes of attributes", clip(name), erofs.MaxXattrs-1024)
		}
		if err := erofs.CheckXattr(attr, value); err != nil {
			return refusal("", "%q: %v", clip(name), err)
		}
		if n.Xattrs == nil {
			n.Xattrs = map[string]string{}
		}
		n.Xattrs[attr] = value
	}
	return nil
}
