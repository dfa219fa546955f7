package files

import (
	"archive/tar"
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/chronus/launch"
	"github.com/dsec-io/dsec/internal/spawn"
)

// outflow writes to a stream's stdout.
type outflow struct {
	ctx context.Context //nolint:containedctx // of the one stream it writes to
	st  *aether.Stream
}

// Write implements [io.Writer].
func (o *outflow) Write(p []byte) (int, error) {
	if err := o.st.Write(o.ctx, aether.Stdout, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// packer writes a tree as a tar stream. Sockets and devices are left out.
type packer struct {
	v   *visitor
	ctx context.Context //nolint:containedctx // of the one stream it writes to
	w   *tar.Writer
}

// tar sends the file, or the directory with everything below it, as a tar stream. Names are relative to the path.
func (v *visitor) tar(ctx context.Context, st *aether.Stream) error {
	p := &packer{v: v, ctx: ctx, w: tar.NewWriter(&outflow{ctx, st})}
	info, err := v.stat() // follows a link at the end, unless told not to
	if err != nil {
		return err
	}
	switch info.Type {
	case api.FileDir:
		err = p.tree(&info)
	case api.FileLink:
		err = p.w.WriteHeader(header(&info, info.RawName()))
	default:
		var fd int
		if fd, _, err = v.openRegular(); err == nil {
			err = p.file(&info, info.RawName(), fd)
		}
	}
	if err != nil {
		return err
	}
	if err := p.w.Close(); err != nil {
		return err
	}
	if err := st.CloseWrite(aether.Stdout); err != nil {
		return err
	}
	return st.Close()
}

func (p *packer) tree(info *api.FileInfo) error {
	d, err := p.v.openDir(-1, p.v.req.Path, p.v.req.Path, 0)
	if err != nil {
		return err
	}
	defer d.close()
	if err := p.w.WriteHeader(header(info, "./")); err != nil {
		return err
	}
	return p.directory(d, "", 1)
}

func header(info *api.FileInfo, name string) *tar.Header {
	h := &tar.Header{Name: name, Mode: int64(info.Mode), Uid: int(info.UID), Gid: int(info.GID), ModTime: info.ModTime, Format: tar.FormatPAX}
	switch info.Type {
	case api.FileRegular:
		h.Typeflag, h.Size = tar.TypeReg, info.Size
	case api.FileDir:
		h.Typeflag = tar.TypeDir
	case api.FileLink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, info.RawTarget()
	case api.FileFIFO:
		h.Typeflag = tar.TypeFifo
	}
	return h
}

// directory packs what is in d; prefix is its name in the archive.
func (p *packer) directory(d *directory, prefix string, depth int) error {
	if depth > maxDepth {
		return tooDeep(d.path)
	}
	for {
		b, err := d.next()
		if err != nil || len(b.names) == 0 {
			return err
		}
		for i, name := range b.names {
			if err := context.Cause(p.ctx); err != nil {
				return err
			}
			info := describe(name, &b.stats[i])
			if err := p.entry(d, &info, prefix+name, depth); err != nil {
				return err
			}
		}
	}
}

func (p *packer) entry(d *directory, info *api.FileInfo, name string, depth int) error {
	raw := info.RawName()
	switch info.Type {
	case api.FileRegular:
		fd, err := p.open(d, raw)
		if err != nil || fd < 0 {
			return err
		}
		return p.file(info, name, fd)
	case api.FileDir:
		sub, err := p.v.openDir(d.fd, []byte(raw), d.below(raw), unix.O_NOFOLLOW)
		if err != nil {
			return err
		}
		defer sub.close()
		if err := p.w.WriteHeader(header(info, name+"/")); err != nil {
			return err
		}
		return p.directory(sub, name+"/", depth+1)
	case api.FileLink:
		return p.link(d, info, name)
	case api.FileFIFO:
		return p.w.WriteHeader(header(info, name))
	}
	return nil
}

// open opens a regular file; -1 if it has gone meanwhile.
func (p *packer) open(d *directory, name string) (int, error) {
	var open *spawn.Step
	fd := -1
	err := p.v.visit(func(h *spawn.Script) {
		const flags = unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_NOFOLLOW | cloexec
		open = h.Call(unix.SYS_OPENAT, uintptr(d.fd), h.String(name), flags).Ignore()
	}, func() { fd = launch.Opened(open) })
	if err == nil && open.Errno() != 0 && open.Errno() != unix.ENOENT {
		err = fault("open", d.below(name), open.Errno())
	}
	if err == nil && fd >= 0 {
		_, err = regular(fd, d.below(name))
	}
	if err != nil {
		closeFD(fd)
		return -1, err
	}
	return fd, nil
}

// file packs the file behind fd, and closes that.
func (p *packer) file(info *api.FileInfo, name string, fd int) error {
	defer closeFD(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fault("stat", []byte(name), err)
	}
	info.Size = st.Size
	if err := p.w.WriteHeader(header(info, name)); err != nil {
		return err
	}
	buf := p.v.chunks.Get().(*[]byte) // the pool holds nothing else
	defer p.v.chunks.Put(buf)
	for left := info.Size; left > 0; {
		n, err := unix.Read(fd, (*buf)[:min(left, chunkSize)])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fault("read", []byte(name), err)
		}
		if n == 0 {
			return api.FieldError(api.CodeConflict, "path", "pack it when nothing writes to it", "%s became shorter while it was read", shown([]byte(name)))
		}
		if _, err := p.w.Write((*buf)[:n]); err != nil {
			return err
		}
		left -= int64(n)
	}
	return nil
}

func (p *packer) link(d *directory, info *api.FileInfo, name string) error {
	q := p.v.probes.get()
	defer p.v.probes.put(q)
	raw := info.RawName()
	err := p.v.visit(func(h *spawn.Script) { q.askLink(h, uintptr(d.fd), h.String(raw)) }, func() {})
	if err != nil {
		return err
	}
	switch no := q.readlink.Errno(); no {
	case 0:
		info.SetTarget(string(q.target()))
		return p.w.WriteHeader(header(info, name))
	case unix.ENOENT, unix.EINVAL: // gone meanwhile
		return nil
	default:
		return fault("read link", d.below(raw), no)
	}
}
