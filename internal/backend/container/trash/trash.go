// Package trash removes folders in the background.
//
// A folder is renamed first, with a dot before its name, so that its name is free at once and whoever starts later knows
// what it is. What can't be done is tried again until it can: a disk that was full or faulty for a moment keeps nobody's
// files.
package trash

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/dsec-io/dsec/internal/fault"
)

const (
	queue     = 1024                   // folders that wait
	firstTidy = 100 * time.Millisecond // after what couldn't be removed is tried again, and later
	lastTidy  = 10 * time.Second
)

// Bin is where folders go. It is safe for concurrent use.
type Bin struct {
	log    *slog.Logger
	faults *fault.Set
	goTask func(f func(context.Context)) // runs f until the owner ends
	queue  chan string
}

// New makes a Bin whose owner runs Empty, and tasks until its context ends; Finish comes after them.
func New(log *slog.Logger, faults *fault.Set, goTask func(f func(context.Context))) *Bin {
	return &Bin{log: log, faults: faults, goTask: goTask, queue: make(chan string, queue)}
}

// Put has a folder removed.
func (b *Bin) Put(dir string) {
	err := b.tryPut(dir)
	if err == nil {
		return
	}
	b.log.Warn("files of a sandbox not removed yet", slog.String("dir", dir), slog.Any("err", err))
	b.again(func() error { return b.tryPut(dir) })
}

// again calls f in the background until it succeeds, at the latest when the owner ends.
func (b *Bin) again(f func() error) {
	b.goTask(func(ctx context.Context) {
		for pause := firstTidy; ctx.Err() == nil; pause = min(2*pause, lastTidy) {
			select {
			case <-ctx.Done(): // once more
			case <-time.After(pause):
			}
			if f() == nil {
				return
			}
		}
	})
}

var errFull = errors.New("too much else is being removed")

func (b *Bin) tryPut(dir string) error {
	gone := dir
	if base := filepath.Base(dir); base[0] != '.' {
		gone = filepath.Join(filepath.Dir(dir), "."+base)
		err := b.faults.At("end:upper")
		if err == nil {
			err = os.Rename(dir, gone)
		}
		switch {
		case errors.Is(err, os.ErrNotExist):
			if _, err := os.Lstat(gone); err != nil { // not left there by an earlier try
				return nil
			}
		case err != nil:
			return err
		}
	}
	select {
	case b.queue <- gone:
		return nil
	default:
		return errFull
	}
}

// Empty removes what is put, until ctx ends.
func (b *Bin) Empty(ctx context.Context) {
	for {
		select {
		case dir := <-b.queue:
			if b.remove(dir) != nil {
				b.again(func() error { return b.remove(dir) })
			}
		case <-ctx.Done():
			return
		}
	}
}

func (b *Bin) remove(dir string) error {
	err := b.faults.At("end:files")
	if err == nil {
		err = os.RemoveAll(dir)
	}
	if err != nil {
		b.log.Warn("files of a sandbox not removed", slog.String("dir", dir), slog.Any("err", err))
	}
	return err
}

// Finish removes what is still to be removed when the tasks have ended.
func (b *Bin) Finish() {
	for {
		select {
		case dir := <-b.queue:
			_ = b.remove(dir) // it is told; the next start tries again
		default:
			return
		}
	}
}
