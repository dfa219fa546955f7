// Package treetar packs a folder as a tar that an image can be made of.
//
// The tar is made while it's read, in the order of the names, and says of each file what an image keeps and nothing that
// depends on the machine. A [Reader] is for one goroutine.
package treetar

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Reader is the tar of a folder, which is made while it's read.
type Reader struct {
	*io.PipeReader
	wg sync.WaitGroup
}

// Pack packs a folder as a tar, with owners, hard links and attributes. Links in it are packed as links. Close ends
// it wherever it is.
func Pack(dir string) *Reader {
	r, w := io.Pipe()
	p := &Reader{PipeReader: r}
	p.wg.Go(func() {
		w.CloseWithError(pack(dir, w))
	})
	return p
}

func pack(dir string, w io.Writer) error {
	dir, err := filepath.EvalSymlinks(dir) // the folder itself may be named by a link
	if err != nil {
		return err
	}
	p := &packer{dir: dir, tar: tar.NewWriter(w), first: map[[2]uint64]string{}}
	if err := filepath.WalkDir(dir, p.file); err != nil {
		return err
	}
	return p.tar.Close()
}

// Close ends the packing.
func (p *Reader) Close() error {
	err := p.PipeReader.Close()
	p.wg.Wait()
	return err
}

// packer packs one folder.
type packer struct {
	dir   string
	tar   *tar.Writer
	first map[[2]uint64]string // by device and inode: the name under which a file with several was packed
}

func (p *packer) file(path string, _ fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSocket != 0 {
		return nil // nobody listens in an image
	}
	h, err := p.header(path, info)
	if err != nil {
		return fmt.Errorf("pack %s: %w", path, err)
	}
	if err := p.tar.WriteHeader(h); err != nil || h.Typeflag != tar.TypeReg {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	_, err = io.CopyN(p.tar, f, h.Size)
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("pack %s: it has become shorter meanwhile", path)
	}
	return errors.Join(err, f.Close())
}

func (p *packer) header(path string, info fs.FileInfo) (*tar.Header, error) {
	target := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		var err error
		if target, err = os.Readlink(path); err != nil {
			return nil, err
		}
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return nil, err
	}
	name, err := filepath.Rel(p.dir, path)
	if err != nil {
		return nil, err
	}
	h.Name = filepath.ToSlash(name)
	if info.IsDir() {
		h.Name += "/"
	}
	// Names of owners and the time of the last look depend on the machine and not on the tree.
	h.Format, h.Uname, h.Gname = tar.FormatPAX, "", ""
	h.AccessTime, h.ChangeTime = time.Time{}, time.Time{}
	st, ok := info.Sys().(*syscall.Stat_t)
	if ok && !info.IsDir() && st.Nlink > 1 {
		key := [2]uint64{uint64(st.Dev), st.Ino} //nolint:unconvert // signed on other systems
		if first := p.first[key]; first != "" {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			return h, nil
		}
		p.first[key] = h.Name
	}
	return h, attributes(h, path)
}

// attributes adds those that mean something in an image.
func attributes(h *tar.Header, path string) error {
	list, err := attrList(path)
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(list, "\x00") {
		kind, _, _ := strings.Cut(name, ".")
		if kind != "user" && kind != "security" && kind != "system" || name == "security.selinux" {
			continue
		}
		value := make([]byte, maxAttr)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return fmt.Errorf("attribute %s: %w", name, err)
		}
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords["SCHILY.xattr."+name] = string(value[:n])
	}
	return nil
}

// maxAttr is the most that the kernel keeps in an attribute, and in the names of all.
const maxAttr = 64 << 10

func attrList(path string) (string, error) {
	n, err := unix.Llistxattr(path, nil)
	if err != nil || n == 0 {
		if errors.Is(err, unix.ENOTSUP) {
			err = nil
		}
		return "", err
	}
	list := make([]byte, maxAttr)
	if n, err = unix.Llistxattr(path, list); err != nil {
		return "", fmt.Errorf("attributes: %w", err)
	}
	return string(list[:n]), nil
}
