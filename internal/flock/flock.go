// Package flock takes advisory whole-file locks (flock(2)) that end with the process that holds them.
//
// A lock belongs to the open file: two locks on one path exclude each other in one process just as between two. The
// file itself stays after Unlock, since removing a lock file while others wait for it would give two holders.
package flock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrHeld is the error of [Try] when somebody else has the lock.
var ErrHeld = errors.New("lock is held")

// The pause between two tries of a waiting [Lock]: short, since holders keep a lock for microseconds.
const retryEvery = 2 * time.Millisecond

// File is a held lock.
type File struct{ f *os.File }

// Try takes the exclusive lock of path, which it makes when missing, or answers [ErrHeld] at once.
func Try(path string) (*File, error) { return try(path, unix.LOCK_EX) }

// Free tells whether nobody holds the lock of path. A path that doesn't exist is free. It looks by taking the lock in
// shared mode for an instant, so a [Try] at the same moment may be told ErrHeld; [Wait] isn't disturbed.
func Free(path string) (bool, error) {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	l, err := try(path, unix.LOCK_SH)
	if errors.Is(err, ErrHeld) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, l.Unlock()
}

// Wait takes the exclusive lock of path, waiting until ctx ends.
func Wait(ctx context.Context, path string) (*File, error) {
	t := time.NewTicker(retryEvery)
	defer t.Stop()
	for {
		l, err := Try(path)
		if !errors.Is(err, ErrHeld) {
			return l, err
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", err, context.Cause(ctx))
		}
	}
}

func try(path string, how int) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		switch {
		case err == nil:
			return &File{f: f}, nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EWOULDBLOCK):
			err = ErrHeld
		}
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
}

// Write replaces the content of the lock file; holders use it to say who they are.
func (l *File) Write(text string) error {
	if err := l.f.Truncate(0); err != nil {
		return fmt.Errorf("clear lock file: %w", err)
	}
	if _, err := l.f.WriteAt([]byte(text), 0); err != nil {
		return fmt.Errorf("write lock file: %w", err)
	}
	return nil
}

// Unlock gives the lock back.
func (l *File) Unlock() error { return l.f.Close() }
