package idrange

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dsec-io/dsec/internal/flock"
)

// claims is the machine-wide file.
type claims struct {
	Version int      `json:"version"`
	Claims  []*claim `json:"claims"`
}

// claim is what one instance has: numbers of chunks.
type claim struct {
	Instance string   `json:"instance"`
	DataDir  string   `json:"data_dir"`
	Ranges   []uint32 `json:"ranges"`
	Owners   []uint32 `json:"owners"`
}

const (
	maxRangeChunks = (endRange - firstRange) / Size / rangesPerChunk
	maxOwnerChunks = (firstRange - firstOwner) / ownersPerChunk
)

// update changes the machine's file under its lock. The new content is in place whole or not at all.
func update(ctx context.Context, cfg Config, change func(*claims) error) (err error) {
	if err := os.MkdirAll(filepath.Dir(cfg.File), 0o700); err != nil {
		return fmt.Errorf("folder of the id claims: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	lock, err := flock.Wait(ctx, strings.TrimSuffix(cfg.File, ".json")+".lock")
	if err != nil {
		return fmt.Errorf("id claims: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	f, err := load(cfg.File)
	if err != nil {
		return err
	}
	if err := change(f); err != nil {
		return err
	}
	return f.store(cfg.File)
}

func load(file string) (*claims, error) {
	raw, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return &claims{Version: 1}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read id claims: %w", err)
	}
	f := &claims{}
	if err := json.Unmarshal(raw, f); err != nil {
		// Going on without it could give one range to two sandboxes.
		return nil, fmt.Errorf("id claims in %s: %w; remove the file when no DSec instance runs on this machine", file, err)
	}
	if err := f.check(); err != nil {
		return nil, fmt.Errorf("id claims in %s: %w", file, err)
	}
	return f, nil
}

func (f *claims) check() error {
	if f.Version != 1 {
		return fmt.Errorf("version %d is unknown", f.Version)
	}
	ranges, owners := map[uint32]bool{}, map[uint32]bool{}
	for _, c := range f.Claims {
		if c == nil {
			return errors.New("null claim")
		}
		for _, n := range c.Ranges {
			if n >= maxRangeChunks || ranges[n] {
				return fmt.Errorf("range chunk %d is out of bounds or claimed twice", n)
			}
			ranges[n] = true
		}
		for _, n := range c.Owners {
			if n >= maxOwnerChunks || owners[n] {
				return fmt.Errorf("owner chunk %d is out of bounds or claimed twice", n)
			}
			owners[n] = true
		}
	}
	return nil
}

func (f *claims) store(file string) error {
	raw, err := json.MarshalIndent(f, "", " ")
	if err != nil {
		return fmt.Errorf("encode id claims: %w", err)
	}
	tmp := file + ".tmp" // one name will do: only the lock's holder writes it
	if err := os.WriteFile(tmp, append(raw, '\n'), 0o600); err != nil {
		return fmt.Errorf("write id claims: %w", err)
	}
	if err := os.Rename(tmp, file); err != nil {
		return fmt.Errorf("put id claims in place: %w", err)
	}
	return nil
}

// own finds cfg's claim or adds an empty one. A data folder that was moved keeps its claim; a copy is refused while the
// original lives.
func (f *claims) own(cfg Config) (*claim, error) {
	for _, c := range f.Claims {
		if c.Instance != cfg.Instance {
			continue
		}
		if c.DataDir != cfg.DataDir && !sameFolder(c.DataDir, cfg.DataDir) && folderLives(c) {
			return nil, fmt.Errorf("%w: %s and %s both have the id %s", ErrCopied, c.DataDir, cfg.DataDir, cfg.Instance)
		}
		c.DataDir = cfg.DataDir
		return c, nil
	}
	c := &claim{Instance: cfg.Instance, DataDir: cfg.DataDir}
	f.Claims = append(f.Claims, c)
	return c, nil
}

func sameFolder(a, b string) bool {
	sa, errA := os.Stat(a)
	sb, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(sa, sb)
}

// dropStale removes the claims of instances that don't run and left nothing in the kernel.
func (f *claims) dropStale(cfg Config) {
	f.Claims = slices.DeleteFunc(f.Claims, func(c *claim) bool {
		return c.Instance != cfg.Instance && !folderLives(c) && !cfg.InUse(c.Instance)
	})
}

// folderLives tells whether a process holds the claim's data folder. What can't be found out counts as yes.
func folderLives(c *claim) bool {
	if _, err := os.Stat(c.DataDir); errors.Is(err, os.ErrNotExist) {
		return false
	}
	free, err := flock.Free(filepath.Join(c.DataDir, "lock"))
	return err != nil || !free
}

func (f *claims) grow(c *claim, ranges, owners bool) error {
	if ranges {
		n, ok := lowestFree(maxRangeChunks, func(yield func([]uint32)) {
			for _, c := range f.Claims {
				yield(c.Ranges)
			}
		})
		if !ok {
			return ErrExhausted
		}
		c.Ranges = append(c.Ranges, n)
	}
	if owners {
		n, ok := lowestFree(maxOwnerChunks, func(yield func([]uint32)) {
			for _, c := range f.Claims {
				yield(c.Owners)
			}
		})
		if !ok {
			return ErrExhausted
		}
		c.Owners = append(c.Owners, n)
	}
	return nil
}

func lowestFree(limit uint32, taken func(func([]uint32))) (uint32, bool) {
	used := map[uint32]bool{}
	taken(func(chunks []uint32) {
		for _, n := range chunks {
			used[n] = true
		}
	})
	for n := range limit {
		if !used[n] {
			return n, true
		}
	}
	return 0, false
}

// cgroupLeft looks for an instance's cgroup in every hierarchy that is mounted in the usual place.
func cgroupLeft(instance string) bool {
	for _, pattern := range []string{"/sys/fs/cgroup/dsec-", "/sys/fs/cgroup/*/dsec-"} {
		if found, err := filepath.Glob(pattern + instance); err != nil || len(found) > 0 {
			return true
		}
	}
	return false
}
