package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// Info describes an image without mounting it.
type Info struct {
	Name     string
	Config   Config
	Dir      string // the store that has it
	Size     int64  // bytes of image.erofs
	Modified time.Time
	Err      error // why it can't be used; nil if it can
}

// List tells the images of all stores, sorted by name, without those that a store further ahead hides.
func (s *Store) List() ([]Info, error) {
	var list []Info
	seen := map[string]bool{}
	for _, dir := range s.dirs {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("image store: %w", err)
		}
		for _, e := range entries {
			name := e.Name()
			if seen[name] || CheckName(name) != nil {
				continue
			}
			seen[name] = true
			info := infoIn(dir, name)
			if !errors.Is(info.Err, errNotHere) { // removed since the directory was read
				list = append(list, info)
			}
		}
	}
	slices.SortFunc(list, func(a, b Info) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// Lookup describes one image. That there is none of that name is an [api.Error]; that it is broken is told in Info.
func (s *Store) Lookup(name string) (Info, error) {
	if err := CheckName(name); err != nil {
		return Info{}, err
	}
	for _, dir := range s.dirs {
		if info := infoIn(dir, name); !errors.Is(info.Err, errNotHere) {
			return info, nil
		}
	}
	return Info{}, noSuchImage(name)
}

func infoIn(dir, name string) Info {
	info := Info{Name: name, Dir: dir}
	f, err := findIn(dir, name)
	if err != nil {
		info.Err = err
		return info
	}
	defer f.close()
	info.Size = f.id[0].size
	info.Modified = time.Unix(0, f.id[1].mtime).UTC()
	info.Config, info.Err = f.check()
	return info
}
