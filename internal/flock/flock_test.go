package flock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

func TestLockExcludes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if free, err := Free(path); err != nil || !free {
		t.Errorf("Free of what doesn't exist: %v, %v", free, err)
	}
	l, err := Try(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Try(path); !errors.Is(err, ErrHeld) {
		t.Errorf("second Try: %v", err)
	}
	if free, err := Free(path); err != nil || free {
		t.Errorf("Free while held: %v, %v", free, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := Wait(ctx, path); !errors.Is(err, ErrHeld) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait: %v", err)
	}
	if err := errors.Join(l.Write("a long text"), l.Write("42\n"), l.Unlock()); err != nil {
		t.Fatal(err)
	}
	if raw, err := os.ReadFile(path); err != nil || string(raw) != "42\n" {
		t.Errorf("content %q, %v", raw, err)
	}
	if free, err := Free(path); err != nil || !free {
		t.Errorf("Free after Unlock: %v, %v", free, err)
	}
}

func TestWaitersTakeTurns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var wg sync.WaitGroup
	inside, most := 0, 0
	var mu sync.Mutex
	for range 20 {
		wg.Go(func() {
			l, err := Wait(t.Context(), path)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			inside++
			most = max(most, inside)
			mu.Unlock()
			mu.Lock()
			inside--
			mu.Unlock()
			if err := l.Unlock(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if most != 1 {
		t.Errorf("%d held the lock at once", most)
	}
}
