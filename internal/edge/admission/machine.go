package admission

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	procFolder = "/proc"
	// What a sandbox takes before its tenant does anything, with a margin: MiB of memory; processes and threads;
	// descriptors of this process; open files of the machine's (those of its shard, and of its init's mounts).
	freshMB, freshTasks, freshFiles, freshHandles = 4, 4, 4, 16
	// lookEvery is how old the view of the machine may be. What was made since is counted beside it.
	lookEvery = 20 * time.Millisecond
)

// State is what the machine has and what of it is free.
type State struct {
	MemoryMB    int64
	AvailableMB int64 // without swapping
	PIDs        int64 // processes and threads that can be numbered
	Tasks       int64 // that there are
	MaxTasks    int64 // that there can be
	Files       int64 // descriptors that this process has open
	MaxFiles    int64 // and may have
	Handles     int64 // open files of the whole machine
	MaxHandles  int64 // that there can be
}

// Read asks the kernel.
func Read() (State, error) { return readIn(procFolder) }

func readIn(proc string) (State, error) {
	var s State
	return s, errors.Join(s.readMemory(proc), s.readTasks(proc), s.readFiles(proc))
}

func (s *State) readMemory(proc string) error {
	raw, err := os.ReadFile(filepath.Join(proc, "meminfo"))
	if err != nil {
		return fmt.Errorf("memory of the machine: %w", err)
	}
	s.MemoryMB, s.AvailableMB = -1, -1
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		kb, err := strconv.ParseInt(f[1], 10, 64)
		switch {
		case err != nil:
		case f[0] == "MemTotal:":
			s.MemoryMB = kb / 1024
		case f[0] == "MemAvailable:":
			s.AvailableMB = kb / 1024
		}
	}
	if s.MemoryMB < 0 || s.AvailableMB < 0 {
		return errors.New("memory of the machine: no MemTotal or MemAvailable in /proc/meminfo")
	}
	return nil
}

func (s *State) readTasks(proc string) error {
	threads, terr := readNumber(filepath.Join(proc, "sys/kernel/threads-max"))
	pids, err := readNumber(filepath.Join(proc, "sys/kernel/pid_max"))
	if err := errors.Join(terr, err); err != nil {
		return fmt.Errorf("processes of the machine: %w", err)
	}
	s.PIDs, s.MaxTasks = pids, min(pids, threads)
	raw, err := os.ReadFile(filepath.Join(proc, "loadavg"))
	if err != nil {
		return fmt.Errorf("processes of the machine: %w", err)
	}
	if f := strings.Fields(string(raw)); len(f) == 5 {
		_, all, _ := strings.Cut(f[3], "/")
		if s.Tasks, err = strconv.ParseInt(all, 10, 64); err == nil {
			return nil
		}
	}
	return fmt.Errorf("processes of the machine: /proc/loadavg is %q", raw)
}

func (s *State) readFiles(proc string) error {
	raw, err := os.ReadFile(filepath.Join(proc, "sys/fs/file-nr"))
	if err != nil {
		return fmt.Errorf("open files of the machine: %w", err)
	}
	if _, err := fmt.Sscan(string(raw), &s.Handles, new(int64), &s.MaxHandles); err != nil {
		return fmt.Errorf("open files of the machine: /proc/sys/fs/file-nr is %q", raw)
	}
	if raw, err = os.ReadFile(filepath.Join(proc, "self/limits")); err != nil {
		return fmt.Errorf("descriptors of this process: %w", err)
	}
	_, line, _ := strings.Cut(string(raw), "\nMax open files")
	if f := strings.Fields(line); len(f) > 1 {
		s.MaxFiles, err = strconv.ParseInt(f[0], 10, 64)
		if err == nil {
			s.Files, err = countFiles(filepath.Join(proc, "self/fd"))
			return err
		}
	}
	return errors.New("descriptors of this process: no \"Max open files\" in /proc/self/limits")
}

// countFiles tells how many descriptors are open. The kernel says it by the folder's size, since 6.2.
func countFiles(dir string) (int64, error) {
	st, err := os.Stat(dir)
	if err != nil {
		return 0, fmt.Errorf("descriptors of this process: %w", err)
	}
	if n := st.Size(); n > 0 {
		return n, nil
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return 0, fmt.Errorf("descriptors of this process: %w", err)
	}
	return int64(len(list)), nil
}

func readNumber(path string) (int64, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
}

// bears says whether the machine has what n sandboxes take that it doesn't show yet, beside those made since the last
// look. The caller holds r.mu.
func (r *Room) bears(n int64) error {
	now := time.Now()
	if r.seen.IsZero() || now.Sub(r.seen) >= lookEvery {
		state, err := r.read()
		if err != nil {
			return err
		}
		r.state, r.seen, r.since = state, now, 0
	}
	n += r.since
	s := r.state
	if s.AvailableMB-n*freshMB < r.capacity.ReserveMB {
		return full("", fmt.Sprintf("the machine has %d of %d MiB of memory available, keeps %d in reserve, and %d sandboxes are being made",
			s.AvailableMB, s.MemoryMB, r.capacity.ReserveMB, n-1))
	}
	for _, k := range []struct {
		what             string
		used, most, each int64
	}{
		{"processes and threads", s.Tasks, s.MaxTasks, freshTasks},
		{"descriptors of the edge", s.Files, s.MaxFiles, freshFiles},
		{"open files of the machine", s.Handles, s.MaxHandles, freshHandles},
	} {
		if k.used+n*k.each > k.most-k.most/20 {
			return full("", fmt.Sprintf("%d of at most %d %s are in use, a twentieth is kept in reserve, and %d sandboxes are being made",
				k.used, k.most, k.what, n-1))
		}
	}
	return nil
}
