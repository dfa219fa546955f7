package importer

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image"
)

// Work is an image that is being made. It has one of the importer's places and a folder of its own, which are given back
// by Close whatever became of it. It belongs to one goroutine, but for File.
type Work struct {
	im  *Importer
	dir string
}

// Begin waits for a place. The caller closes the work.
func (im *Importer) Begin(ctx context.Context) (*Work, error) {
	select {
	case im.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	dir, err := os.MkdirTemp(im.cfg.Dir, tempPrefix)
	if err != nil {
		<-im.slots
		return nil, Stored("image store", err)
	}
	im.busy[filepath.Base(dir)] = true
	return &Work{im, dir}, nil
}

// Close removes what isn't an image by now.
func (w *Work) Close() {
	_ = os.RemoveAll(w.dir) // what stays is swept later
	w.im.mu.Lock()
	delete(w.im.busy, filepath.Base(w.dir))
	w.im.mu.Unlock()
	<-w.im.slots
}

// File makes a file without a name on the store's disk: it is gone when it's closed, or when this process ends however it
// does. It may be called by several goroutines.
func (w *Work) File() (*os.File, error) {
	fd, err := unix.Open(w.dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, Stored("image store", err)
	}
	return os.NewFile(uintptr(fd), w.dir+"/spool"), nil
}

// Layered is an image as registries have it: a configuration, which the caller has checked, and layers from the bottom up.
type Layered struct {
	Config []byte
	Layers []Layer
	Source *image.Source // where it comes from
}

// Assemble makes an image of layers, each of which is opened when it's the next. progress is called now and then, never
// after the return.
func (w *Work) Assemble(ctx context.Context, o api.ImageImport, l Layered, progress func(api.ImageEvent)) (api.Image, error) {
	if err := image.CheckName(o.Name); err != nil {
		return api.Image{}, err
	}
	return w.build(ctx, o, throttle(progress), func(u *unpacker, tell func(api.ImageEvent)) (image.Config, error) {
		u.tick = func(files int) { tell(api.ImageEvent{Type: "progress", Phase: "reading", Files: files}) }
		var c imageConfig
		if err := json.Unmarshal(l.Config, &c); err != nil {
			return image.Config{}, fault("the image's configuration isn't what it should be: %v", err)
		}
		if err := u.stack(&c, l.Layers); err != nil {
			return image.Config{}, err
		}
		s, err := c.settings()
		s.Source = l.Source
		return s, err
	})
}

// build makes the image of the tree that fill leaves, and gives it its name.
func (w *Work) build(ctx context.Context, o api.ImageImport, tell func(api.ImageEvent), fill func(*unpacker, func(api.ImageEvent)) (image.Config, error)) (api.Image, error) {
	f, err := w.File()
	if err != nil {
		return api.Image{}, err
	}
	defer f.Close()
	u := &unpacker{ctx: ctx, cfg: w.im.cfg, spool: newSpool(f), tree: newTree(), squash: o.Squash, left: w.im.cfg.MaxBytes}
	c, err := fill(u, tell)
	if err != nil {
		return api.Image{}, err
	}
	digest, err := w.write(ctx, u, c, tell)
	if err != nil {
		return api.Image{}, err
	}
	if err := w.im.install(w.dir, o, digest); err != nil {
		return api.Image{}, err
	}
	w.im.cfg.Forget(o.Name)
	return w.im.Inspect(o.Name)
}
