package container

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/linux/cgroup"
	"golang.org/x/sys/unix"
)

const (
	boxesPerShard = 128
	shardPrefix   = "shard-"
	dialTimeout   = 5 * time.Second
	redialPause   = 5 * time.Millisecond
	longestPause  = 500 * time.Millisecond
	callTimeout   = 10 * time.Second // of one unary call to a shard
)

// shard is the edge's side of one shard.
type shard struct {
	b       *Backend
	name    string
	project string
	own     bool // for one sandbox only
	uid     uint32
	groups  *cgroup.Shard
	started chan struct{} // closed when the start has come to an end, good (err nil) or bad
	err     error

	// mu guards what follows.
	mu        sync.Mutex
	up        bool
	conn      *aether.Conn
	changed   chan struct{} // closed, and replaced, when up or ended changes
	boxes     map[string]*box
	used      int // boxes, and those being made
	free      []*slot
	ready     []*box  // made ahead, not among used
	wanted    boxKind // of the last sandbox
	wantedAt  time.Time
	sealed    bool // nothing is made ahead any more
	ended     bool
	idleSince time.Time
}

func (b *Backend) newShard(name, project string, own bool) *shard {
	return &shard{
		b: b, name: name, project: project, own: own, started: make(chan struct{}),
		changed: make(chan struct{}), boxes: make(map[string]*box), idleSince: time.Now(),
	}
}

func (sh *shard) socket() string {
	return filepath.Join(sh.b.cfg.RunDir, "s"+strings.TrimPrefix(sh.name, shardPrefix)+".sock")
}

// place finds a shard of the project that has room, or starts one, and takes a place in it.
func (b *Backend) place(ctx context.Context, project string, own bool) (*shard, error) {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil, errClosed
	}
	var sh *shard
	if !own {
		for _, s := range b.shards {
			if s.project == project && !s.own && s.take() {
				sh = s
				break
			}
		}
	}
	fresh := sh == nil
	if fresh {
		sh = b.newShard(b.freeNameLocked(), project, own)
		sh.used = 1
		b.shards[sh.name] = sh
	}
	b.mu.Unlock()
	if fresh {
		// A start that was begun is ended whatever becomes of this request: others may wait for it.
		b.goTask(func(life context.Context) { b.finishStart(sh, b.startNew(life, sh)) })
	}
	select {
	case <-sh.started:
	case <-ctx.Done():
		sh.leave()
		return nil, context.Cause(ctx)
	}
	if sh.err != nil {
		return nil, fmt.Errorf("start %s: %w", sh.name, sh.err)
	}
	return sh, nil
}

func (b *Backend) finishStart(sh *shard, err error) {
	sh.err = err
	if err != nil {
		b.mu.Lock()
		delete(b.shards, sh.name)
		b.mu.Unlock()
	}
	close(sh.started)
	if err == nil {
		b.hint()
	}
}

func (b *Backend) freeNameLocked() string {
	for n := 0; ; n++ {
		if name := shardPrefix + strconv.Itoa(n); b.shards[name] == nil {
			return name
		}
	}
}

// take takes a place if there is one.
func (sh *shard) take() bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.ended || sh.used+len(sh.ready) >= boxesPerShard {
		return false
	}
	sh.used++
	return true
}

// keepPlace takes the place of a sandbox that lives in the shard already: what was made ahead since may have filled it up.
func (sh *shard) keepPlace() bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.ended {
		return false
	}
	sh.used++
	return true
}

// leave gives a place back.
func (sh *shard) leave() {
	sh.mu.Lock()
	sh.used--
	last := sh.used == 0
	if last {
		sh.idleSince = time.Now()
	}
	sh.mu.Unlock()
	if last && sh.own {
		sh.b.goTask(func(ctx context.Context) {
			if sh.end(func() bool { return true }) {
				sh.b.removeShard(ctx, sh)
			}
		})
	}
}

// startNew starts a shard that has never run.
func (b *Backend) startNew(ctx context.Context, sh *shard) (err error) {
	var u undo
	defer u.run()
	if err := b.cfg.Faults.At("shard:owner"); err != nil {
		return err
	}
	sh.uid, err = b.cfg.IDs.OwnerUID() //nolint:contextcheck // a claim is bounded by itself and outlives the request
	if err != nil {
		return err
	}
	u.push(func() { b.cfg.IDs.ReleaseOwner(sh.uid) })
	if err := b.openGroups(sh); err != nil {
		return err
	}
	u.push(func() {
		ctx, cancel := settling(ctx)
		defer cancel()
		if err := errors.Join(sh.groups.Remove(ctx), sh.groups.Close()); err != nil {
			b.log.Warn("groups of a shard not removed", slog.String("shard", sh.name), slog.Any("err", err))
		}
	})
	if err := b.awaitProcess(ctx, sh); err != nil {
		return err
	}
	u.push(func() {
		if err := b.stopProcess(sh); err != nil {
			b.log.Warn("shard not stopped", slog.String("shard", sh.name), slog.Any("err", err))
		}
	})
	if err := sh.connect(ctx); err != nil {
		return err
	}
	u.release()
	b.goTask(sh.stayConnected)
	b.log.Info("shard started", slog.String("shard", sh.name), slog.String("project", sh.project), slog.Uint64("uid", uint64(sh.uid)))
	return nil
}

func (b *Backend) openGroups(sh *shard) (err error) {
	if err := b.cfg.Faults.At("shard:groups"); err != nil {
		return err
	}
	sh.groups, err = b.cfg.Cgroups.Shard(sh.name, int(sh.uid))
	return err
}

func (sh *shard) isEnded() bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.ended
}

// end marks the shard as ended if nobody uses it and ok says so; nobody gets a place in it afterwards.
func (sh *shard) end(ok func() bool) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.ended || sh.used > 0 || !ok() {
		return false
	}
	sh.ended = true
	sh.changeLocked()
	return true
}

// endIdleShards ends shards that had no sandbox for a while.
func (b *Backend) endIdleShards(ctx context.Context) {
	for _, sh := range b.allShards() {
		if sh.end(func() bool { return time.Since(sh.idleSince) >= idleShard }) {
			b.removeShard(ctx, sh)
		}
	}
}

// removeShard removes all of a shard that has been ended.
func (b *Backend) removeShard(ctx context.Context, sh *shard) {
	<-sh.started
	if sh.err != nil {
		return
	}
	ctx, cancel := settling(ctx)
	defer cancel()
	b.dropReady(ctx, sh)
	sh.mu.Lock()
	free, conn := sh.free, sh.conn
	sh.free = nil
	sh.mu.Unlock()
	for _, s := range free {
		b.dropSlot(s)
	}
	err := b.stopProcess(sh)
	if conn != nil {
		err = errors.Join(err, conn.Close())
	}
	if err = errors.Join(err, sh.groups.Remove(ctx), sh.groups.Close()); err != nil {
		b.log.Warn("shard not removed", slog.String("shard", sh.name), slog.Any("err", err))
	}
	b.cfg.IDs.ReleaseOwner(sh.uid)
	b.mu.Lock()
	delete(b.shards, sh.name)
	b.mu.Unlock()
	b.log.Info("shard ended", slog.String("shard", sh.name))
}

// closeShards gives back what this process holds of the shards.
func (b *Backend) closeShards() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, sh := range b.shards {
		sh.mu.Lock()
		for _, s := range sh.free {
			b.dropRoot(s)
			closeFD(s.userns)
		}
		sh.free = nil
		sh.ended = true
		sh.changeLocked()
		conn, groups := sh.conn, sh.groups
		sh.mu.Unlock()
		if conn != nil {
			_ = conn.Close()
		}
		if groups != nil {
			_ = groups.Close()
		}
	}
}

// settling is a context for taking things back: the request's end doesn't end it, but time does.
func settling(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), settleTime)
}

func unlink(path string) error {
	if err := unix.Unlink(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}
