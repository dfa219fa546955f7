package container

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"
)

// slot is what a sandbox needs that can be made ahead, and used again by the next one of the same shard: a range of ids
// and the user namespace that maps it.
type slot struct {
	base   uint32
	userns int
}

func (b *Backend) newSlot(sh *shard) (*slot, error) {
	base, err := b.cfg.IDs.Range()
	if err != nil {
		return nil, err
	}
	ns, err := newUserNS(sh.uid, base, b.watch)
	if err != nil {
		b.cfg.IDs.Release(base)
		return nil, err
	}
	return &slot{base: base, userns: ns}, nil
}

func (b *Backend) dropSlot(s *slot) {
	closeFD(s.userns)
	b.cfg.IDs.Release(s.base)
}

// takeSlot gives out a ready slot, or makes one.
func (sh *shard) takeSlot() (*slot, error) {
	sh.mu.Lock()
	var s *slot
	if n := len(sh.free); n > 0 {
		s = sh.free[n-1]
		sh.free = sh.free[:n-1]
	}
	low := len(sh.free) <= sh.b.cfg.PoolSize/2
	sh.mu.Unlock()
	if low {
		sh.b.hint()
	}
	if s != nil {
		return s, nil
	}
	return sh.b.newSlot(sh)
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
}

// wantsSlot tells if one more slot would find a place and could ever be used.
func (sh *shard) wantsSlot() bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.up && !sh.ended && !sh.own && len(sh.free) < sh.b.cfg.PoolSize && sh.used+len(sh.free) < boxesPerShard
}

func closeFD(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}
