// Package leakcheck asks the kernel what is left of a test's sandboxes.
//
// A [Snapshot] is what the kernel itself counts: mounts of this mount namespace, DSec's cgroup directories, network
// namespaces that a process is in, DSec's processes, attached loop devices, and the descriptors of the calling
// process. It never asks DSec's own records, which would be wrong in the same way as the code that leaks. What no list
// of the kernel shows (a detached mount or a namespace held by nothing but a descriptor) shows as that descriptor.
//
// Snapshots are values. A snapshot isn't atomic: compare two that were taken while nothing was being made or removed,
// or use [Wait], which gives the kernel time to finish.
package leakcheck

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// cgroupPrefix begins the name of every cgroup root that an instance makes, in every hierarchy.
const cgroupPrefix = "dsec-"

// settle is how long a test's leftovers may take to go: the kernel frees namespaces and mounts after the last process
// has been reaped, in its own time.
const settle = 30 * time.Second

// Snapshot is what there is at one time. Each entry identifies one object for as long as it lives.
type Snapshot struct {
	Mounts    []string // "ID TYPE MOUNTPOINT" of this mount namespace
	Cgroups   []string // directories at and below dsec-*, in every mounted hierarchy
	NetNS     []string // network namespaces with a process in them
	Processes []string // "PID/STARTTIME COMM" of processes in a cgroup dsec-*, or of our programs
	Loops     []string // loop devices with a file
	FDs       []string // what this process's descriptors refer to, numbered within each kind: "socket #3"
}

// Only returns the part of s that carries an instance's name: its cgroups and the processes in them. It lets a test
// look after its own instance while others work on the same machine.
func (s Snapshot) Only(instance string) Snapshot {
	foreign := func(entry string) bool { return !strings.Contains(entry, cgroupPrefix+instance) }
	return Snapshot{
		Cgroups:   slices.DeleteFunc(slices.Clone(s.Cgroups), foreign),
		Processes: slices.DeleteFunc(slices.Clone(s.Processes), foreign),
	}
}

// Host returns s without what belongs to the calling process alone.
func (s Snapshot) Host() Snapshot {
	s.FDs = nil
	return s
}

// Since lists what is in s and wasn't in before, one line each.
func (s Snapshot) Since(before Snapshot) []string {
	var left []string
	for _, kind := range []struct {
		name      string
		was, have []string
	}{
		{"mount", before.Mounts, s.Mounts},
		{"cgroup", before.Cgroups, s.Cgroups},
		{"netns", before.NetNS, s.NetNS},
		{"process", before.Processes, s.Processes},
		{"loop device", before.Loops, s.Loops},
		{"descriptor", before.FDs, s.FDs},
	} {
		seen := make(map[string]bool, len(kind.was))
		for _, entry := range kind.was {
			seen[entry] = true
		}
		for _, entry := range kind.have {
			if !seen[entry] {
				left = append(left, kind.name+" "+entry)
			}
		}
	}
	return left
}

// String gives the counts on one line.
func (s Snapshot) String() string {
	return fmt.Sprintf("%d mounts, %d cgroup dirs, %d network namespaces, %d processes, %d loop devices, %d descriptors",
		len(s.Mounts), len(s.Cgroups), len(s.NetNS), len(s.Processes), len(s.Loops), len(s.FDs))
}

// Wait takes snapshots with take until nothing in them is newer than before, or ctx ends, and returns what is left.
func Wait(ctx context.Context, before Snapshot, take func() (Snapshot, error)) ([]string, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		now, err := take()
		if err != nil {
			return nil, err
		}
		left := now.Since(before)
		if len(left) == 0 {
			return nil, nil
		}
		select {
		case <-ctx.Done():
			return left, nil
		case <-tick.C:
		}
	}
}

// Check fails the test if, at its end, there is something that wasn't there at the call. Call it first, so that it
// looks after every other cleanup of the test has run. It sees the whole host: tests that use it must not run beside
// others that make sandboxes.
func Check(t testing.TB) {
	t.Helper()
	check(t, Take)
}

// CheckInstance is [Check] for what carries the name of one instance.
func CheckInstance(t testing.TB, instance string) {
	t.Helper()
	check(t, func() (Snapshot, error) {
		s, err := Take()
		return s.Only(instance), err
	})
}

func check(t testing.TB, take func() (Snapshot, error)) {
	t.Helper()
	before, err := take()
	if err != nil {
		t.Fatalf("leakcheck: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), settle)
		defer cancel()
		left, err := Wait(ctx, before, take)
		if err != nil {
			t.Errorf("leakcheck: %v", err)
		}
		for _, entry := range left {
			t.Errorf("left behind: %s", entry)
		}
	})
}

// numbered gives the nth of several equal entries a number, because descriptor numbers are used again and so can't
// identify what they refer to.
func numbered(kinds map[string]int) []string {
	var all []string
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		for n := range kinds[kind] {
			all = append(all, fmt.Sprintf("%s #%d", kind, n+1))
		}
	}
	return all
}
