package edge

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/google/go-cmp/cmp"
)

// stage is a machine whose state a test sets.
type stage struct {
	mu  sync.Mutex
	now machineState
	err error
}

func (s *stage) read() (machineState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now, s.err
}

func (s *stage) set(change func(*machineState)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.now)
}

func idleMachine() *stage {
	return &stage{now: machineState{memoryMB: 24_100, availableMB: 20_000, pids: 4_194_304, tasks: 500, maxTasks: 190_000}}
}

func TestThousandDefaultSandboxesAreAdmitted(t *testing.T) {
	m := idleMachine()
	n := startNode(t, func(c *Config) { c.Capacity, c.machine = Capacity{}, m.read })
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 125 {
				if err := n.call(t.Context(), as("p", "sandbox.create", "", []byte(plain)), nil); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := n.edge.StopAll(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

func TestTheMachineHasTheLastWord(t *testing.T) {
	m := idleMachine()
	n := startNode(t, func(c *Config) { c.Capacity, c.machine = Capacity{}, m.read })
	sb := n.create(plain)
	for what, change := range map[string]func(*machineState){
		"MiB of memory available": func(s *machineState) { s.availableMB = 1205 + freshMB - 1 },
		"processes and threads":   func(s *machineState) { s.tasks = 180_500 },
	} {
		m.set(change)
		refused := func(method, id, body string) {
			t.Helper()
			e := wantCode(t, n.call(t.Context(), as("p", method, id, []byte(body)), nil), api.CodeNoCapacity)
			if e.RetryMS == 0 || !strings.Contains(e.Detail, what) || e.HTTP != 503 {
				t.Errorf("%s: %+v", what, e)
			}
		}
		until(t, "the change is seen", func() bool { return n.edge.machine.admit(time.Now()) != nil })
		refused("sandbox.create", "", plain)
		refused("sandbox.patch", sb.ID, `{"resources":{"memory_mb":1024}}`)
		refused("sandbox.patch", sb.ID, `{"resources":{"pids":1024}}`)
		n.must("sandbox.patch", sb.ID, `{"resources":{"memory_mb":500,"pids":500}}`, nil)
		n.must("sandbox.patch", sb.ID, `{"resources":{"cpu":0.5}}`, nil)
		m.set(func(s *machineState) { *s = idleMachine().now })
		until(t, "the change is seen", func() bool { return n.edge.machine.admit(time.Now()) == nil })
	}
	n.create(plain)
	if used := n.edge.ledger.inUse(); used.sandboxes != 2 {
		t.Errorf("a refused create has taken a share: %+v", used)
	}
}

// TestAdmissionsAreCountedBetweenLooks: a burst doesn't pass on one look at the machine.
func TestAdmissionsAreCountedBetweenLooks(t *testing.T) {
	for name, now := range map[string]machineState{
		"memory": {availableMB: 1000 + 10*freshMB, maxTasks: 1000},
		"tasks":  {availableMB: 1 << 20, maxTasks: 1000, tasks: 950 - 10*freshTasks},
	} {
		t.Run(name, func(t *testing.T) {
			looks := 0
			m := &machine{reserveMB: 1000, read: func() (machineState, error) { looks++; return now, nil }}
			begun := time.Now()
			for i := range 10 {
				if err := m.admit(begun); err != nil {
					t.Fatalf("admission %d: %v", i, err)
				}
			}
			wantCode(t, m.admit(begun), api.CodeNoCapacity)
			wantCode(t, m.admit(begun.Add(lookEvery-1)), api.CodeNoCapacity)
			if err := m.admit(begun.Add(lookEvery)); err != nil || looks != 2 {
				t.Errorf("after a new look: %v, %d looks", err, looks)
			}
		})
	}
	blind := errors.New("no /proc")
	m := &machine{read: func() (machineState, error) { return machineState{}, blind }}
	if err := m.admit(time.Now()); !errors.Is(err, blind) {
		t.Errorf("admitted blindly: %v", err)
	}
}

func TestCapacityDefaults(t *testing.T) {
	m := machineState{memoryMB: 10_000, pids: 1000}
	want := Capacity{Sandboxes: 10_000, MemoryRatio: 25, MemoryMB: 250_000, ReserveMB: 500, CPURatio: 1000, PIDRatio: 20, PIDs: 20_000}
	if diff := cmp.Diff(want, Capacity{}.on(m)); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	m.memoryMB = 1000
	set := Capacity{Sandboxes: 1, MemoryRatio: 2, CPURatio: 3, PIDRatio: 4}
	want = Capacity{Sandboxes: 1, MemoryRatio: 2, MemoryMB: 2000, ReserveMB: 256, CPURatio: 3, PIDRatio: 4, PIDs: 4000}
	if diff := cmp.Diff(want, set.on(m)); diff != "" {
		t.Errorf("with ratios (-want +got):\n%s", diff)
	}
	for _, bad := range []Capacity{{MemoryRatio: -1}, {CPURatio: 1e300}, {PIDRatio: -0.1}, {ReserveMB: -1}, {Sandboxes: -1}, {PIDs: -1}, {MemoryMB: -1}} {
		if bad.valid() {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

// proc makes a folder like /proc.
func proc(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func procFiles() map[string]string {
	return map[string]string{
		"meminfo":                "MemTotal:       24684092 kB\nMemFree:  1 kB\nMemAvailable:   2048 kB\nHugePages_Total:       0\n",
		"loadavg":                "5.67 5.61 4.82 3/1234 99\n",
		"sys/kernel/pid_max":     "32768\n",
		"sys/kernel/threads-max": "190000\n",
	}
}

func TestReadMachine(t *testing.T) {
	got, err := readMachineIn(proc(t, procFiles()))
	want := machineState{memoryMB: 24_105, availableMB: 2, pids: 32_768, tasks: 1234, maxTasks: 32_768}
	if err != nil || got != want {
		t.Errorf("read %+v, %v; want %+v", got, err, want)
	}
	if now, err := readMachine(); err != nil || now.availableMB <= 0 || now.tasks <= 0 || now.maxTasks <= now.tasks {
		t.Errorf("this machine: %+v, %v", now, err)
	}
	for name, text := range map[string]string{"meminfo": "MemTotal: 1 kB\n", "loadavg": "nonsense", "sys/kernel/pid_max": "many", "sys/kernel/threads-max": ""} {
		files := procFiles()
		files[name] = text
		if got, err := readMachineIn(proc(t, files)); err == nil {
			t.Errorf("%s with %q: %+v", name, text, got)
		}
		delete(files, name)
		if _, err := readMachineIn(proc(t, files)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

func TestRaiseLimits(t *testing.T) {
	dir := proc(t, map[string]string{
		"sys/kernel/pid_max":                "32768\n",
		"sys/fs/inotify/max_user_instances": "128\n",
		"sys/fs/inotify/max_user_watches":   "9999999\n",
	})
	var said bytes.Buffer
	raiseLimits(dir, slog.New(slog.NewTextHandler(&said, nil)))
	for name, want := range map[string]string{
		"kernel/pid_max": "4194304", "fs/inotify/max_user_instances": "65536", "fs/inotify/max_user_watches": "9999999\n",
	} {
		if got, err := os.ReadFile(filepath.Join(dir, "sys", name)); string(got) != want {
			t.Errorf("%s is %q, %v; want %q", name, got, err, want)
		}
	}
	for _, want := range []string{
		"raised\" limit=kernel.pid_max from=32768 to=4194304", "raised\" limit=fs.inotify.max_user_instances from=128 to=65536",
		"not raised\" limit=fs.inotify.max_queued_events",
	} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("not said: %s in\n%s", want, &said)
		}
	}
	if strings.Contains(said.String(), "watches") {
		t.Errorf("said of a limit that is high enough:\n%s", &said)
	}
	said.Reset()
	raiseLimits(dir, slog.New(slog.NewTextHandler(&said, nil)))
	if strings.Contains(said.String(), "limit of the machine raised") {
		t.Errorf("raised again:\n%s", &said)
	}
}
