package pidfd_test

import (
	"context"
	"errors"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/dsec-io/dsec/internal/leakcheck"
	"github.com/dsec-io/dsec/internal/linux/pidfd"
	"github.com/dsec-io/dsec/internal/need"
	"golang.org/x/sys/unix"
)

// checkLeaks starts the runtime's poller first: it keeps descriptors of its own.
func checkLeaks(t *testing.T) {
	t.Helper()
	if err := exec.Command("true").Run(); err != nil {
		t.Fatal(err)
	}
	leakcheck.CheckInstance(t, "none")
}

func sleeper(t *testing.T) (*exec.Cmd, int) {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	fd, err := pidfd.Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = pidfd.Kill(fd)
		_ = cmd.Wait()
		unix.Close(fd)
	})
	return cmd, fd
}

func TestKillWaitReap(t *testing.T) {
	checkLeaks(t)
	cmd, fd := sleeper(t)
	if ended, err := pidfd.Exited(fd); err != nil || ended {
		t.Fatalf("Exited() = %v, %v", ended, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := pidfd.Wait(ctx, fd); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait() = %v", err)
	}
	if err := pidfd.Kill(fd); err != nil {
		t.Fatal(err)
	}
	if err := pidfd.Wait(t.Context(), fd); err != nil {
		t.Fatal(err)
	}
	pidfd.Reap(fd)
	if err := pidfd.Kill(fd); err != nil {
		t.Errorf("Kill() of the dead = %v", err)
	}
	if _, err := pidfd.Open(cmd.Process.Pid); !errors.Is(err, unix.ESRCH) {
		t.Errorf("Open() of the reaped = %v", err)
	}
}

func TestWatcherTellsOfEach(t *testing.T) {
	checkLeaks(t)
	w, err := pidfd.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	const n = 20
	var wg sync.WaitGroup
	var fds []int
	for range n {
		_, fd := sleeper(t)
		wg.Add(1)
		if _, err := w.Add(fd, wg.Done); err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
	}
	_, spared := sleeper(t)
	stop, err := w.Add(spared, func() { t.Error("told of a process that was taken out") })
	if err != nil {
		t.Fatal(err)
	}
	stop()
	for _, fd := range append(fds, spared) {
		if err := pidfd.Kill(fd); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	w.Close()
	if _, err := w.Add(spared, func() {}); err == nil {
		t.Error("Add() on a closed watcher worked")
	}
}

func TestTakeAndUserNS(t *testing.T) {
	need.Root(t)
	_, fd := sleeper(t)
	c, err := pidfd.Take(fd, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(c)
	ns, err := pidfd.UserNS(fd)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(ns)
}
