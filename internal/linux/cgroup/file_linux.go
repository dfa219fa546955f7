package cgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// openAt is openat, again when a signal of Go's runtime interrupts it.
func openAt(dir int, path string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dir, path, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// openDir opens a group as the kernel takes it for CLONE_INTO_CGROUP and for all the calls that end in "at".
func openDir(dir int, path string) (int, error) {
	return openAt(dir, path, unix.O_PATH|unix.O_DIRECTORY)
}

// writeFile writes value in one write, as the kernel wants it.
func writeFile(dir int, path, value string) error {
	fd, err := openAt(dir, path, unix.O_WRONLY|unix.O_TRUNC)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	// Reclaim on a lowered memory limit gives up with EINTR when a signal is pending, and Go's scheduler sends them.
	for range 1000 {
		if _, err = unix.Write(fd, []byte(value)); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("write %q to %s: %w", value, path, err)
	}
	return nil
}

// readFile reads a file whole. Most of the kernel's files here are short; cgroup.procs needn't be.
func readFile(dir int, path string) ([]byte, error) {
	fd, err := openAt(dir, path, unix.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	b, err := readFD(fd)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return b, nil
}

func readFD(fd int) ([]byte, error) {
	b := make([]byte, 0, 512)
	for {
		n, err := unix.Pread(fd, b[len(b):cap(b)], int64(len(b)))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return nil, err
		case n == 0:
			return b, nil
		default:
			if b = b[:len(b)+n]; len(b) == cap(b) {
				b = append(b, 0)[:len(b)]
			}
		}
	}
}

// readInt reads a number, with "max" as math.MaxInt64.
func readInt(dir int, path string) (int64, error) {
	b, err := readFile(dir, path)
	if err != nil {
		return 0, err
	}
	s := strings.TrimSpace(string(b))
	if s == "max" {
		return math.MaxInt64, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	return n, nil
}

// readKey reads the number behind key in a file of "key number" lines; 0 when the file has no such key.
func readKey(dir int, path, key string) (int64, error) {
	b, err := readFile(dir, path)
	if err != nil {
		return 0, err
	}
	return findKey(b, path, key)
}

func findKey(b []byte, path, key string) (int64, error) {
	for line := range bytes.Lines(b) {
		k, v, ok := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		if !ok || string(k) != key {
			continue
		}
		n, err := strconv.ParseInt(string(v), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read %s of %s: %w", key, path, err)
		}
		return n, nil
	}
	return 0, nil
}

// subgroups lists the directories in a group.
func subgroups(dir int, path string) ([]string, error) {
	fd, err := openAt(dir, path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	entries, err := f.ReadDir(-1)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", path, err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// waitEvent waits until key in the group's cgroup.events is want. A group that is gone has no processes, so that
// waiting for populated to be 0 ends well then.
func waitEvent(ctx context.Context, dir int, path, key string, want int64) error {
	fd, err := openAt(dir, path+"/cgroup.events", unix.O_RDONLY)
	if isGone(err) && want == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %s/cgroup.events: %w", path, err)
	}
	defer unix.Close(fd)
	for {
		b, err := readFD(fd)
		if isGone(err) && want == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s/cgroup.events: %w", path, err)
		}
		if n, err := findKey(b, path, key); err != nil || n == want {
			return err
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("wait until %s of %s is %d: %w", key, path, want, context.Cause(ctx))
		}
		// The kernel signals each change as POLLPRI; the time-out is there to look at ctx.
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLPRI}}
		if _, err := unix.Poll(p, int(pollTime(ctx, 20*time.Millisecond).Milliseconds())+1); err != nil && err != unix.EINTR {
			return fmt.Errorf("poll %s/cgroup.events: %w", path, err)
		}
	}
}

// pollTime is most, or what is left until ctx's deadline if that is less.
func pollTime(ctx context.Context, most time.Duration) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return min(most, max(time.Until(end), 0))
	}
	return most
}

// isGone tells if err says that a group doesn't exist, or ceased to while one of its files was open.
func isGone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) }
