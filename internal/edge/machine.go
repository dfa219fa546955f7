package edge

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
)

const (
	procFolder = "/proc"
	// freshMB is what a sandbox takes before its tenant does anything, with a margin.
	freshMB = 4
	// freshTasks is the same in processes and threads.
	freshTasks = 4
	// lookEvery is how old the view of the machine may be. In between each admission is counted against it.
	lookEvery = 20 * time.Millisecond
)

// machineState is what the machine has and what of it is free.
type machineState struct {
	memoryMB    int64
	availableMB int64 // without swapping
	pids        int64 // processes and threads that can be numbered
	tasks       int64 // that there are
	maxTasks    int64 // that there can be
}

// readMachine asks the kernel.
func readMachine() (machineState, error) { return readMachineIn(procFolder) }

func readMachineIn(proc string) (machineState, error) {
	var m machineState
	raw, err := os.ReadFile(filepath.Join(proc, "meminfo"))
	if err != nil {
		return m, fmt.Errorf("memory of the machine: %w", err)
	}
	m.memoryMB, m.availableMB = -1, -1
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		kb, err := strconv.ParseInt(f[1], 10, 64)
		switch {
		case err != nil:
		case f[0] == "MemTotal:":
			m.memoryMB = kb / 1024
		case f[0] == "MemAvailable:":
			m.availableMB = kb / 1024
		}
	}
	if m.memoryMB < 0 || m.availableMB < 0 {
		return m, errors.New("memory of the machine: no MemTotal or MemAvailable in /proc/meminfo")
	}
	threads, terr := readNumber(filepath.Join(proc, "sys/kernel/threads-max"))
	m.pids, err = readNumber(filepath.Join(proc, "sys/kernel/pid_max"))
	if err := errors.Join(terr, err); err != nil {
		return m, fmt.Errorf("processes of the machine: %w", err)
	}
	m.maxTasks = min(m.pids, threads)
	if raw, err = os.ReadFile(filepath.Join(proc, "loadavg")); err != nil {
		return m, fmt.Errorf("processes of the machine: %w", err)
	}
	if f := strings.Fields(string(raw)); len(f) == 5 {
		_, all, _ := strings.Cut(f[3], "/")
		m.tasks, err = strconv.ParseInt(all, 10, 64)
		if err == nil {
			return m, nil
		}
	}
	return m, fmt.Errorf("processes of the machine: /proc/loadavg is %q", raw)
}

func readNumber(path string) (int64, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
}

// machine refuses what the ledger would promise but the machine can't bear now.
type machine struct {
	read      func() (machineState, error)
	reserveMB int64

	// mu guards what follows.
	mu       sync.Mutex
	seen     time.Time
	state    machineState
	admitted int64 // since then
}

// admit says whether one more sandbox finds memory and processes.
func (m *machine) admit(now time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.seen.IsZero() || now.Sub(m.seen) >= lookEvery {
		state, err := m.read()
		if err != nil {
			return err
		}
		m.state, m.seen, m.admitted = state, now, 0
	}
	n := m.admitted + 1
	var err *api.Error
	switch s := m.state; {
	case s.availableMB-n*freshMB < m.reserveMB:
		err = api.Errorf(api.CodeNoCapacity, "the machine has %d MiB of memory available and keeps %d in reserve", s.availableMB, m.reserveMB)
	case s.tasks+n*freshTasks > s.maxTasks-s.maxTasks/20:
		err = api.Errorf(api.CodeNoCapacity, "the machine runs %d of at most %d processes and threads and keeps a twentieth in reserve", s.tasks, s.maxTasks)
	default:
		m.admitted = n
		return nil
	}
	err.RetryMS, err.Hint = retryCapacityMS, "try again later, or stop sandboxes"
	return err
}

// RaiseLimits raises limits of the kernel that hold for the whole machine and would be met long before its memory is
// full: how many processes can be numbered, and what inotify gives to one user (the sandboxes of a shard are one). It
// never lowers one, and goes on where it isn't allowed.
func RaiseLimits(log *slog.Logger) { raiseLimits(procFolder, log) }

func raiseLimits(proc string, log *slog.Logger) {
	for _, l := range []struct {
		name string
		want int64
	}{
		{"kernel.pid_max", 4_194_304},
		{"fs.inotify.max_user_instances", 65_536},
		{"fs.inotify.max_user_watches", 1_048_576},
		{"fs.inotify.max_queued_events", 65_536},
	} {
		path := filepath.Join(proc, "sys", strings.ReplaceAll(l.name, ".", "/"))
		have, err := readNumber(path)
		if err == nil && have >= l.want {
			continue
		}
		if err == nil {
			err = os.WriteFile(path, []byte(strconv.FormatInt(l.want, 10)), 0o600)
		}
		what := []any{slog.String("limit", l.name), slog.Int64("from", have), slog.Int64("to", l.want)}
		if err != nil {
			log.Warn("limit of the machine not raised", append(what, slog.Any("err", err))...)
			continue
		}
		log.Info("limit of the machine raised", what...)
	}
}
