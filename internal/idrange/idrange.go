// Package idrange hands out ranges of user and group ids, and single ids for shard owners, so that no two instances of
// DSec on one machine ever use the same.
//
// Instances claim whole chunks in one machine-wide file that only its lock's holder may change; within its chunks an
// instance's [Allocator] hands out in memory. What is in use is known from the instance's own records: after a restart
// they are named again with Take and TakeOwner before anything new is handed out.
//
// Lock order: Allocator.mu, then the file's lock. All methods are safe for concurrent use.
package idrange

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"
)

// Size is the number of ids in a range.
const Size = 65536

// The layout of the id space: owners of shards first, then the ranges. Both lie above what distributions and other
// container runtimes give out, and the end stays clear of (uid_t)-1 and its neighbours.
const (
	firstOwner     = 0x3f000000
	firstRange     = 0x40000000
	endRange       = 0xf0000000
	rangesPerChunk = 256
	ownersPerChunk = 256
)

// defaultFile is the machine's.
const defaultFile = "/run/dsec/idranges.json"

// How long to wait for the claims' lock: its holders only read and write one small file.
const lockWait = 10 * time.Second

var (
	// ErrExhausted says that all ids of the machine are claimed.
	ErrExhausted = errors.New("no id range left on this machine")
	// ErrNotOurs says that an id isn't in this instance's claim, or is in use already.
	ErrNotOurs = errors.New("id isn't free in this instance's claim")
	// ErrCopied says that another living instance has the same id: one data folder is a copy of the other.
	ErrCopied = errors.New("instance id is in use by another data folder")
)

// Config says where the claims are and for whom to claim.
type Config struct {
	File     string // default /run/dsec/idranges.json; the lock is beside it, with the ending .lock
	Instance string
	// DataDir is the instance's data folder. Its file "lock" must be held for as long as the Allocator is used: that is
	// how others know that the claim isn't stale.
	DataDir string
	// InUse tells whether anything in the kernel still belongs to an instance. Default: a cgroup dsec-INSTANCE exists.
	InUse func(instance string) bool
}

func (c Config) withDefaults() (Config, error) {
	if c.File == "" {
		c.File = defaultFile
	}
	if c.InUse == nil {
		c.InUse = cgroupLeft
	}
	if c.Instance == "" || c.DataDir == "" {
		return c, errors.New("idrange: instance and data folder are needed")
	}
	dir, err := filepath.Abs(c.DataDir)
	if err != nil {
		return c, fmt.Errorf("data folder: %w", err)
	}
	c.DataDir = dir
	return c, nil
}

// Allocator hands out ids of one instance's claim.
type Allocator struct {
	cfg Config

	// mu guards the pools, and is held across a further claim so that one shortage makes one claim.
	mu     sync.Mutex
	ranges pool
	owners pool
}

// Open finds the instance's claim in the machine's file, or makes one, and reclaims what dead instances left.
func Open(ctx context.Context, cfg Config) (*Allocator, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	a := &Allocator{
		cfg:    cfg,
		ranges: pool{first: firstRange, step: Size, perChunk: rangesPerChunk},
		owners: pool{first: firstOwner, step: 1, perChunk: ownersPerChunk},
	}
	err = update(ctx, cfg, func(f *claims) error {
		c, err := f.own(cfg)
		if err != nil {
			return err
		}
		f.dropStale(cfg)
		if err := f.grow(c, len(c.Ranges) == 0, len(c.Owners) == 0); err != nil {
			return err
		}
		a.ranges.setChunks(c.Ranges)
		a.owners.setChunks(c.Owners)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return a, nil
}

// Range hands out the base of a free range of [Size] ids, the one that was released longest ago where there is a choice.
func (a *Allocator) Range() (uint32, error) {
	return a.get(&a.ranges, func(f *claims, c *claim) error { return f.grow(c, true, false) })
}

// OwnerUID hands out a free id for the owner of a shard. It lies outside all ranges.
func (a *Allocator) OwnerUID() (uint32, error) {
	return a.get(&a.owners, func(f *claims, c *claim) error { return f.grow(c, false, true) })
}

// Take marks a range as in use: an adopted sandbox has it.
func (a *Allocator) Take(base uint32) error { return a.take(&a.ranges, base) }

// TakeOwner marks an owner's id as in use: an adopted shard has it.
func (a *Allocator) TakeOwner(uid uint32) error { return a.take(&a.owners, uid) }

// Release gives a range back. Releasing one that isn't in use does nothing.
func (a *Allocator) Release(base uint32) { a.release(&a.ranges, base) }

// ReleaseOwner gives an owner's id back. Releasing one that isn't in use does nothing.
func (a *Allocator) ReleaseOwner(uid uint32) { a.release(&a.owners, uid) }

func (a *Allocator) get(p *pool, grow func(*claims, *claim) error) (uint32, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if id, ok := p.get(); ok {
		return id, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	err := update(ctx, a.cfg, func(f *claims) error {
		c, err := f.own(a.cfg)
		if err != nil {
			return err
		}
		f.dropStale(a.cfg)
		if err := grow(f, c); err != nil {
			return err
		}
		a.ranges.setChunks(c.Ranges)
		a.owners.setChunks(c.Owners)
		return nil
	})
	if err != nil {
		return 0, err
	}
	id, ok := p.get()
	if !ok {
		return 0, ErrExhausted
	}
	return id, nil
}

func (a *Allocator) take(p *pool, id uint32) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !p.take(id) {
		return fmt.Errorf("%w: %#x", ErrNotOurs, id)
	}
	return nil
}

func (a *Allocator) release(p *pool, id uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p.put(id)
}
