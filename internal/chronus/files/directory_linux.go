package files

import (
	"bytes"
	"context"
	"encoding/json"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/chronus/launch"
	"github.com/dsec-io/dsec/internal/spawn"
)

const (
	batchSize = 256      // entries that one helper looks at
	direntBuf = 32 << 10 // what the kernel fills with names at a time
)

// batch is some entries of a directory. Like probes, batches are written by address.
type batch struct {
	names []string
	stats [batchSize]unix.Statx_t
	steps [batchSize]*spawn.Step
}

// directory is an open directory that is read in batches.
type directory struct {
	v    *visitor
	fd   int
	path []byte // for errors
	buf  [direntBuf]byte
	rest []string // names that were read and not handed out
	b    batch
}

// open opens the directory name below dir.
func (v *visitor) openDir(dir int, name, path []byte, flags uintptr) (*directory, error) {
	at := atFDCWD
	if dir >= 0 {
		at = uintptr(dir)
	}
	d := &directory{v: v, fd: -1, path: path}
	var open *spawn.Step
	err := v.visit(func(h *spawn.Script) {
		open = h.Call(unix.SYS_OPENAT, at, h.Bytes(name), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|cloexec|flags).Ignore()
	}, func() { d.fd = launch.Opened(open) })
	if err == nil && open.Errno() != 0 {
		err = fault("open directory", path, open.Errno())
	}
	if err != nil {
		closeFD(d.fd)
		return nil, err
	}
	return d, nil
}

func (d *directory) close() {
	closeFD(d.fd)
	d.fd = -1
}

// rewind makes next begin again.
func (d *directory) rewind() error {
	d.rest = d.rest[:0]
	if _, err := unix.Seek(d.fd, 0, unix.SEEK_SET); err != nil {
		return fault("list", d.path, err)
	}
	return nil
}

// next is the next batch, without names at the end. Entries that have gone meanwhile aren't in it.
func (d *directory) next() (*batch, error) {
	for len(d.rest) == 0 {
		n, err := unix.Getdents(d.fd, d.buf[:])
		if err != nil {
			return nil, fault("list", d.path, err)
		}
		if n == 0 {
			d.b.names = d.b.names[:0]
			return &d.b, nil
		}
		_, _, d.rest = unix.ParseDirent(d.buf[:n], -1, d.rest[:0])
	}
	n := min(len(d.rest), batchSize)
	names := d.rest[:n]
	d.rest = d.rest[n:]
	if err := d.look(names); err != nil {
		return nil, err
	}
	if len(d.b.names) == 0 {
		return d.next() // all have gone
	}
	return &d.b, nil
}

// look finds out about entries.
func (d *directory) look(names []string) error {
	b := &d.b
	err := d.v.visit(func(h *spawn.Script) {
		for i, name := range names {
			b.steps[i] = h.Call(unix.SYS_STATX, uintptr(d.fd), h.String(name), unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT,
				unix.STATX_BASIC_STATS, uintptr(unsafe.Pointer(&b.stats[i]))).Ignore()
		}
	}, func() {})
	if err != nil {
		return err
	}
	b.names = b.names[:0]
	for i, name := range names {
		switch no := b.steps[i].Errno(); no {
		case 0:
			b.stats[len(b.names)] = b.stats[i]
			b.names = append(b.names, name)
		case unix.ENOENT:
		default:
			return fault("stat", d.below(name), no)
		}
	}
	return nil
}

func (d *directory) below(name string) []byte {
	return append(append(bytes.TrimRight(bytes.Clone(d.path), "/"), '/'), name...)
}

// list sends what is in a directory as lines of JSON, in the directory's own order.
func (v *visitor) list(ctx context.Context, st *aether.Stream) error {
	d, err := v.openDir(-1, v.req.Path, v.req.Path, 0)
	if err != nil {
		return err
	}
	defer d.close()
	var lines []byte
	for {
		b, err := d.next()
		if err != nil {
			return err
		}
		if len(b.names) == 0 {
			break
		}
		lines = lines[:0]
		for i, name := range b.names {
			line, err := json.Marshal(describe(name, &b.stats[i]))
			if err != nil {
				return err
			}
			lines = append(append(lines, line...), '\n')
		}
		if err := st.Write(ctx, aether.Stdout, lines); err != nil {
			return err
		}
	}
	if err := st.CloseWrite(aether.Stdout); err != nil {
		return err
	}
	return st.Close()
}

// maxDepth is how far below its beginning a walk goes: it holds a descriptor for each level.
const maxDepth = 128

func tooDeep(path []byte) error {
	return api.FieldError(api.CodeTooLarge, "path", "", "%s is more than %d directories deep", shown(path), maxDepth)
}
