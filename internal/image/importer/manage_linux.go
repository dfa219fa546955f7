package importer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image"
)

// List tells the images of all stores by name.
func (im *Importer) List(_ context.Context) ([]api.Image, error) {
	entries, err := im.cfg.Images.List()
	if err != nil {
		return nil, err
	}
	list := make([]api.Image, 0, len(entries))
	for i := range entries {
		list = append(list, im.view(&entries[i]))
	}
	return list, nil
}

// Inspect tells one image.
func (im *Importer) Inspect(name string) (api.Image, error) {
	e, err := im.cfg.Images.Lookup(name)
	if err != nil {
		return api.Image{}, err
	}
	return im.view(&e), nil
}

func (im *Importer) view(e *image.Info) api.Image {
	v := api.Image{
		Name: e.Name, Digest: e.Config.Digest, SizeBytes: e.Size, CreatedAt: e.Modified, Shared: e.Dir != "" && e.Dir != im.cfg.Dir,
		Env: orEmpty(e.Config.Env), User: e.Config.User, Workdir: e.Config.WorkDir, Hostname: e.Config.Hostname,
		Entrypoint: orEmpty(e.Config.Entrypoint), Cmd: orEmpty(e.Config.Cmd),
	}
	if from := e.Config.Source; from != nil {
		v.Source = (*api.ImageSource)(from)
	}
	if e.Err != nil {
		v.Broken = e.Err.Error()
		if told := asTyped(e.Err); told != nil {
			v.Broken = told.Detail // without the paths of this machine
		}
	}
	return v
}

func orEmpty(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// Remove removes an image of this folder and tells how many bytes that gives back, once nobody uses it any more.
func (im *Importer) Remove(_ context.Context, name string) (int64, error) {
	freed, err := im.remove(name)
	if err == nil {
		im.cfg.Forget(name)
	}
	return freed, err
}

func (im *Importer) remove(name string) (int64, error) {
	if err := image.CheckName(name); err != nil {
		return 0, err
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	at := filepath.Join(im.cfg.Dir, name)
	if _, err := os.Lstat(at); err != nil {
		if _, err := im.cfg.Images.Lookup(name); err != nil {
			return 0, err
		}
		e := api.FieldError(api.CodeForbidden, "name", "remove its folder from the machine's image store, as root",
			"image %s is the machine's and not of this instance", name)
		return 0, e
	}
	// Away first, at once, so that a crash leaves no half of it under its name.
	temp, err := os.MkdirTemp(im.cfg.Dir, tempPrefix)
	if err != nil {
		return 0, Stored("image store", err)
	}
	if err := unix.Renameat2(unix.AT_FDCWD, at, unix.AT_FDCWD, filepath.Join(temp, name), unix.RENAME_NOREPLACE); err != nil {
		return 0, errors.Join(fmt.Errorf("remove image %s: %w", name, err), os.RemoveAll(temp))
	}
	size := sizeOf(temp)
	if err := os.RemoveAll(temp); err != nil {
		return 0, fmt.Errorf("remove image %s: %w", name, err)
	}
	return size, syncDir(im.cfg.Dir)
}

// Sweep removes what crashes have left and tells how many bytes it had.
func (im *Importer) Sweep(context.Context) (int64, error) { return im.sweep() }
