package importer

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Export writes the tree of an image as a tar, by name, with attributes and hard links. Imported again it gives the same
// image.
func (im *Importer) Export(ctx context.Context, name string, w io.Writer) (err error) {
	img, err := im.cfg.Images.Open(ctx, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, img.Close()) }()
	fd, err := img.Tree()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	x := &exporter{ctx: ctx, root: "/proc/self/fd/" + strconv.Itoa(fd), tar: tar.NewWriter(w), first: map[uint64]string{}}
	// The trailing dot makes WalkDir follow the link that names the mount.
	if err := filepath.WalkDir(x.root+"/.", x.file); err != nil {
		return fmt.Errorf("export image %s: %w", name, err)
	}
	if err := x.tar.Close(); err != nil {
		return fmt.Errorf("export image %s: %w", name, err)
	}
	return nil
}

// exporter is one export on its way.
type exporter struct {
	ctx   context.Context //nolint:containedctx // WalkDir passes none
	root  string
	tar   *tar.Writer
	first map[uint64]string // by inode: the name under which a file with several was written
	list  [erofsXattrs]byte
	value [erofsXattrs]byte
}

const erofsXattrs = 64 << 10

func (x *exporter) file(path string, _ fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	if x.ctx.Err() != nil {
		return context.Cause(x.ctx)
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return err
	}
	name := strings.TrimPrefix(strings.TrimPrefix(path, x.root), "/")
	h := &tar.Header{
		Name: strings.TrimPrefix(name, "./"), Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(st.Mtim.Sec, st.Mtim.Nsec), Format: tar.FormatPAX,
	}
	if h.Name == "." || h.Name == "" {
		h.Name = "./"
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
		if first := x.first[st.Ino]; first != "" {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			return x.tar.WriteHeader(h)
		}
		x.first[st.Ino] = h.Name
	}
	if err := x.describe(h, path, &st); err != nil {
		return err
	}
	if err := x.tar.WriteHeader(h); err != nil || h.Typeflag != tar.TypeReg {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(x.tar, f)
	return err
}

// describe fills in what depends on the type, and the attributes.
func (x *exporter) describe(h *tar.Header, path string, st *unix.Stat_t) (err error) {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		h.Typeflag, h.Size = tar.TypeReg, st.Size
	case unix.S_IFDIR:
		h.Typeflag = tar.TypeDir
		h.Name = strings.TrimSuffix(h.Name, "/") + "/"
	case unix.S_IFLNK:
		h.Typeflag = tar.TypeSymlink
		h.Linkname, err = os.Readlink(path)
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
	default:
		err = refusal("", "%q of the image is a device or socket", clip(h.Name))
	}
	if err != nil {
		return err
	}
	n, err := unix.Llistxattr(path, x.list[:])
	if err != nil {
		return fmt.Errorf("attributes of %s: %w", h.Name, err)
	}
	for attr := range strings.SplitSeq(strings.TrimSuffix(string(x.list[:n]), "\x00"), "\x00") {
		if attr == "" {
			continue
		}
		k, err := unix.Lgetxattr(path, attr, x.value[:])
		if err != nil {
			return fmt.Errorf("attribute %s of %s: %w", attr, h.Name, err)
		}
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords[paxXattr+attr] = string(x.value[:k])
	}
	return nil
}
