package files

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/spawn"
)

// remove removes the file. The root, and what leads to it, is never removed: nobody means that.
func (v *visitor) remove(ctx context.Context) error {
	path := v.req.Path
	_, base := split(path)
	if !named(base) {
		return refuseRoot(path)
	}
	self, target, root := v.probes.get(), v.probes.get(), v.probes.get()
	defer v.probes.put(self)
	defer v.probes.put(target)
	defer v.probes.put(root)
	err := v.visit(func(h *spawn.Script) {
		name := h.Bytes(path)
		self.ask(h, atFDCWD, name, unix.AT_SYMLINK_NOFOLLOW)
		target.ask(h, atFDCWD, name, 0)
		root.ask(h, atFDCWD, h.String("/"), 0)
	}, func() {})
	if err != nil {
		return err
	}
	if no := self.stat.Errno(); no != 0 {
		return fault("remove", path, no)
	}
	if target.stat.Errno() == 0 && sameFile(&target.st, &root.st) {
		return refuseRoot(path)
	}
	isDir := self.st.Mode&unix.S_IFMT == unix.S_IFDIR
	if isDir && v.req.Recursive {
		d, err := v.openDir(-1, path, path, unix.O_NOFOLLOW)
		if err != nil {
			return err
		}
		err = d.empty(ctx, 1)
		d.close()
		if err != nil {
			return err
		}
	}
	flags := uintptr(0)
	if isDir {
		flags = unix.AT_REMOVEDIR
	}
	var unlink *spawn.Step
	err = v.visit(func(h *spawn.Script) { unlink = h.Call(unix.SYS_UNLINKAT, atFDCWD, h.Bytes(path), flags).Ignore() }, func() {})
	if err == nil && unlink.Errno() != 0 {
		err = fault("remove", path, unlink.Errno())
	}
	return err
}

func refuseRoot(path []byte) error {
	return api.FieldError(api.CodeInvalid, "path", "name what is to go below it", "%s is or leads to the root, or names no entry: it isn't removed", shown(path))
}

func sameFile(a, b *unix.Statx_t) bool {
	return a.Ino == b.Ino && a.Dev_major == b.Dev_major && a.Dev_minor == b.Dev_minor
}

// empty removes everything in d. What is added meanwhile is removed too, or makes the directory stay.
func (d *directory) empty(ctx context.Context, depth int) error {
	if depth > maxDepth {
		return tooDeep(d.path)
	}
	for {
		b, err := d.next()
		if err != nil {
			return err
		}
		if len(b.names) == 0 {
			return nil
		}
		for len(b.names) > 0 {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := d.unlink(ctx, b, depth); err != nil {
				return err
			}
			if b, err = d.next(); err != nil {
				return err
			}
		}
		// Removing entries while reading may have skipped some.
		if err := d.rewind(); err != nil {
			return err
		}
	}
}

// unlink removes the entries of a batch.
func (d *directory) unlink(ctx context.Context, b *batch, depth int) error {
	var full []string
	err := d.v.visit(func(h *spawn.Script) {
		for i, name := range b.names {
			flags := uintptr(0)
			if b.stats[i].Mode&unix.S_IFMT == unix.S_IFDIR {
				flags = unix.AT_REMOVEDIR
			}
			b.steps[i] = h.Call(unix.SYS_UNLINKAT, uintptr(d.fd), h.String(name), flags).Ignore()
		}
	}, func() {})
	if err != nil {
		return err
	}
	for i, name := range b.names {
		switch no := b.steps[i].Errno(); no {
		case 0, unix.ENOENT:
		case unix.ENOTEMPTY, unix.EEXIST:
			full = append(full, name)
		default:
			return fault("remove", d.below(name), no)
		}
	}
	for _, name := range full {
		sub, err := d.v.openDir(d.fd, []byte(name), d.below(name), unix.O_NOFOLLOW)
		if err != nil {
			return err
		}
		err = sub.empty(ctx, depth+1)
		sub.close()
		if err != nil {
			return err
		}
		var unlink *spawn.Step
		err = d.v.visit(func(h *spawn.Script) {
			unlink = h.Call(unix.SYS_UNLINKAT, uintptr(d.fd), h.String(name), unix.AT_REMOVEDIR).Ignore()
		}, func() {})
		if err == nil && unlink.Errno() != 0 && unlink.Errno() != unix.ENOENT {
			err = fault("remove", sub.path, unlink.Errno())
		}
		if err != nil {
			return err
		}
	}
	return nil
}
