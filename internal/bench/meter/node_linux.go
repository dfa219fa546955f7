package meter

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Process is one process of a node.
type Process struct {
	PID          int
	Name         string // server, keeper, or a shard's
	Threads      int
	Descriptors  int
	AnonymousKiB int64
	SharedKiB    int64         // of memory files
	CPU          time.Duration // used so far; the kernel counts in hundredths of a second
}

// Node is one DSec instance on this machine.
type Node struct {
	Server, Keeper Process
	Shards         []Process
	Inside         int // processes of sandboxes
	InsideThreads  int
	Groups         int // directories of groups, in all hierarchies
}

// The places of an instance in the cgroup hierarchies.
const (
	groupPrefix = "dsec-"
	keeperGroup = "keeper"
	selfGroup   = "self"
	groupRoot   = "/sys/fs/cgroup"
)

// ReadNode looks at the instance whose server is the process server. It walks all processes: that takes as long as there
// are many.
func ReadNode(instance string, server int) (Node, error) {
	var n Node
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return n, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		place, ours := placeOf(pid, groupPrefix+instance)
		if !ours && pid != server || abandoned(pid) {
			continue
		}
		if err := n.add(pid, place, pid == server); err != nil && !gone(err) {
			return n, err
		}
	}
	n.Groups, err = groupsOf(instance)
	return n, err
}

func (n *Node) add(pid int, place string, server bool) error {
	shard, inner, _ := strings.Cut(place, "/")
	ours := server || place == keeperGroup || inner == selfGroup
	p, err := ReadProcess(pid, ours)
	if err != nil {
		return err
	}
	switch {
	case server:
		p.Name, n.Server = "server", p
	case place == keeperGroup:
		p.Name, n.Keeper = keeperGroup, p
	case inner == selfGroup:
		p.Name = shard
		n.Shards = append(n.Shards, p)
	default:
		n.Inside++
		n.InsideThreads += p.Threads
	}
	return nil
}

// abandoned tells of a dead process that only the machine's init may forget, which it does in its own time.
func abandoned(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	f := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	return len(f) > 1 && string(f[0]) == "Z" && string(f[1]) == "1"
}

// placeOf is where below the group root a process is, in any hierarchy.
func placeOf(pid int, root string) (place string, found bool) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", false
	}
	for line := range strings.Lines(string(raw)) {
		if _, after, ok := strings.Cut(strings.TrimSpace(line), "/"+root+"/"); ok {
			// The v1 hierarchies know less: the longest says most.
			if found = true; len(after) > len(place) {
				place = after
			}
		}
	}
	return place, found
}

// ReadProcess reads one process; descriptors are counted on demand, since that is slow.
func ReadProcess(pid int, descriptors bool) (Process, error) {
	p, dir := Process{PID: pid}, fmt.Sprintf("/proc/%d", pid)
	raw, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return p, err
	}
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		v, _ := strconv.ParseInt(f[1], 10, 64) // of the lines below it is a number
		switch f[0] {
		case "Threads:":
			p.Threads = int(v)
		case "RssAnon:":
			p.AnonymousKiB = v
		case "RssShmem:":
			p.SharedKiB = v
		}
	}
	if p.CPU, err = processorTime(filepath.Join(dir, "stat")); err != nil || !descriptors {
		return p, err
	}
	open, err := os.ReadDir(filepath.Join(dir, "fd"))
	p.Descriptors = len(open)
	return p, err
}

// processorTime is user and system time of a process.
func processorTime(path string) (time.Duration, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	// "PID (COMM) STATE …": the name may hold anything. User and system time are the 12th and 13th field after it.
	f := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	if len(f) < 13 {
		return 0, fmt.Errorf("%s: %q", path, raw)
	}
	user, uerr := strconv.ParseInt(string(f[11]), 10, 64)
	system, serr := strconv.ParseInt(string(f[12]), 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond, errors.Join(uerr, serr)
}

// groupsOf counts an instance's directories.
func groupsOf(instance string) (int, error) {
	roots, err := instanceGroups(instance)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, root := range roots {
		err := filepath.WalkDir(root, func(_ string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				n++
			}
			if gone(err) {
				return nil
			}
			return err
		})
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// instanceGroups are the instance's roots in all mounted hierarchies.
func instanceGroups(instance string) ([]string, error) {
	name := groupPrefix + instance
	deep, err := filepath.Glob(filepath.Join(groupRoot, "*", name))
	if err != nil {
		return nil, err
	}
	flat, err := filepath.Glob(filepath.Join(groupRoot, name))
	return append(deep, flat...), err
}

// ChargedKiB is what the memory controller has charged to an instance: without what the server made for it, and
// without what isn't charged to anybody. 0 where there is no such controller.
func ChargedKiB(instance string) (int64, error) {
	name := groupPrefix + instance
	for _, file := range []string{
		filepath.Join(groupRoot, "memory", name, "memory.usage_in_bytes"),
		filepath.Join(groupRoot, name, "memory.current"),
	} {
		raw, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
		return n / 1024, err
	}
	return 0, nil
}

// gone tells of what ended while it was looked at.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }
