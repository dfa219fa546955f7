package files

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/chronus/launch"
	"github.com/dsec-io/dsec/internal/spawn"
)

// unpacker puts the entries of a tar stream below a directory. Every entry is made relative to its parent's descriptor,
// and parents are opened from the destination on without ever following a symlink or leaving it. Files are whole or not
// there; what was unpacked before an error stays, and the error says how much that is.
type unpacker struct {
	v       *visitor
	dest    int
	parent  int    // the directory of the last entry; dest where that is it
	at      string // its name in the archive
	in      *inflow
	entries int64
}

// untar unpacks what comes as stdin into the directory, which is made where it is missing.
func (v *visitor) untar(ctx context.Context, st *aether.Stream) error {
	v.req.Parents = true
	if _, err := v.mkdir(); err != nil {
		return err
	}
	u := &unpacker{v: v, dest: -1, parent: -1}
	defer u.close()
	var open *spawn.Step
	err := v.visit(func(h *spawn.Script) {
		open = h.Call(unix.SYS_OPENAT, atFDCWD, h.Bytes(v.req.Path), unix.O_PATH|unix.O_DIRECTORY|cloexec).Ignore()
	}, func() { u.dest = launch.Opened(open) })
	if err != nil {
		return err
	}
	if no := open.Errno(); no != 0 {
		return fault("open directory", v.req.Path, no)
	}
	u.parent = u.dest
	u.in = &inflow{ctx: ctx, st: st}
	defer u.in.release()
	if err := u.all(tar.NewReader(u.in)); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, u.in); err != nil { // the padding behind the archive's end
		return err
	}
	body, err := json.Marshal(api.Unpacked{Entries: u.entries})
	if err != nil {
		return err
	}
	return st.Reply(ctx, body)
}

func (u *unpacker) close() {
	if u.parent != u.dest {
		closeFD(u.parent)
	}
	closeFD(u.dest)
}

func (u *unpacker) all(r *tar.Reader) error {
	for {
		hdr, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		name := ""
		if err == nil {
			name = hdr.Name
			err = u.entry(hdr, r)
		} else {
			err = u.broken(err)
		}
		if err != nil {
			return u.declare(name, err)
		}
		u.entries++
	}
}

// broken is what the archive's reader said, whose errors are the archive's where they aren't those of the stream.
func (u *unpacker) broken(err error) error {
	if u.in.failed != nil && errors.Is(err, u.in.failed) {
		return err
	}
	return api.FieldError(api.CodeInvalid, "body", "send a tar stream", "not a whole tar stream: %v", err)
}

// declare says at which entry unpacking ended and what is in place.
func (u *unpacker) declare(name string, err error) error {
	typed, ok := errors.AsType[*api.Error](err)
	if !ok {
		return err // of the stream, or of the sandbox
	}
	e := *typed
	if name != "" {
		e.Detail = "entry " + shown([]byte(name)) + ": " + e.Detail
	}
	n, err := json.Marshal(u.entries)
	if err == nil {
		e.Detail += "; " + string(n) + " entries before it are in place"
	}
	return &e
}

// parts are the names of an entry's path below the destination. A leading slash is dropped, as tar does.
func parts(name string) ([]string, error) {
	var out []string
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == ".":
		case part == "..":
			return nil, api.FieldError(api.CodeInvalid, "body", "", "names with .. leave the destination")
		case strings.IndexByte(part, 0) >= 0:
			return nil, api.FieldError(api.CodeInvalid, "body", "", "the name has a NUL byte")
		default:
			out = append(out, part)
		}
	}
	if len(out) > maxDepth {
		return nil, tooDeep([]byte(name))
	}
	return out, nil
}

func (u *unpacker) entry(hdr *tar.Header, r io.Reader) error {
	path, err := parts(hdr.Name)
	if err != nil {
		return err
	}
	if len(path) == 0 {
		return nil // the destination itself, which stays as it is
	}
	last := len(path) - 1
	if err := u.enter(path[:last]); err != nil {
		return err
	}
	switch base := path[last]; hdr.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		return u.file(hdr, base, r)
	case tar.TypeDir:
		return u.dir(hdr, base)
	case tar.TypeSymlink:
		return u.symlink(hdr, base)
	case tar.TypeLink:
		return u.link(hdr, base)
	default:
		return api.FieldError(api.CodeInvalid, "body", "files, directories and links can be unpacked", "entries of type %q are refused", hdr.Typeflag)
	}
}

// enter makes the directory of this name in the archive the parent.
func (u *unpacker) enter(path []string) error {
	at := strings.Join(path, "/")
	if at == u.at {
		return nil
	}
	fd, err := u.walk(path, true)
	if err != nil {
		return err
	}
	if u.parent != u.dest {
		closeFD(u.parent)
	}
	u.parent, u.at = fd, at
	return nil
}

// walk opens the directory at path below the destination; without names that is the destination itself. With missing,
// directories that aren't there are made.
func (u *unpacker) walk(path []string, missing bool) (int, error) {
	if len(path) == 0 {
		return u.dest, nil
	}
	opens := make([]*spawn.Step, len(path))
	fds := make([]int, len(path))
	err := u.v.visit(func(h *spawn.Script) {
		how := h.Word(unix.O_PATH|unix.O_DIRECTORY|cloexec, 0, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
		for i, part := range path {
			name := h.String(part)
			dir := uintptr(u.dest)
			if i > 0 {
				dir = 0
			}
			var mkdir *spawn.Step
			if missing {
				mkdir = h.Call(unix.SYS_MKDIRAT, dir, name, dirMode).Ignore()
			}
			opens[i] = h.Call(unix.SYS_OPENAT2, dir, name, how, 24).Ignore()
			if i > 0 {
				opens[i-1].SaveTo(opens[i], 0)
				if missing {
					opens[i-1].SaveTo(mkdir, 0)
				}
			}
		}
	}, func() {
		for i, st := range opens {
			fds[i] = launch.Opened(st)
		}
	})
	last := len(fds) - 1
	for _, fd := range fds[:last] {
		closeFD(fd)
	}
	if err != nil {
		closeFD(fds[last])
		return -1, err
	}
	for _, st := range opens {
		if no := st.Errno(); no != 0 {
			closeFD(fds[last])
			return -1, fault("enter", []byte(strings.Join(path, "/")), no)
		}
	}
	return fds[last], nil
}

// result visits with steps that may fail by what they are asked for, and says which did first. Steps that return nil
// don't matter.
func (u *unpacker) result(doing, name string, build func(h *spawn.Script) []*spawn.Step) error {
	var steps []*spawn.Step
	err := u.v.visit(func(h *spawn.Script) { steps = build(h) }, func() {})
	for _, st := range steps {
		if err == nil && st.Errno() != 0 {
			err = fault(doing, []byte(name), st.Errno())
		}
	}
	return err
}

const modeBits = 0o7777

func (u *unpacker) dir(hdr *tar.Header, base string) error {
	mode := uintptr(hdr.Mode & modeBits)
	if u.v.who.UID != 0 {
		mode |= 0o700 // what follows has to be put into it
	}
	made := true
	err := u.result("make directory", base, func(h *spawn.Script) []*spawn.Step {
		st := h.Call(unix.SYS_MKDIRAT, uintptr(u.parent), h.String(base), mode).Ignore()
		return []*spawn.Step{st}
	})
	if api.IsCode(err, api.CodeExists) {
		made, err = false, nil
	}
	if err != nil || made {
		return err
	}
	// One that is there stays, with its owner and mode; a symlink isn't one.
	p := u.v.probes.get()
	defer u.v.probes.put(p)
	err = u.v.visit(func(h *spawn.Script) { p.ask(h, uintptr(u.parent), h.String(base), unix.AT_SYMLINK_NOFOLLOW) }, func() {})
	switch {
	case err != nil:
		return err
	case p.stat.Errno() != 0:
		return fault("stat", []byte(base), p.stat.Errno())
	case p.st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fault("make directory", []byte(base), unix.ENOTDIR)
	}
	return nil
}

func (u *unpacker) symlink(hdr *tar.Header, base string) error {
	if hdr.Linkname == "" || len(hdr.Linkname) > maxPath || strings.IndexByte(hdr.Linkname, 0) >= 0 {
		return api.FieldError(api.CodeInvalid, "body", "", "a symlink can't point at %q", shown([]byte(hdr.Linkname)))
	}
	return u.result("make symlink", base, func(h *spawn.Script) []*spawn.Step {
		name := h.String(base)
		h.Call(unix.SYS_UNLINKAT, uintptr(u.parent), name, 0).Ignore()
		return []*spawn.Step{h.Call(unix.SYS_SYMLINKAT, h.String(hdr.Linkname), uintptr(u.parent), name).Ignore()}
	})
}

// link makes a hard link to an entry of the same archive, or to what is below the destination already.
func (u *unpacker) link(hdr *tar.Header, base string) error {
	path, err := parts(hdr.Linkname)
	if err != nil {
		return err
	}
	if len(path) == 0 {
		return api.FieldError(api.CodeInvalid, "body", "", "a hard link can't point at %q", shown([]byte(hdr.Linkname)))
	}
	last := len(path) - 1
	dir, err := u.walk(path[:last], false)
	if err != nil {
		return err
	}
	if dir != u.dest {
		defer closeFD(dir)
	}
	return u.result("make link", base, func(h *spawn.Script) []*spawn.Step {
		temp, name := h.String(".dsec-"+rand.Text()), h.String(base)
		link := h.Call(unix.SYS_LINKAT, uintptr(dir), h.String(path[last]), uintptr(u.parent), temp, 0).Ignore()
		move := h.Call(unix.SYS_RENAMEAT2, uintptr(u.parent), temp, uintptr(u.parent), name, 0).Ignore()
		h.Call(unix.SYS_UNLINKAT, uintptr(u.parent), temp, 0).Ignore() // rename leaves it when both are one file
		return []*spawn.Step{link, move}
	})
}

// file makes a regular file: beside its place first.
func (u *unpacker) file(hdr *tar.Header, base string, r io.Reader) error {
	temp := ".dsec-" + rand.Text()
	fd := -1
	var create *spawn.Step
	done := u.v.place.Keep([]byte(string(u.v.req.Path) + "/" + u.at + "/" + temp))
	gone := true
	defer func() { done(gone) }()
	err := u.v.visit(func(h *spawn.Script) {
		const flags = unix.O_CREAT | unix.O_EXCL | unix.O_WRONLY | unix.O_NOFOLLOW | cloexec
		create = h.Call(unix.SYS_OPENAT, uintptr(u.parent), h.String(temp), flags, 0o600).Ignore()
	}, func() { fd = launch.Opened(create) })
	defer func() { closeFD(fd) }()
	if err == nil && create.Errno() != 0 {
		err = fault("create", []byte(base), create.Errno())
	}
	if err != nil {
		return err
	}
	if err = u.copy(fd, base, r); err == nil {
		err = u.result("create", base, func(h *spawn.Script) []*spawn.Step {
			when := h.Word(0, unix.UTIME_OMIT, uint64(hdr.ModTime.Unix()), uint64(hdr.ModTime.Nanosecond()))
			mode := h.Call(unix.SYS_FCHMOD, uintptr(fd), uintptr(hdr.Mode&modeBits)).Ignore()
			h.Call(unix.SYS_UTIMENSAT, uintptr(fd), 0, when, 0).Ignore()
			move := h.Call(unix.SYS_RENAMEAT2, uintptr(u.parent), h.String(temp), uintptr(u.parent), h.String(base), 0).Ignore()
			return []*spawn.Step{mode, move}
		})
	}
	if err != nil {
		gone = nil == u.result("remove", base, func(h *spawn.Script) []*spawn.Step { // the first error counts
			h.Call(unix.SYS_UNLINKAT, uintptr(u.parent), h.String(temp), 0).Ignore()
			return nil
		})
	}
	return err
}

// copy writes the content. Where it is nothing but zeros the file gets a hole: an archive that says in a few bytes that a
// file has a terabyte of them doesn't fill the disk.
func (u *unpacker) copy(fd int, base string, r io.Reader) error {
	buf := u.v.chunks.Get().(*[]byte) // the pool holds nothing else
	defer u.v.chunks.Put(buf)
	hole := int64(0) // at the end of what is there
	for {
		n, err := r.Read(*buf)
		if isZero((*buf)[:n]) {
			hole += int64(n)
		} else if werr := writeBehind(fd, &hole, (*buf)[:n]); werr != nil {
			return fault("write", []byte(base), werr)
		}
		if errors.Is(err, io.EOF) {
			if err := endHole(fd, hole); err != nil {
				return fault("write", []byte(base), err)
			}
			return nil
		}
		if err != nil {
			return u.broken(err)
		}
	}
}

func isZero(p []byte) bool { return len(p) > 0 && p[0] == 0 && bytes.Equal(p[1:], p[:len(p)-1]) }

// writeBehind writes p behind a hole, which is none afterwards.
func writeBehind(fd int, hole *int64, p []byte) error {
	if *hole > 0 {
		if _, err := unix.Seek(fd, *hole, unix.SEEK_CUR); err != nil {
			return err
		}
		*hole = 0
	}
	return writeAll(fd, p)
}

// endHole ends a file in a hole.
func endHole(fd int, hole int64) error {
	if hole == 0 {
		return nil
	}
	at, err := unix.Seek(fd, hole, unix.SEEK_CUR)
	if err != nil {
		return err
	}
	return unix.Ftruncate(fd, at)
}
