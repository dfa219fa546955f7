package container

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dsec-io/dsec/internal/aetherbin"
	"github.com/dsec-io/dsec/internal/backend/container/trash"
	"github.com/dsec-io/dsec/internal/edge"
	"github.com/dsec-io/dsec/internal/fault"
	"github.com/dsec-io/dsec/internal/idrange"
	"github.com/dsec-io/dsec/internal/image"
	"github.com/dsec-io/dsec/internal/keeper"
	"github.com/dsec-io/dsec/internal/linux/cgroup"
	"github.com/dsec-io/dsec/internal/linux/pidfd"
	"github.com/dsec-io/dsec/internal/linux/proc"
	"github.com/dsec-io/dsec/internal/spawn"
)

// The interfaces of the edge that a Backend and its boxes fulfil.
var (
	_ edge.Backend = (*Backend)(nil)
	_ edge.Warmer  = (*Backend)(nil)
	_ edge.Stocker = (*Backend)(nil)
	_ edge.Lister  = (*Backend)(nil)
	_ edge.Box     = (*box)(nil)
)

// Config is what a Backend is made of. All but Aether, Notify and PoolSize are required.
type Config struct {
	InstanceID string
	DataDir    string // its folder upper holds the sandboxes' files
	RunDir     string // sockets: a short path, mode 0700
	Images     *image.Store
	IDs        *idrange.Allocator
	Cgroups    *cgroup.Driver
	Logger     *slog.Logger
	Aether     []byte // the program dsec-aether; nil: the embedded one
	// PoolSize is how many user namespaces are kept ready per shard; 0 makes each when it is needed.
	PoolSize int
	// NewID names sandboxes that are made ahead, half as many as PoolSize; nil: none are.
	NewID func() string
	// Spare tells whether the machine has memory to spare for sandboxes made ahead; nil: it has.
	Spare func() bool
	// Notify is told when something has happened to a sandbox, and data of it; it must not block. May be nil.
	Notify func(sandbox string, n Notice, data map[string]any)
	// OrphanLimit is how long sandboxes go on when nothing is connected to their shards; 0: the shards' default, 1 h.
	OrphanLimit time.Duration
	// TestHooks gives shards the methods by which tests disturb them.
	TestHooks bool
	// Faults is what tests make go wrong; nil: nothing.
	Faults *fault.Set
}

// errClosed is why nothing is made any more.
var errClosed = errors.New("backend is closed")

// Notice is something that happened to a sandbox. Its values are names of events.
type Notice string

// Between the two an exec waits, or is refused as not started.
const (
	AetherLost Notice = "aether_lost"
	AetherBack Notice = "aether_back"
)

// Limits that a sandbox has met.
const (
	OutOfMemory Notice = "oom"        // processes were killed: data has "kills", "total", "limit_bytes" and "peak_bytes"
	PIDsLimit   Notice = "pids_limit" // processes or threads were refused: data has "refused" and "total"
)

func (c Config) validate() error {
	var faults []error
	need := func(ok bool, what string) {
		if !ok {
			faults = append(faults, errors.New("container: no "+what))
		}
	}
	need(c.InstanceID != "", "instance id")
	need(c.DataDir != "", "data folder")
	need(c.RunDir != "", "run folder")
	need(c.Images != nil, "images")
	need(c.IDs != nil, "id ranges")
	need(c.Cgroups != nil, "cgroups")
	need(c.Logger != nil, "logger")
	if c.PoolSize < 0 || c.PoolSize > boxesPerShard {
		faults = append(faults, fmt.Errorf("container: pool size %d isn't in 0 to %d", c.PoolSize, boxesPerShard))
	}
	return errors.Join(faults...)
}

// Backend makes containers.
type Backend struct {
	cfg      Config
	log      *slog.Logger
	node     *node
	boot     string
	watcher  *pidfd.Watcher
	watch    *spawn.Watch
	shardLog int // the shards' log, for writing

	// goTask runs f until Close, with a context that ends there.
	goTask func(f func(context.Context))
	cancel context.CancelCauseFunc
	tasks  *sync.WaitGroup
	wake   chan struct{} // one pending hint to the filler is enough
	idle   chan struct{} // closed when the filler has ended
	unfill context.CancelCauseFunc
	roots  atomic.Uint64 // made ahead so far
	trash  *trash.Bin

	// mu guards what follows.
	mu     sync.Mutex
	shards map[string]*shard
	boxes  map[string]*box
	claims map[string]*box         // made ahead, and taken for a sandbox that is being created
	images map[string]*image.Image // the newest of each name, so that its mount stays
	keeper *keeper.Client
	warm   bool
	closed bool
}

const (
	settleTime  = 10 * time.Second // how long taking things back may take after its request has ended
	logFileMode = 0o600
)

// New makes a Backend and connects it to the instance's keeper, which it starts if there is none.
func New(ctx context.Context, cfg Config) (_ *Backend, err error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	b := &Backend{
		cfg: cfg, log: cfg.Logger, watch: &spawn.Watch{}, shardLog: -1,
		wake: make(chan struct{}, 1), tasks: &sync.WaitGroup{},
		idle: make(chan struct{}), claims: make(map[string]*box),
		shards: make(map[string]*shard), boxes: make(map[string]*box), images: make(map[string]*image.Image),
	}
	life, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	b.cancel = cancel
	b.goTask = func(f func(context.Context)) { b.tasks.Go(func() { f(life) }) }
	b.trash = trash.New(b.log, cfg.Faults, b.goTask)
	defer func() {
		if err != nil {
			err = errors.Join(err, b.release())
		}
	}()
	if b.boot, err = proc.BootID(); err != nil {
		return nil, err
	}
	if cfg.Aether == nil {
		if cfg.Aether, err = aetherbin.Program(); err != nil {
			return nil, err
		}
	}
	if b.node, err = newNode(cfg.Aether); err != nil {
		return nil, err
	}
	if b.watcher, err = pidfd.NewWatcher(); err != nil {
		return nil, err
	}
	if err := b.prepareFolders(); err != nil {
		return nil, err
	}
	if err := b.connectKeeper(ctx); err != nil {
		return nil, err
	}
	b.goTask(b.watchKeeper)
	filling, unfill := context.WithCancelCause(life)
	b.unfill = unfill
	b.goTask(func(context.Context) {
		defer close(b.idle)
		b.fill(filling)
	})
	b.goTask(b.trash.Empty)
	return b, nil
}

// Name is the spec's word for this backend.
func (b *Backend) Name() string { return "container" }

func (b *Backend) prepareFolders() error {
	for _, d := range []string{b.cfg.RunDir, b.upperDir()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return fmt.Errorf("make folder: %w", err)
		}
	}
	spread(b.upperDir())
	f, err := os.OpenFile(filepath.Join(b.cfg.RunDir, "aether.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, logFileMode)
	if err != nil {
		return fmt.Errorf("open the shards' log: %w", err)
	}
	defer f.Close()
	b.shardLog, err = dup(f)
	return err
}

func (b *Backend) upperDir() string { return filepath.Join(b.cfg.DataDir, "upper") }

func (b *Backend) upper(id string) upper { return upper{dir: filepath.Join(b.upperDir(), id)} }

// Warm ends what an earlier process left and no adopted sandbox needs, and starts to make things ahead.
func (b *Backend) Warm() {
	// Waited for: a new shard may get the name of one that is left.
	done := make(chan struct{})
	b.goTask(func(ctx context.Context) {
		defer close(done)
		ctx, cancel := context.WithTimeout(ctx, settleTime)
		defer cancel()
		if err := b.removeLeftShards(ctx); err != nil {
			b.log.Warn("shards of an earlier run not removed", slog.Any("err", err))
		}
	})
	<-done
	for _, sh := range b.allShards() {
		sh.pruneSoon()
	}
	b.discardLeftUppers()
	b.mu.Lock()
	b.warm = true
	b.mu.Unlock()
	b.hint()
}

// discardLeftUppers removes the files of sandboxes that nobody knows.
func (b *Backend) discardLeftUppers() {
	entries, err := os.ReadDir(b.upperDir())
	if err != nil {
		b.log.Warn("left files not looked for", slog.Any("err", err))
		return
	}
	for _, e := range entries {
		b.mu.Lock()
		_, known := b.boxes[e.Name()]
		b.mu.Unlock()
		if !known {
			b.discard(filepath.Join(b.upperDir(), e.Name()))
		}
	}
}

// discard has a folder removed in the background; its name is free at once.
func (b *Backend) discard(dir string) { b.trash.Put(dir) }

// Close gives back what this process holds. Sandboxes, their shards and the keeper go on; where there is no sandbox,
// nothing is left.
func (b *Backend) Close(ctx context.Context) error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	b.mu.Unlock()
	b.unfill(errClosed)
	<-b.idle
	b.dropAllReady(ctx)
	b.mu.Lock()
	boxes := len(b.boxes)
	b.mu.Unlock()
	err := b.release()
	if boxes == 0 {
		err = errors.Join(err, b.removeAll(ctx))
	}
	return err
}

// release ends the background tasks and closes descriptors.
func (b *Backend) release() error {
	b.cancel(errClosed)
	b.mu.Lock()
	client := b.keeper
	b.mu.Unlock()
	var err error
	if client != nil {
		err = client.Close()
	}
	b.closeShards()
	b.tasks.Wait()
	b.trash.Finish()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, x := range b.boxes {
		x.forget()
	}
	for _, im := range b.images {
		err = errors.Join(err, im.Close())
	}
	if b.watcher != nil {
		b.watcher.Close()
	}
	if b.node != nil {
		b.node.close()
	}
	closeFD(b.shardLog)
	return err
}

// image opens an image and keeps a share in it, so that its mount outlives the creation.
func (b *Backend) image(ctx context.Context, name string) (*image.Image, error) {
	if err := b.cfg.Faults.At("create:image"); err != nil {
		return nil, err
	}
	im, err := b.cfg.Images.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	kept, err := b.cfg.Images.Open(ctx, name)
	if err != nil {
		return nil, errors.Join(err, im.Close())
	}
	b.mu.Lock()
	old := b.images[name]
	b.images[name] = kept
	b.mu.Unlock()
	if old != nil {
		err = old.Close()
	}
	return im, err
}
