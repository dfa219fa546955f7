package cgroup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// removeTime bounds a wait whose caller gave no deadline.
const removeTime = 5 * time.Second

// LeftError says what couldn't be removed in the time there was.
type LeftError struct {
	Groups []string // hierarchy:path
	PIDs   []int    // the processes that still live in them
	Err    error    // what the kernel said last
}

func (e *LeftError) Error() string {
	return fmt.Sprintf("groups left: %s; processes %v: %v", strings.Join(e.Groups, " "), e.PIDs, e.Err)
}

func (e *LeftError) Unwrap() error { return e.Err }

// bounded is ctx with a deadline.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, removeTime)
}

// remove kills what lives below name in every hierarchy of in, waits, and removes the groups. It repeats the kill,
// because a shard may be at starting a command: its helper can be born into the group after the first one.
func remove(ctx context.Context, in Dirs, name string) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if err := kill(in.V2, name); err != nil {
			return err
		}
		err := waitDead(ctx, in.V2, name)
		if err != nil && ctx.Err() == nil {
			return err
		}
		left := removeOnce(in, name)
		if left == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return left
		case <-time.After(pause):
		}
	}
}

// waitDead waits until no process lives in the v2 group, but not for so long that a kill couldn't be repeated.
func waitDead(ctx context.Context, dir int, name string) error {
	ctx, cancel := context.WithTimeout(ctx, pollTime(ctx, 200*time.Millisecond))
	defer cancel()
	if err := waitEvent(ctx, dir, name, "populated", 0); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// removeOnce tries to remove the groups in every hierarchy; nil when nothing is left.
func removeOnce(in Dirs, name string) *LeftError {
	var left *LeftError
	note := func(path string, err error, pids []int) {
		if left == nil {
			left = &LeftError{}
		}
		left.Groups, left.Err = append(left.Groups, path), err
		for _, p := range pids {
			if !slices.Contains(left.PIDs, p) {
				left.PIDs = append(left.PIDs, p)
			}
		}
	}
	for _, h := range slices.Backward(in.all()) {
		removeTree(h, name, note)
	}
	return left
}

// removeTree removes a group and those in it, the innermost first.
func removeTree(h hierarchy, path string, note func(path string, err error, pids []int)) {
	names, err := subgroups(h.fd, path)
	if isGone(err) {
		return
	}
	if err != nil {
		note(h.name+":"+path, err, nil)
		return
	}
	for _, n := range names {
		removeTree(h, path+"/"+n, note)
	}
	err = unix.Unlinkat(h.fd, path, unix.AT_REMOVEDIR)
	if err == nil || isGone(err) {
		return
	}
	pids, _ := processes(h.fd, path)
	if h.name != "v2" {
		// Only a process that has joined here and not in v2 can have outlived cgroup.kill.
		for _, pid := range pids {
			err = errors.Join(err, killMember(h.fd, path, pid))
		}
	}
	note(h.name+":"+path, err, pids)
}

// processes lists who lives in a group, as numbers in our pid namespace; strangers to it are left out.
func processes(dir int, path string) ([]int, error) {
	b, err := readFile(dir, path+"/cgroup.procs")
	if err != nil {
		return nil, err
	}
	var pids []int
	for f := range strings.FieldsSeq(string(b)) {
		if n, err := strconv.Atoi(f); err == nil && n > 0 {
			pids = append(pids, n)
		}
	}
	return pids, nil
}

// killMember kills pid if, once there is a pidfd that can't mean anybody else, it is still in the group.
func killMember(dir int, path string, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open pidfd of %d: %w", pid, err)
	}
	defer unix.Close(fd)
	pids, err := processes(dir, path)
	if err != nil || !slices.Contains(pids, pid) {
		return err
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
		return fmt.Errorf("kill %d: %w", pid, err)
	}
	return nil
}
