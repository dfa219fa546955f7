package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	imageFile  = "image.erofs"
	configFile = "config.json"
)

// Store looks images up and shares one mount among all users of an image.
type Store struct {
	logger    *slog.Logger
	dirs      []string
	forceLoop bool // set by tests only: do as a kernel that can't mount a file
	freshOnly bool // set by tests only: do as a kernel that can't clone a detached mount

	mu   sync.Mutex         // guards open, and refs of what was ever in it
	open map[string]*shared // by name: the newest version that is in use
}

// NewStore makes a store over dirs, of which the first that has a name wins. A directory need not exist.
func NewStore(logger *slog.Logger, dirs ...string) *Store {
	return &Store{logger: logger, dirs: dirs, open: map[string]*shared{}}
}

// shared is the one mount of an image. All but refs is constant once ready is closed.
type shared struct {
	name  string
	id    identity
	ready chan struct{}

	err    error
	config Config
	mount  int
	file   *os.File // held where each clone needs a mount of its own, else nil
	looped bool

	refs int // guarded by Store.mu
}

// identity tells one version of an image from another without reading it: its two files.
type identity [2]struct {
	dev, ino    uint64
	size, mtime int64
}

// found is an image's files, open.
type found struct {
	dir, name string
	file      *os.File
	config    *os.File
	id        identity
}

func (f *found) close() {
	f.file.Close()
	f.config.Close()
}

// Open finds the image called name and mounts it, or takes a share in the mount that there is. A client's fault comes
// as an [api.Error] (a bad or an unknown name), an image that can't be used as a [*BrokenError].
func (s *Store) Open(ctx context.Context, name string) (*Image, error) {
	f, err := s.find(name)
	if err != nil {
		return nil, err
	}
	defer f.close()
	s.mu.Lock()
	sh, old := s.open[name]
	if !old || sh.id != f.id {
		old = false
		sh = &shared{name: name, id: f.id, ready: make(chan struct{}), mount: -1}
		s.open[name] = sh
	}
	sh.refs++
	s.mu.Unlock()

	im := &Image{store: s, shared: sh}
	if !old {
		sh.err = s.load(sh, f)
		close(sh.ready)
	}
	select {
	case <-sh.ready:
		err = sh.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, im.Close())
	}
	return im, nil
}

// find opens the files of the first image of that name.
func (s *Store) find(name string) (*found, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	for _, dir := range s.dirs {
		f, err := findIn(dir, name)
		if errors.Is(err, errNotHere) {
			continue
		}
		return f, err
	}
	return nil, noSuchImage(name)
}

// errNotHere says that a store has no folder of that name.
var errNotHere = errors.New("not in this store")

func findIn(dir, name string) (*found, error) {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNotHere
	}
	if err != nil {
		return nil, fmt.Errorf("image store: %w", err)
	}
	defer root.Close()
	// Both files are looked up in one folder: another may take its name meanwhile.
	sub, err := root.OpenRoot(name)
	if errors.Is(err, fs.ErrNotExist) {
		if _, lerr := root.Lstat(name); lerr != nil {
			return nil, errNotHere
		}
	}
	if err != nil {
		return nil, &BrokenError{Name: name, File: filepath.Join(dir, name), Err: err}
	}
	defer sub.Close()
	f := &found{dir: dir, name: name}
	if f.file, f.id[0].size, err = openRegular(sub, imageFile); err != nil {
		return nil, &BrokenError{Name: name, File: filepath.Join(dir, name, imageFile), Err: err}
	}
	if f.config, _, err = openRegular(sub, configFile); err != nil {
		f.file.Close()
		return nil, &BrokenError{Name: name, File: filepath.Join(dir, name, configFile), Err: err}
	}
	for i, file := range []*os.File{f.file, f.config} {
		var st unix.Stat_t
		if err := unix.Fstat(int(file.Fd()), &st); err != nil {
			f.close()
			return nil, fmt.Errorf("stat %s: %w", file.Name(), err)
		}
		f.id[i].dev, f.id[i].ino = st.Dev, st.Ino
		f.id[i].size, f.id[i].mtime = st.Size, st.Mtim.Nano()
	}
	return f, nil
}

// openRegular opens a regular file for reading. O_NONBLOCK keeps a FIFO in its place from holding us up.
func openRegular(root *os.Root, path string) (*os.File, int64, error) {
	f, err := root.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		var pe *fs.PathError
		if errors.As(err, &pe) {
			err = pe.Err // the caller names the file in full
		}
		return nil, 0, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, st.Size(), nil
}

// check reads config.json and looks at the superblock.
func (f *found) check() (Config, error) {
	broken := func(file string, err error) error {
		return &BrokenError{Name: f.name, File: filepath.Join(f.dir, f.name, file), Err: err}
	}
	b, err := io.ReadAll(io.LimitReader(f.config, maxConfig+1))
	if err == nil && len(b) > maxConfig {
		err = fmt.Errorf("larger than %d bytes", maxConfig)
	}
	if err != nil {
		return Config{}, broken(configFile, err)
	}
	c, err := ParseConfig(b)
	if err != nil {
		return Config{}, broken(configFile, err)
	}
	if err := checkSuper(f.file, f.id[0].size); err != nil {
		return Config{}, broken(imageFile, err)
	}
	return c, nil
}

// load fills what sh shares.
func (s *Store) load(sh *shared, f *found) (err error) {
	if sh.config, err = f.check(); err != nil {
		return err
	}
	sh.mount, sh.looped, err = mountFile(f.file, s.forceLoop)
	if errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("image %s: this kernel has no EROFS: %w", f.name, err)
	}
	if err != nil {
		return &BrokenError{Name: f.name, File: filepath.Join(f.dir, f.name, imageFile), Err: err}
	}
	if sh.looped {
		s.logger.Warn("image mounted through a loop device: this kernel or the store's file system can't do without",
			slog.String("image", f.name))
	}
	return sh.keepFile(f.file, s.freshOnly)
}

// keepFile finds out if this kernel (6.15 and later) clones detached mounts. If not, the file is held, because every
// clone then has to be mounted from it.
func (sh *shared) keepFile(f *os.File, freshOnly bool) error {
	fd, err := unix.OpenTree(sh.mount, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err == nil {
		unix.Close(fd)
		if !freshOnly {
			return nil
		}
	}
	held, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("image %s: %w", sh.name, err)
	}
	sh.file = os.NewFile(uintptr(held), f.Name())
	return nil
}

// release gives one share back and unmounts with the last.
func (s *Store) release(sh *shared) error {
	s.mu.Lock()
	sh.refs--
	last := sh.refs == 0
	if last && s.open[sh.name] == sh {
		delete(s.open, sh.name)
	}
	s.mu.Unlock()
	if !last {
		return nil
	}
	if sh.file != nil {
		sh.file.Close()
	}
	if sh.mount < 0 {
		return nil
	}
	return unix.Close(sh.mount)
}
