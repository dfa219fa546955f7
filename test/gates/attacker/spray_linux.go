package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// sprayReport counts what was stopped.
type sprayReport struct {
	Stopped int      // processes that got a SIGSTOP
	Window  int      // of them those caught before their exec
	Open    []string // what could be read of those
}

// ahead is how many numbers past the newest process are sprayed.
const ahead = 24

// spray stops every process that is born in this sandbox, as early as it can be named, and leaves it stopped.
func spray(d time.Duration) (*sprayReport, error) {
	// kill takes the number of any thread for its process, so this one must have no new threads while it sprays: no
	// collector, and nothing but raw system calls between two looks at its own threads.
	debug.SetGCPercent(-1)
	runtime.LockOSThread()
	r := &sprayReport{}
	base, err := newestThread()
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(d); time.Now().Before(end); {
		hit := uintptr(0)
		for pid := uintptr(base + 1); pid <= uintptr(base+ahead); pid++ {
			if _, _, e := unix.RawSyscall(unix.SYS_KILL, pid, uintptr(unix.SIGSTOP), 0); e == 0 {
				hit = pid
				break
			}
		}
		if hit == 0 {
			continue
		}
		r.Stopped++
		r.look(int(hit))
		if base, err = newestThread(); err != nil {
			return nil, err
		}
		base = max(base, int(hit))
	}
	return r, nil
}

func newestThread() (int, error) {
	tasks, err := filepath.Glob("/proc/self/task/*")
	newest := 0
	for _, t := range tasks {
		n, err := strconv.Atoi(filepath.Base(t))
		if err != nil {
			return 0, err
		}
		newest = max(newest, n)
	}
	return newest, err
}

// look reads what it can of a stopped process that is still the aether's helper: it shares the aether's memory.
func (r *sprayReport) look(pid int) {
	dir := fmt.Sprintf("/proc/%d/", pid)
	comm, err := os.ReadFile(dir + "comm")
	if err != nil || !helper(string(comm)) {
		return
	}
	var open []string
	for _, f := range []string{"mem", "environ", "maps", "auxv", "fd", "exe", "root", "cwd", "ns/user", "fd/0"} {
		if readable(dir + f) {
			open = append(open, f)
		}
	}
	if unix.PtraceSeize(pid) == nil {
		open = append(open, "ptrace")
	}
	if fd, err := unix.PidfdOpen(pid, 0); err == nil {
		if _, err := unix.PidfdGetfd(fd, 0, 0); err == nil {
			open = append(open, "pidfd_getfd")
		}
		_ = unix.Close(fd)
	}
	// It may have come to its exec just before it stopped; then all this was its own, which anybody may read. Or the
	// watchdog has killed it: what has no memory any more may be opened, but says nothing.
	if comm, err = os.ReadFile(dir + "comm"); err == nil && helper(string(comm)) && stopped(dir) {
		r.Window++
		for _, f := range open {
			r.Open = append(r.Open, fmt.Sprintf("%s of %d %s", f, pid, strings.TrimSpace(string(comm))))
		}
	}
}

// readable tells whether a file of /proc can be opened and, where it has contents, gives any.
func readable(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	switch filepath.Base(path) {
	case "environ", "maps", "auxv":
		n, _ := f.Read(make([]byte, 1))
		return n > 0
	case "fd":
		names, _ := f.Readdirnames(1)
		return len(names) > 0
	}
	return true
}

// stopped tells whether a process is stopped now.
func stopped(dir string) bool {
	stat, err := os.ReadFile(dir + "stat")
	_, rest, ok := strings.Cut(string(stat), ") ")
	return err == nil && ok && strings.HasPrefix(rest, "T")
}

// helper tells whether a process still has the aether's name, which its exec changes.
func helper(comm string) bool {
	return strings.HasPrefix(comm, "dsec-aether") || strings.HasPrefix(comm, "memfd:")
}
