package container

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/dsec-io/dsec/internal/backend/container/userns"
	"github.com/dsec-io/dsec/internal/image"
	"golang.org/x/sys/unix"
)

// slot is what a sandbox needs that can be made ahead: a range of ids and the user namespace that maps it, which the next
// sandbox of the same shard uses again, and a root, which is used once.
type slot struct {
	base   uint32
	userns int
	root   *root // nil: none yet
}

// root is an overlay over an upper of its own, mounted nowhere yet.
type root struct {
	kind  rootKind
	upper upper
	fd    int
}

// rootKind tells roots apart that aren't good for the same sandboxes.
type rootKind struct{ image, digest, hostname string }

func (b *Backend) newSlot(sh *shard) (*slot, error) {
	if err := b.cfg.Faults.At("create:range"); err != nil {
		return nil, err
	}
	base, err := b.cfg.IDs.Range()
	if err != nil {
		return nil, err
	}
	ns, err := b.userNS(sh.uid, base)
	if err != nil {
		b.cfg.IDs.Release(base)
		return nil, err
	}
	return &slot{base: base, userns: ns}, nil
}

func (b *Backend) userNS(owner, base uint32) (int, error) {
	if err := b.cfg.Faults.At("create:userns"); err != nil {
		return -1, err
	}
	return userns.New(owner, base, b.watch, b.node.knobs)
}

func (b *Backend) dropSlot(s *slot) {
	b.dropRoot(s)
	closeFD(s.userns)
	b.cfg.IDs.Release(s.base)
}

func (b *Backend) dropRoot(s *slot) {
	if s.root == nil {
		return
	}
	closeFD(s.root.fd)
	b.discard(s.root.upper.dir)
	s.root = nil
}

// newRoot makes a root for a slot, in the folder up.
func (b *Backend) newRoot(s *slot, im *image.Image, up upper, kind rootKind) (err error) {
	var u undo
	defer u.run()
	u.push(func() { b.discard(up.dir) })
	if err := up.make(s.base, b.cfg.Faults); err != nil {
		return err
	}
	if err := b.cfg.Faults.At("create:lower"); err != nil {
		return err
	}
	lower, err := im.Clone(s.userns)
	if err != nil {
		return err
	}
	defer unix.Close(lower)
	if err := b.cfg.Faults.At("create:identify"); err != nil {
		return err
	}
	if err := up.identify(lower, kind.hostname); err != nil {
		return err
	}
	fd, err := b.overlay(up, lower, s.userns)
	if err != nil {
		return err
	}
	s.root = &root{kind: kind, upper: up, fd: fd}
	u.release()
	return nil
}

// takeSlot gives out a ready slot, best one with a root of the kind that is wanted, or makes one.
func (sh *shard) takeSlot(kind rootKind) (*slot, error) {
	sh.mu.Lock()
	var s *slot
	if n := len(sh.free); n > 0 {
		i := slices.IndexFunc(sh.free, func(s *slot) bool { return s.root != nil && s.root.kind == kind })
		if i < 0 {
			i = slices.IndexFunc(sh.free, func(s *slot) bool { return s.root == nil })
		}
		if i < 0 {
			i = n - 1
		}
		s = sh.free[i]
		sh.free = slices.Delete(sh.free, i, i+1)
	}
	low := sh.lowLocked()
	sh.mu.Unlock()
	if low {
		sh.b.hint()
	}
	if s != nil {
		return s, nil
	}
	return sh.b.newSlot(sh)
}

// lowLocked tells whether the filler has to be woken: for slots, or for roots. A slot comes back from a stopped sandbox
// without its root, so a pool can be full of slots that are only half of what is wanted.
func (sh *shard) lowLocked() bool {
	ready := 0
	for _, s := range sh.free {
		if s.root != nil {
			ready++
		}
	}
	return ready <= sh.b.cfg.PoolSize/2 || sh.readyLowLocked()
}

// returnSlot takes a slot back. What doesn't fit into the pool is given up.
func (sh *shard) returnSlot(s *slot) {
	sh.mu.Lock()
	fits := !sh.ended && len(sh.free) < sh.b.cfg.PoolSize
	if fits {
		sh.free = append(sh.free, s)
	}
	sh.mu.Unlock()
	if !fits {
		sh.b.dropSlot(s)
	}
}

// hint wakes the filler.
func (b *Backend) hint() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// idleShard is how long a shard without a sandbox is kept.
const idleShard = time.Minute

// fill keeps every shard's pool full, and ends shards that nobody has used for a while.
func (b *Backend) fill(ctx context.Context) {
	tick := time.NewTicker(idleShard / 2)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.wake:
		case <-tick.C:
			b.endIdleShards(ctx)
			b.rest(ctx, time.Now())
		}
		b.mu.Lock()
		var all []*shard
		if b.warm {
			for _, sh := range b.shards {
				all = append(all, sh)
			}
		}
		b.mu.Unlock()
		for _, sh := range all {
			b.fillShard(ctx, sh)
			b.stock(ctx, sh)
		}
	}
}

func (b *Backend) fillShard(ctx context.Context, sh *shard) {
	for ctx.Err() == nil && sh.wantsSlot() {
		s, err := b.newSlot(sh) //nolint:contextcheck // a claim of ids is bounded by itself
		if err != nil {
			b.log.Warn("nothing made ahead", slog.String("shard", sh.name), slog.Any("err", err))
			return
		}
		sh.returnSlot(s)
	}
	for ctx.Err() == nil {
		s, kind := sh.slotWithoutRoot()
		if s == nil {
			return
		}
		err := b.prepareRoot(ctx, s, kind)
		sh.returnSlot(s)
		if err != nil {
			b.log.Warn("no root made ahead", slog.String("shard", sh.name), slog.Any("err", err))
			return
		}
	}
}

// slotWithoutRoot takes a slot out of the pool that has no root, and tells what kind was wanted last. A root of another
// kind stays until its slot is used: two images in turns would otherwise have all roots made anew each time.
func (sh *shard) slotWithoutRoot() (*slot, rootKind) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	kind := sh.wanted.root
	if sh.ended || kind.digest == "" { // without a digest nobody can tell if the image is still the same
		return nil, kind
	}
	i := slices.IndexFunc(sh.free, func(s *slot) bool { return s.root == nil })
	if i < 0 {
		return nil, kind
	}
	s := sh.free[i]
	sh.free = slices.Delete(sh.free, i, i+1)
	return s, kind
}

func (b *Backend) prepareRoot(ctx context.Context, s *slot, kind rootKind) error {
	im, err := b.image(ctx, kind.image)
	if err != nil {
		return err
	}
	defer func() { _ = im.Close() }() // the backend keeps a share of its own
	if kind.digest = im.Digest(); kind.digest == "" {
		return nil
	}
	// The dot keeps it apart from sandboxes, whose ids have none; the count, from one that is still being removed.
	return b.newRoot(s, im, b.upper(fmt.Sprintf(".new-%x-%d", s.base, b.roots.Add(1))), kind)
}

// wantsSlot tells if one more slot would find a place and could ever be used.
func (sh *shard) wantsSlot() bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.up && !sh.ended && !sh.own && len(sh.free) < sh.b.cfg.PoolSize && sh.used+len(sh.ready)+len(sh.free) < boxesPerShard
}

func closeFD(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}
