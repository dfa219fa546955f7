package files

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/chronus/launch"
	"github.com/dsec-io/dsec/internal/spawn"
)

// read answers with what the file is, and then its content.
func (v *visitor) read(ctx context.Context, st *aether.Stream) error {
	r := &v.req
	p := v.probes.get()
	defer v.probes.put(p)
	fd, _, err := v.openRegular()
	if err != nil {
		return err
	}
	defer closeFD(fd)
	err = v.visit(func(h *spawn.Script) { p.ask(h, uintptr(fd), h.String(""), unix.AT_EMPTY_PATH) }, func() {})
	if err != nil {
		return err
	}
	if no := p.stat.Errno(); no != 0 {
		return fault("stat", r.Path, no)
	}
	_, base := split(r.Path)
	info := p.info(string(base))
	left := info.Size - r.Offset
	switch {
	case left < 0:
		return api.FieldError(api.CodeRange, "offset", "", "%s has %d bytes, the range begins at %d", shown(r.Path), info.Size, r.Offset)
	case r.Length > 0:
		left = min(left, r.Length)
	}
	if r.MaxBytes > 0 && left > r.MaxBytes {
		return api.FieldError(api.CodeTooLarge, "path", "read it by ranges", "%s has %d bytes, the limit is %d", shown(r.Path), left, r.MaxBytes)
	}
	head, err := json.Marshal(info)
	if err != nil {
		return err
	}
	if err := st.Send(ctx, aether.MsgReply, head); err != nil {
		return err
	}
	// Files of /proc have no size but content.
	if info.Size == 0 && r.Length == 0 {
		left = unsized
	}
	if err := v.pour(ctx, st, fd, left); err != nil {
		return err
	}
	if err := st.CloseWrite(aether.Stdout); err != nil {
		return err
	}
	return st.Close()
}

// unsized bounds what is read of a file that doesn't say how long it is.
const unsized = 64 << 20

// pour sends at most left bytes from the offset on. A file that became shorter meanwhile ends early, and the reader sees
// that it did.
func (v *visitor) pour(ctx context.Context, st *aether.Stream, fd int, left int64) error {
	buf := v.chunks.Get().(*[]byte) // the pool holds nothing else
	defer v.chunks.Put(buf)
	for at := v.req.Offset; left > 0; {
		n, err := unix.Pread(fd, (*buf)[:min(left, chunkSize)], at)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fault("read", v.req.Path, err)
		case n == 0:
			return nil
		}
		if err := st.Write(ctx, aether.Stdout, (*buf)[:n]); err != nil {
			return err
		}
		at += int64(n)
		left -= int64(n)
	}
	return nil
}

// draft is a file that isn't in its place yet.
type draft struct {
	v         *visitor
	dir, file int // descriptors; -1: none
	temp      string
	base      []byte
	mode      uint32
	done      func(gone bool) // ends what Place.Keep began; nil: it didn't
}

// maxLinks is how many symlinks at the end of a path are followed, as the kernel does.
const maxLinks = 40

// write takes the content into a new file beside the old one, and puts it into its place when it is complete.
func (v *visitor) write(ctx context.Context, st *aether.Stream) error {
	d, err := v.begin()
	if err != nil {
		return err
	}
	defer d.drop()
	if err := v.fill(ctx, st, d.file); err != nil {
		return err
	}
	info, err := d.finish()
	if err != nil {
		return err
	}
	body, err := json.Marshal(info)
	if err != nil {
		return err
	}
	return st.Reply(ctx, body)
}

// begin makes the draft of v's file, which a symlink at the end of the path may have in another place.
func (v *visitor) begin() (*draft, error) {
	path := v.req.Path
	for range maxLinks {
		d := &draft{v: v, dir: -1, file: -1, temp: ".dsec-" + rand.Text()}
		next, err := d.open(path)
		if err != nil {
			d.drop()
			return nil, err
		}
		if next == nil {
			return d, nil
		}
		d.drop()
		path = next
	}
	return nil, fault("write", v.req.Path, unix.ELOOP)
}

// open makes the draft of the file at path, or says where the symlink leads that is there.
func (d *draft) open(path []byte) (next []byte, err error) {
	v, r := d.v, &d.v.req
	dir, base := split(path)
	if !named(base) || path[len(path)-1] == '/' {
		return nil, fault("write", path, unix.EISDIR)
	}
	d.base = base
	p := v.probes.get()
	defer v.probes.put(p)
	var parents []*spawn.Step
	var openDir, create *spawn.Step
	d.done = v.place.Keep(append(append(bytes.Clone(dir), '/'), d.temp...))
	err = v.visit(func(h *spawn.Script) {
		if r.Parents {
			parents = makeParents(h, dir)
		}
		name := h.Bytes(path)
		p.askLink(h, atFDCWD, name)
		p.ask(h, atFDCWD, name, unix.AT_SYMLINK_NOFOLLOW)
		openDir = h.Call(unix.SYS_OPENAT, atFDCWD, h.Bytes(dir), unix.O_PATH|unix.O_DIRECTORY|cloexec).Ignore()
		create = h.Call(unix.SYS_OPENAT, 0, h.String(d.temp), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|cloexec, 0o600).Ignore()
		openDir.SaveTo(create, 0)
	}, func() { d.dir, d.file = launch.Opened(openDir), launch.Opened(create) })
	if err != nil {
		return nil, err
	}
	if no := openDir.Errno(); no != 0 {
		if b := blocked(parents); b != 0 {
			no = b
		}
		return nil, fault("write", path, no)
	}
	if to := p.target(); len(to) > 0 && !r.NoReplace {
		if to[0] == '/' {
			return to, nil
		}
		return append(append(append([]byte(nil), dir...), '/'), to...), nil
	}
	if err := d.replaces(path, p); err != nil {
		return nil, err
	}
	if no := create.Errno(); no != 0 {
		return nil, fault("write", path, no)
	}
	return nil, nil
}

// replaces refuses what can't be replaced by a file, and decides the mode.
func (d *draft) replaces(path []byte, old *probe) error {
	r := &d.v.req
	exists := old.stat.Errno() == 0
	switch {
	case old.stat.Errno() == unix.ENAMETOOLONG:
		return fault("write", path, unix.ENAMETOOLONG)
	case exists && r.NoReplace:
		return fault("write", path, unix.EEXIST)
	case exists && old.st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return fault("write", path, unix.EISDIR)
	case exists && old.st.Mode&unix.S_IFMT != unix.S_IFREG:
		return api.FieldError(api.CodeNotRegular, "path", "remove it first", "%s is a %s", shown(path), kind(old.st.Mode))
	}
	d.mode = fileMode
	if exists {
		d.mode = uint32(old.st.Mode) & 0o777
	}
	if r.Mode != nil {
		d.mode = *r.Mode
	}
	return nil
}

// fill writes what comes on the stream to fd.
func (v *visitor) fill(ctx context.Context, st *aether.Stream, fd int) error {
	in := &inflow{ctx: ctx, st: st}
	defer in.release()
	total := int64(0)
	for {
		data, err := in.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		total += int64(len(data))
		if limit := v.req.MaxBytes; limit > 0 && total > limit {
			return api.FieldError(api.CodeTooLarge, "path", "", "the content is over the limit of %d bytes", limit)
		}
		if err := writeAll(fd, data); err != nil {
			return fault("write", v.req.Path, err)
		}
	}
}

func writeAll(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// finish puts the draft into its place, with its mode.
func (d *draft) finish() (api.FileInfo, error) {
	v, r := d.v, &d.v.req
	if r.Sync {
		if err := unix.Fsync(d.file); err != nil {
			return api.FileInfo{}, fault("write", r.Path, err)
		}
	}
	p := v.probes.get()
	defer v.probes.put(p)
	flags := uintptr(0)
	if r.NoReplace {
		flags = unix.RENAME_NOREPLACE
	}
	var chmod, move *spawn.Step
	err := v.visit(func(h *spawn.Script) {
		chmod = h.Call(unix.SYS_FCHMOD, uintptr(d.file), uintptr(d.mode)).Ignore()
		base := h.Bytes(d.base)
		move = h.Call(unix.SYS_RENAMEAT2, uintptr(d.dir), h.String(d.temp), uintptr(d.dir), base, flags).Ignore()
		p.ask(h, uintptr(d.file), h.String(""), unix.AT_EMPTY_PATH)
	}, func() {})
	if err != nil {
		return api.FileInfo{}, err
	}
	for _, st := range []*spawn.Step{chmod, move, p.stat} {
		if no := st.Errno(); no != 0 {
			return api.FileInfo{}, fault("write", r.Path, no)
		}
	}
	d.temp = ""
	info := p.info(string(d.base))
	if r.Sync {
		d.syncDir()
	}
	return info, nil
}

// syncDir makes the new name last. The content is there already; a directory that can't be opened loses nothing else.
func (d *draft) syncDir() {
	var open *spawn.Step
	fd := -1
	err := d.v.visit(func(h *spawn.Script) {
		open = h.Call(unix.SYS_OPENAT, uintptr(d.dir), h.String("."), unix.O_RDONLY|unix.O_DIRECTORY|cloexec).Ignore()
	}, func() { fd = launch.Opened(open) })
	if err == nil && fd >= 0 {
		_ = unix.Fsync(fd) // some file systems have none for directories
	}
	closeFD(fd)
}

// Discard removes what an earlier process left unfinished at path, with a name that nobody else gives to a file.
func (s *Server) Discard(p Place, path []byte) error {
	who, err := p.Account("0")
	if err != nil {
		return err
	}
	v := &visitor{Server: s, place: p, who: who}
	return v.visit(func(h *spawn.Script) {
		h.Call(unix.SYS_UNLINKAT, atFDCWD, h.Bytes(path), 0).Ignore() // it may never have been made
	}, func() {})
}

// drop removes what isn't in its place, and lets go of the rest.
func (d *draft) drop() {
	gone := true
	if d.temp != "" && d.file >= 0 {
		err := d.v.visitOnce(func(h *spawn.Script) {
			h.Call(unix.SYS_UNLINKAT, uintptr(d.dir), h.String(d.temp), 0).Ignore()
		}, func() {})
		gone = err == nil
	}
	if d.done != nil {
		d.done(gone)
		d.done = nil
	}
	closeFD(d.file)
	closeFD(d.dir)
	d.dir, d.file = -1, -1
}

// inflow is what a client sends as stdin.
type inflow struct {
	ctx  context.Context //nolint:containedctx // of the one stream it reads
	st   *aether.Stream
	f    aether.Frame
	rest []byte
	held bool
	end  bool

	failed error // why Read did, but for the end
}

// next is the next piece, valid until the next call, or io.EOF after the client has said that it was the last.
func (in *inflow) next() ([]byte, error) {
	for {
		in.release()
		if in.end {
			return nil, io.EOF
		}
		f, err := in.st.Recv(in.ctx)
		if errors.Is(err, io.EOF) {
			// Closed without the end of stdin: the client left in the middle.
			return nil, api.Errorf(api.CodeInvalid, "the content ended before its end was said")
		}
		if err != nil {
			return nil, err
		}
		in.f, in.held = f, true
		if f.Channel != aether.Stdin {
			continue
		}
		in.end = f.End
		if len(f.Data) > 0 {
			return f.Data, nil
		}
	}
}

// Read implements [io.Reader].
func (in *inflow) Read(p []byte) (int, error) {
	if len(in.rest) == 0 {
		data, err := in.next()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				in.failed = err
			}
			return 0, err
		}
		in.rest = data
	}
	n := copy(p, in.rest)
	in.rest = in.rest[n:]
	return n, nil
}

func (in *inflow) release() {
	if in.held {
		in.f.Release()
		in.held = false
	}
	in.rest = nil
}
