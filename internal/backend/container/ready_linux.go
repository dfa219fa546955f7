package container

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/edge"
	"github.com/dsec-io/dsec/internal/linux/cgroup"
)

// boxKind is what is fixed when a sandbox's init is born: one that was made ahead can stand in for another of its kind
// only.
type boxKind struct {
	root          rootKind
	user, workdir string
	limits        cgroup.Limits
	cpus          int32 // processors that it is shown; 0: all
}

func (b *Backend) kindOf(s api.Spec, digest string) boxKind {
	return boxKind{
		root: rootKind{image: s.Image, digest: digest, hostname: s.Hostname},
		user: s.User, workdir: s.Workdir, limits: limits(s.Resources), cpus: b.shownCPUs(s.Resources),
	}
}

// staleReady is how long a sandbox that was made ahead is kept when others than its kind are wanted.
const staleReady = 10 * time.Second

// want remembers what kind is in demand.
func (sh *shard) want(kind boxKind) {
	sh.mu.Lock()
	sh.wanted, sh.wantedAt = kind, time.Now()
	sh.mu.Unlock()
}

// Take reserves a sandbox that was made ahead from the image with that digest, if there is one of the kind, and returns
// its id. The caller then calls Start with that id, or PutBack. What was made ahead of one project is never another's: it
// lives in a shard of the project's.
func (b *Backend) Take(project string, s api.Spec, digest string) (string, bool) {
	if b.cfg.NewID == nil || s.Isolation == "own" {
		return "", false
	}
	kind := b.kindOf(s, digest)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return "", false
	}
	for _, sh := range b.shards {
		if sh.project != project {
			continue
		}
		if x := sh.takeReady(kind); x != nil {
			b.claims[x.id] = x
			return x.id, true
		}
	}
	return "", false
}

// takeReady gives out a sandbox of the kind, which from then on has one of the shard's places.
func (sh *shard) takeReady(kind boxKind) *box {
	if kind.root.digest == "" { // nobody can tell if the image is still the same
		return nil
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.ended || !sh.up {
		return nil
	}
	i := slices.IndexFunc(sh.ready, func(x *box) bool { return x.kind == kind && !x.isDead() })
	if i < 0 {
		return nil
	}
	x := sh.ready[i]
	sh.ready = slices.Delete(sh.ready, i, i+1)
	sh.used++
	sh.wanted, sh.wantedAt = kind, time.Now()
	if sh.lowLocked() {
		sh.b.hint()
	}
	return x
}

// taken gives out what Take has reserved under an id, once.
func (b *Backend) taken(id string) *box {
	b.mu.Lock()
	defer b.mu.Unlock()
	x := b.claims[id]
	delete(b.claims, id)
	return x
}

// PutBack gives up what Take has reserved, if it has and Start wasn't called.
func (b *Backend) PutBack(id string) {
	x := b.taken(id)
	if x == nil {
		return
	}
	x.sh.mu.Lock()
	fits := !x.sh.ended && !x.sh.sealed
	if fits {
		x.sh.used--
		x.sh.ready = append(x.sh.ready, x)
	}
	x.sh.mu.Unlock()
	if !fits {
		b.settle(context.Background(), x.id, x.Stop)
	}
}

// hand makes a sandbox that was made ahead the caller's. Nothing is persisted: as long as it has no record it is removed
// at the next start, and the edge makes one before anybody is told of it.
func (b *Backend) hand(ctx context.Context, x *box, p *edge.BoxParams) error {
	err := b.cfg.Faults.At("ready:hand")
	if ends := endOf(p.Spec.TTL); err == nil && ends != 0 {
		x.mu.Lock()
		x.st.Ends = ends
		x.mu.Unlock()
		err = x.announce(ctx) // again, with what is new
	}
	if err == nil && x.isDead() {
		err = errors.New("init has died")
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		b.settle(ctx, x.id, x.Stop)
	}
	return err
}

// readyLowLocked tells whether sandboxes should be made ahead.
func (sh *shard) readyLowLocked() bool {
	return sh.b.cfg.NewID != nil && !sh.sealed && sh.wanted.root.digest != "" && len(sh.ready) <= sh.b.cfg.PoolSize/4
}

// wantsReady tells if one more sandbox would find a place, and of what kind it should be.
func (sh *shard) wantsReady() (boxKind, bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	ok := sh.b.cfg.NewID != nil && sh.up && !sh.ended && !sh.sealed && !sh.own && sh.wanted.root.digest != "" &&
		len(sh.ready) < sh.b.cfg.PoolSize/2 && sh.used+len(sh.ready) < boxesPerShard
	return sh.wanted, ok
}

// stock makes sandboxes ahead until the shard has enough.
func (b *Backend) stock(ctx context.Context, sh *shard) {
	b.dropStale(ctx, sh)
	for ctx.Err() == nil {
		kind, ok := sh.wantsReady()
		if !ok || b.cfg.Spare != nil && !b.cfg.Spare() {
			return
		}
		if err := b.makeReady(ctx, sh, kind); err != nil {
			if ctx.Err() == nil {
				b.log.Warn("no sandbox made ahead", slog.String("shard", sh.name), slog.Any("err", err))
			}
			return
		}
	}
}

func (b *Backend) makeReady(ctx context.Context, sh *shard, kind boxKind) error {
	im, err := b.image(ctx, kind.root.image)
	if err != nil {
		return err
	}
	defer func() { _ = im.Close() }() // the backend keeps a share of its own
	if kind.root.digest = im.Digest(); kind.root.digest == "" {
		return nil
	}
	// Nothing is persisted: what has no record is removed at the next start.
	x, err := b.make(ctx, sh, order{id: b.cfg.NewID(), kind: kind, image: im, persist: func(json.RawMessage) error { return nil }})
	if err != nil {
		return err
	}
	x.kind, x.made = kind, time.Now()
	sh.mu.Lock()
	fits := !sh.ended && !sh.sealed
	if fits {
		sh.ready = append(sh.ready, x)
	} else {
		sh.used++ // it leaves it when it is stopped
	}
	sh.mu.Unlock()
	if !fits {
		return x.Stop(context.WithoutCancel(ctx))
	}
	return nil
}

// dropStale ends what was made ahead and has died, or isn't wanted any more and takes the place of what is.
func (b *Backend) dropStale(ctx context.Context, sh *shard) {
	sh.endReady(ctx, func(x *box) bool {
		return x.isDead() || x.kind != sh.wanted && time.Since(x.made) > staleReady
	})
}

// rest ends what was made ahead for projects that have asked for nothing for a while, so that it isn't the memory of many
// who only keep what they have.
func (b *Backend) rest(ctx context.Context, now time.Time) {
	for _, sh := range b.allShards() {
		sh.mu.Lock()
		idle := now.Sub(sh.wantedAt) >= idleShard
		if idle {
			sh.wanted = boxKind{}
		}
		sh.mu.Unlock()
		if idle {
			sh.endReady(ctx, func(*box) bool { return true })
		}
	}
}

func (b *Backend) allShards() []*shard {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Values(b.shards))
}

// dropReady ends everything that was made ahead in a shard, and makes nothing more.
func (b *Backend) dropReady(ctx context.Context, sh *shard) {
	sh.mu.Lock()
	sh.sealed = true
	sh.mu.Unlock()
	sh.endReady(ctx, func(*box) bool { return true })
}

// dropAllReady does so in all shards, also to what has been taken and wasn't used.
func (b *Backend) dropAllReady(ctx context.Context) {
	b.mu.Lock()
	unused := slices.Collect(maps.Keys(b.claims))
	b.mu.Unlock()
	for _, sh := range b.allShards() {
		b.dropReady(ctx, sh)
	}
	for _, id := range unused {
		b.PutBack(id) //nolint:contextcheck // it is bounded by itself
	}
}

// endReady ends those sandboxes made ahead for which which, called with the shard's lock held, says so.
func (sh *shard) endReady(ctx context.Context, which func(*box) bool) {
	var out []*box
	sh.mu.Lock()
	sh.ready = slices.DeleteFunc(sh.ready, func(x *box) bool {
		if !which(x) {
			return false
		}
		out = append(out, x)
		return true
	})
	sh.used += len(out) // each leaves it when it is stopped
	sh.mu.Unlock()
	var ending sync.WaitGroup
	for _, x := range out {
		ending.Go(func() { sh.b.settle(ctx, x.id, x.Stop) })
	}
	ending.Wait()
}
