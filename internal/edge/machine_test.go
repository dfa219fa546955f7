package edge

import (
	"strings"
	"sync"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/edge/admission"
)

// stage is a machine whose state a test sets.
type stage struct {
	mu  sync.Mutex
	now admission.State
	err error
}

func (s *stage) read() (admission.State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now, s.err
}

func (s *stage) set(change func(*admission.State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.now)
}

func idleMachine() *stage {
	return &stage{now: admission.State{
		MemoryMB: 24_100, AvailableMB: 20_000, PIDs: 4_194_304, Tasks: 500, MaxTasks: 190_000,
		Files: 20, MaxFiles: 20_000, Handles: 1000, MaxHandles: 1_000_000,
	}}
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
	claim := admission.ClaimOf(n.get(sb.ID).Spec.Resources)
	grow := func() error {
		claim = claim.Plus(admission.Claim{MemoryMB: 1})
		return n.edge.room.Change(sb.ID, claim)
	}
	for what, change := range map[string]func(*admission.State){
		"MiB of memory available":   func(s *admission.State) { s.AvailableMB = 1205 },
		"processes and threads":     func(s *admission.State) { s.Tasks = 180_500 },
		"descriptors of the edge":   func(s *admission.State) { s.Files = 19_000 },
		"open files of the machine": func(s *admission.State) { s.Handles = 950_000 },
	} {
		m.set(change)
		refused := func(method, id, body string) {
			t.Helper()
			e := wantCode(t, n.call(t.Context(), as("p", method, id, []byte(body)), nil), api.CodeNoCapacity)
			if e.RetryMS == 0 || !strings.Contains(e.Detail, what) || e.HTTP != 503 {
				t.Errorf("%s: %+v", what, e)
			}
		}
		until(t, "the change is seen", func() bool { return grow() != nil })
		refused("sandbox.create", "", plain)
		refused("sandbox.patch", sb.ID, `{"resources":{"memory_mb":1024}}`)
		refused("sandbox.patch", sb.ID, `{"resources":{"pids":1024}}`)
		n.must("sandbox.patch", sb.ID, `{"resources":{"memory_mb":500,"pids":500}}`, nil)
		n.must("sandbox.patch", sb.ID, `{"resources":{"cpu":0.5}}`, nil)
		m.set(func(s *admission.State) { *s = idleMachine().now })
		until(t, "the change is seen", func() bool { return grow() == nil })
	}
	n.create(plain)
	if used := n.edge.room.Used(); used.Sandboxes != 2 {
		t.Errorf("a refused create has taken a share: %+v", used)
	}
}
