package importer

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image"
	"github.com/dsec-io/dsec/internal/image/erofs"
)

// tempPrefix begins the names of what isn't an image yet, or no longer: an image's name can't begin so.
const tempPrefix = ".import-"

// Names in an image's folder.
const (
	imageFile  = "image.erofs"
	configFile = "config.json"
)

// Config is what an [Importer] is made of. Dir and Images are required.
type Config struct {
	Dir      string            // where images are put; it is made when it isn't there
	Images   *image.Store      // the stores in which images are looked up; the first is Dir
	Forget   func(name string) // called when a name no longer means what it did; may be nil
	MaxBytes int64             // that an archive may unpack to, with the layers in it; default 128 GiB
	MaxFiles int               // that an image may have, for each of which about 500 bytes are held; default 2,000,000
	Parallel int               // imports at one time; default 2
}

// Importer owns a folder of images.
type Importer struct {
	cfg   Config
	slots chan struct{} // one for each import that runs

	mu sync.Mutex // held while names change; guards busy
	// busy are the temporary folders of imports that run.
	busy map[string]bool
}

// New makes an importer and removes what a crash has left in its folder.
func New(cfg Config) (*Importer, error) {
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, 128<<30)
	cfg.MaxFiles = cmp.Or(cfg.MaxFiles, 2_000_000)
	cfg.Parallel = cmp.Or(cfg.Parallel, 2)
	if cfg.Dir == "" || cfg.Images == nil {
		return nil, errors.New("importer: no folder or no store")
	}
	if cfg.Forget == nil {
		cfg.Forget = func(string) {}
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("image store: %w", err)
	}
	im := &Importer{cfg: cfg, slots: make(chan struct{}, cfg.Parallel), busy: map[string]bool{}}
	_, err := im.sweep()
	return im, err
}

// Import makes an image of what r has. progress is called now and then, never after the return.
func (im *Importer) Import(ctx context.Context, o api.ImageImport, r io.Reader, progress func(api.ImageEvent)) (api.Image, error) {
	if err := image.CheckName(o.Name); err != nil {
		return api.Image{}, err
	}
	if !isFormat(o.Format) {
		return api.Image{}, api.FieldError(api.CodeInvalid, "format", "say rootfs, oci or docker, or nothing", "there is no format %q", clip(o.Format))
	}
	w, err := im.Begin(ctx)
	if err != nil {
		return api.Image{}, err
	}
	defer w.Close()
	src := &source{ctx: ctx, r: r}
	return w.build(ctx, o, throttle(progress), func(u *unpacker, tell func(api.ImageEvent)) (image.Config, error) {
		u.tick = func(files int) {
			tell(api.ImageEvent{Type: "progress", Phase: "reading", Bytes: src.bytes, Files: files})
		}
		return u.read(src, o.Format)
	})
}

// read reads the upload and leaves the image's tree in u.
func (u *unpacker) read(src *source, format string) (image.Config, error) {
	plain, free, err := decompress(src)
	if err != nil {
		return image.Config{}, src.explain("the archive", err)
	}
	defer free()
	if err := u.tar(budget{plain, &u.left}, false); err != nil {
		return image.Config{}, src.explain("the archive", err)
	}
	if _, err := io.Copy(io.Discard, src); err != nil {
		return image.Config{}, src.explain("the archive", err)
	}
	if u.tree.files == 0 {
		return image.Config{}, fault("the archive has no files")
	}
	a := &archive{u: u, tree: u.tree}
	if format == "" {
		format = a.format()
	}
	if format == FormatRootFS {
		return image.Config{}, nil
	}
	return a.apply(format)
}

// write writes image and configuration and sees to it that they are on the disk.
func (w *Work) write(ctx context.Context, u *unpacker, c image.Config, tell func(api.ImageEvent)) (digest string, err error) {
	im, dir := w.im, w.dir
	if err := u.spool.w.Flush(); err != nil {
		return "", Stored("write to the image store", err)
	}
	sum := sha256.New()
	err = im.file(filepath.Join(dir, imageFile), func(f *os.File) error {
		out := &sink{ctx: ctx, w: io.MultiWriter(f, sum), tell: func(n int64) {
			tell(api.ImageEvent{Type: "progress", Phase: "building", Bytes: n, Files: u.tree.files})
		}}
		return erofs.Write(out, u.tree.root, u.spool.f)
	})
	if err != nil {
		return "", err
	}
	c.Digest = "sha256:" + hex.EncodeToString(sum.Sum(nil))
	raw, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return "", err
	}
	err = im.file(filepath.Join(dir, configFile), func(f *os.File) error {
		_, err := f.Write(append(raw, '\n'))
		return err
	})
	if err == nil {
		err = syncDir(dir)
	}
	return c.Digest, err
}

// file writes a file and waits until it is on the disk.
func (im *Importer) file(path string, fill func(*os.File) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return Stored("image store", err)
	}
	err = fill(f)
	if err == nil {
		err = f.Sync()
	}
	return Stored("write to the image store", errors.Join(err, f.Close()))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return Stored("image store", err)
	}
	return Stored("image store", errors.Join(d.Sync(), d.Close()))
}

// install gives a finished image its name, at once. The same image under the same name is no conflict, so that an import
// can be repeated.
func (im *Importer) install(dir string, o api.ImageImport, digest string) error {
	to := filepath.Join(im.cfg.Dir, o.Name)
	if err := os.Chmod(dir, 0o755); err != nil {
		return Stored("image store", err)
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	old, err := im.cfg.Images.Lookup(o.Name)
	there := !api.IsCode(err, api.CodeNoSuchImage)
	if err != nil && there {
		return err
	}
	if there && !o.Replace {
		if same, err := sameConfig(dir, filepath.Join(old.Dir, o.Name)); err == nil && same && old.Config.Digest == digest {
			return nil
		}
		return api.FieldError(api.CodeConflict, "name", "import it with replace (dsec image import --replace), or choose another name", "there is an image %s", o.Name)
	}
	flags := uint(unix.RENAME_NOREPLACE)
	if _, err := os.Lstat(to); err == nil {
		flags = unix.RENAME_EXCHANGE // what was there is now in the temporary folder, and goes with it
	}
	if err := unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, to, flags); err != nil {
		return Stored("name image "+o.Name, err)
	}
	return syncDir(im.cfg.Dir)
}

func sameConfig(a, b string) (bool, error) {
	x, err := os.ReadFile(filepath.Join(a, configFile))
	if err != nil {
		return false, err
	}
	y, err := os.ReadFile(filepath.Join(b, configFile))
	return string(x) == string(y), err
}

// sink tells how much was written, and ends with its context.
type sink struct {
	ctx     context.Context //nolint:containedctx // a Writer has no other way to end
	w       io.Writer
	written int64
	tell    func(int64)
}

func (s *sink) Write(p []byte) (int, error) {
	if s.ctx.Err() != nil {
		return 0, context.Cause(s.ctx)
	}
	n, err := s.w.Write(p)
	s.written += int64(n)
	s.tell(s.written)
	return n, err
}

// throttle passes on progress only now and then.
func throttle(progress func(api.ImageEvent)) func(api.ImageEvent) {
	var last time.Time
	return func(ev api.ImageEvent) {
		if progress == nil || time.Since(last) < progressPause {
			return
		}
		last = time.Now()
		progress(ev)
	}
}

const progressPause = 200 * time.Millisecond

// sweep removes what isn't an image and belongs to no import that runs.
func (im *Importer) sweep() (freed int64, err error) {
	im.mu.Lock()
	defer im.mu.Unlock()
	list, err := os.ReadDir(im.cfg.Dir)
	if err != nil {
		return 0, fmt.Errorf("image store: %w", err)
	}
	var faults []error
	for _, e := range list {
		if !strings.HasPrefix(e.Name(), tempPrefix) || im.busy[e.Name()] {
			continue
		}
		path := filepath.Join(im.cfg.Dir, e.Name())
		size := sizeOf(path)
		if err := os.RemoveAll(path); err != nil {
			faults = append(faults, fmt.Errorf("image store: %w", err))
			continue
		}
		freed += size
	}
	return freed, errors.Join(faults...)
}

// sizeOf adds up the files of a folder, as far as they can be seen.
func sizeOf(dir string) (size int64) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil {
				size += info.Size()
			}
		}
		return nil
	})
	return size
}
