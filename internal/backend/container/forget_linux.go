package container

import (
	"context"
	"log/slog"
)

// ForgetImage gives up what is held of an image that has another content by now, or none, so that the disk gets it back
// with the last sandbox that was made from it.
func (b *Backend) ForgetImage(name string) {
	b.mu.Lock()
	old := b.images[name]
	delete(b.images, name)
	b.mu.Unlock()
	for _, sh := range b.allShards() {
		sh.endReady(context.Background(), func(x *box) bool { return x.kind.root.image == name })
		for _, s := range sh.forgetImage(name) {
			b.dropRoot(s)
			sh.returnSlot(s)
		}
	}
	if old == nil {
		return
	}
	if err := old.Close(); err != nil {
		b.log.Warn("share in an image not given back", slog.String("image", name), slog.Any("err", err))
	}
}

// forgetImage takes the slots out of the pool whose roots are of an image, and has no more made.
func (sh *shard) forgetImage(name string) []*slot {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.wanted.root.image == name {
		sh.wanted = boxKind{}
	}
	var taken, rest []*slot
	for _, s := range sh.free {
		if s.root != nil && s.root.kind.image == name {
			taken = append(taken, s)
		} else {
			rest = append(rest, s)
		}
	}
	sh.free = rest
	return taken
}
