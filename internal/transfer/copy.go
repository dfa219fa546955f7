package transfer

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
)

// Copy copies between the local file system and a sandbox. Its paths are as cp has them: a source goes into a destination
// that is a directory, under its own name; SOURCE/. is what is in it; - is a tar stream.
type Copy struct {
	Stdin  io.Reader // what Upload takes for -
	Stdout io.Writer // and Download
	Meter  Meter     // how far it is
}

var errStopped = errors.New("unpacking has failed")

// Place is one side of a copy; without a sandbox it is local.
type Place struct{ Sandbox, Path string }

// ParsePlace takes SANDBOX:PATH apart. A local path with a colon is written with a slash before it, as for scp.
func ParsePlace(arg string) Place {
	id, p, ok := strings.Cut(arg, ":")
	if !ok || id == "" || strings.ContainsAny(id, "/.") {
		return Place{Path: arg}
	}
	return Place{id, p}
}

// inside is the destination for a source of this name: below a directory, unless the source says "what is in it".
func inside(ctx context.Context, f *libdsec.Files, to, name string) (string, error) {
	info, err := f.Stat(ctx, to)
	switch {
	case api.IsCode(err, api.CodeFileNotFound):
		if strings.HasSuffix(to, "/") {
			return path.Join(to, name), nil
		}
		return to, nil
	case err != nil:
		return "", err
	case info.Type == api.FileDir:
		return path.Join(to, name), nil
	}
	return to, nil
}

// contents tells whether a source means what is in a directory.
func contents(p string) bool { return p == "." || strings.HasSuffix(p, "/.") }

// Upload copies a local file or directory, or a tar stream, into a sandbox.
func (c *Copy) Upload(ctx context.Context, f *libdsec.Files, from, to string) error {
	if from == "-" {
		_, err := f.Untar(ctx, to, c.Meter.reader(c.Stdin))
		return err
	}
	info, err := os.Stat(from)
	if err != nil {
		return localError(err)
	}
	dest := to
	if !contents(from) {
		abs, err := filepath.Abs(from)
		if err != nil {
			return localError(err)
		}
		if dest, err = inside(ctx, f, to, filepath.Base(abs)); err != nil {
			return err
		}
	}
	if info.IsDir() {
		return c.uploadTree(ctx, f, from, dest)
	}
	if !info.Mode().IsRegular() {
		return api.FieldError(api.CodeNotRegular, "", "", "%s is neither a file nor a directory", from)
	}
	file, err := os.Open(from)
	if err != nil {
		return localError(err)
	}
	defer file.Close() // only read from
	c.Meter.expect(info.Size())
	_, err = f.Write(ctx, dest, c.Meter.reader(file), libdsec.WriteOptions{Mode: new(uint32(info.Mode().Perm())), Parents: true})
	return err
}

// uploadTree packs a directory while the sandbox unpacks it.
func (c *Copy) uploadTree(ctx context.Context, f *libdsec.Files, from, to string) error {
	r, w := io.Pipe()
	packed := make(chan error, 1) // one result
	go func() {
		err := packLocal(from, w)
		w.CloseWithError(err)
		packed <- err
	}()
	_, err := f.Untar(ctx, to, c.Meter.reader(r))
	_ = r.CloseWithError(errStopped) // ends the packer where unpacking has failed
	if local := <-packed; local != nil && !errors.Is(local, errStopped) {
		return local
	}
	return err
}

// packLocal writes what is in a local directory as a tar stream. What is neither file, directory nor symlink is an error:
// a copy that leaves something out would look complete.
func packLocal(dir string, w io.Writer) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return localError(err)
	}
	defer root.Close() // only read from
	out := tar.NewWriter(w)
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		return packEntry(root, out, name, d)
	})
	if err != nil {
		return localError(err)
	}
	return out.Close()
}

func packEntry(root *os.Root, out *tar.Writer, name string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	target := ""
	switch mode := info.Mode(); {
	case mode&fs.ModeSymlink != 0:
		if target, err = root.Readlink(name); err != nil {
			return err
		}
	case !mode.IsDir() && !mode.IsRegular():
		return api.FieldError(api.CodeNotRegular, "", "", "%s is neither file, directory nor symlink", name)
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	h.Name, h.Uname, h.Gname, h.Uid, h.Gid, h.Format = name, "", "", 0, 0, tar.FormatPAX
	if err := out.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
		return err
	}
	file, err := root.Open(name)
	if err != nil {
		return err
	}
	defer file.Close() // only read from
	if _, err := io.CopyN(out, file, info.Size()); err != nil {
		return fmt.Errorf("%s became shorter while it was read: %w", name, err)
	}
	return nil
}

// Download copies a file or directory out of a sandbox, or a tar stream of it.
func (c *Copy) Download(ctx context.Context, f *libdsec.Files, from, to string) error {
	if to == "-" {
		r, err := f.Tar(ctx, from)
		if err != nil {
			return err
		}
		_, err = io.Copy(c.Stdout, c.Meter.reader(r))
		return errors.Join(err, r.Close())
	}
	info, err := f.Stat(ctx, from)
	if err != nil {
		return err
	}
	dest := to
	if local, err := os.Stat(to); err == nil && local.IsDir() && !contents(from) {
		name := path.Base(path.Clean(from))
		if name == "/" {
			name = "."
		}
		dest = filepath.Join(to, name)
	}
	if info.Type == api.FileDir {
		return c.downloadTree(ctx, f, from, dest)
	}
	r, err := f.Open(ctx, from, libdsec.ReadOptions{})
	if err != nil {
		return err
	}
	c.Meter.expect(r.Info.Size)
	err = replaceLocal(dest, fs.FileMode(r.Info.Mode)&fs.ModePerm, c.Meter.reader(r))
	return errors.Join(err, r.Close())
}

func (c *Copy) downloadTree(ctx context.Context, f *libdsec.Files, from, to string) error {
	r, err := f.Tar(ctx, from)
	if err != nil {
		return err
	}
	err = unpackLocal(c.Meter.reader(r), to)
	return errors.Join(err, r.Close())
}

// unpackLocal unpacks a sandbox's tar stream below a local directory. The sandbox is not to be trusted: nothing is made
// outside the directory, whatever the names and links say.
func unpackLocal(r io.Reader, dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return localError(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return localError(err)
	}
	defer root.Close() // what was written was closed by itself
	in := tar.NewReader(r)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := unpackEntry(root, h, in); err != nil {
			return localError(err)
		}
	}
}

func unpackEntry(root *os.Root, h *tar.Header, in io.Reader) error {
	name := path.Clean(h.Name)
	if name == "." {
		return nil
	}
	mode := fs.FileMode(h.Mode) & fs.ModePerm
	switch h.Typeflag {
	case tar.TypeDir:
		if err := root.MkdirAll(name, mode|0o700); err != nil {
			return err
		}
		return nil
	case tar.TypeSymlink:
		if err := makeWay(root, name); err != nil {
			return err
		}
		return root.Symlink(h.Linkname, name)
	case tar.TypeReg:
		if err := makeWay(root, name); err != nil {
			return err
		}
		file, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		if err != nil {
			return err
		}
		_, err = io.Copy(file, in)
		return errors.Join(err, file.Close())
	}
	return api.FieldError(api.CodeNotRegular, "", "", "%s is neither file, directory nor symlink", h.Name)
}

// makeWay removes what a file or symlink is to replace, which is never a directory, not even an empty one.
func makeWay(root *os.Root, name string) error {
	if info, err := root.Lstat(name); err == nil && info.IsDir() {
		return api.Errorf(api.CodeIsDirectory, "%s is a directory here, and none in the sandbox", name)
	}
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// replaceLocal writes a local file beside its place first.
func replaceLocal(name string, mode fs.FileMode, r io.Reader) error {
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		// A device or pipe, such as /dev/stdout, is written to as it is.
		file, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return localError(err)
		}
		_, err = io.Copy(file, r)
		return errors.Join(err, file.Close())
	}
	file, err := os.CreateTemp(filepath.Dir(name), ".dsec-*")
	if err != nil {
		if at, ok := errors.AsType[*fs.PathError](err); ok {
			at.Path = name // and not the unfinished file's, which nobody has asked for
		}
		return localError(err)
	}
	_, err = io.Copy(file, r)
	err = errors.Join(err, file.Chmod(mode), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}

// localError gives an error of the local file system the code that the sandbox would give it.
func localError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return api.Errorf(api.CodeFileNotFound, "%v", err)
	case errors.Is(err, fs.ErrPermission):
		return api.Errorf(api.CodePermissionDenied, "%v", err)
	case errors.Is(err, fs.ErrExist):
		return api.Errorf(api.CodeExists, "%v", err)
	}
	return err
}
