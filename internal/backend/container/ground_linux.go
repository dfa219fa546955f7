package container

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/dsec-io/dsec/internal/linux/cgroup"
	"github.com/dsec-io/dsec/internal/linux/mount"
	"golang.org/x/sys/unix"
)

// ground makes the sandbox's groups and its root, both at once: each takes the kernel a while.
// With an error comes what was made, nil and -1 for the rest.
func (b *Backend) ground(sh *shard, o *order, up upper, sl *slot) (groups *cgroup.Box, root int, err error) {
	var rootErr error
	var wg sync.WaitGroup
	wg.Go(func() { root, rootErr = b.takeRoot(up, o, sl) })
	groups, err = b.newGroups(sh, o)
	wg.Wait()
	if err != nil {
		groups = nil
	}
	return groups, root, errors.Join(err, rootErr)
}

// takeRoot gives the sandbox the root of its slot, or makes one.
func (b *Backend) takeRoot(up upper, o *order, sl *slot) (int, error) {
	kind := o.kind.root
	if !sl.fits(kind) {
		b.dropRoot(sl)
		if err := b.newRoot(sl, o.image, up, kind); err != nil {
			return -1, err
		}
	}
	r := sl.root
	// The overlay holds on to its folders, whatever their names are.
	if r.upper != up {
		if err := b.cfg.Faults.At("create:name"); err != nil {
			return -1, fmt.Errorf("name upper: %w", err)
		}
		if err := os.Rename(r.upper.dir, up.dir); err != nil {
			return -1, fmt.Errorf("name upper: %w", err)
		}
	}
	sl.root = nil
	return r.fd, nil
}

// fits tells whether the slot has a root that does.
func (s *slot) fits(kind rootKind) bool {
	return s.root != nil && s.root.kind == kind && kind.digest != ""
}

func (b *Backend) overlay(up upper, lower, userns int) (int, error) {
	if err := b.cfg.Faults.At("create:overlay"); err != nil {
		return -1, err
	}
	skeleton, err := mount.Clone(b.node.skeleton, "")
	if err != nil {
		return -1, err
	}
	defer unix.Close(skeleton)
	if err := mount.IDMap(skeleton, userns); err != nil {
		return -1, err
	}
	return up.overlay(lower, skeleton)
}
