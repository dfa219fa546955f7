package edge

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/edge/events"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// TestStateTable compares the table with the drawing in words: what may lead where, and that every state is on a way
// from creating to an end.
func TestStateTable(t *testing.T) {
	want := map[api.State]string{
		api.StateCreating: "running failed", api.StateRunning: "pausing snapshotting forking stopping failed",
		api.StatePausing: "paused running stopping failed", api.StatePaused: "resuming snapshotting forking stopping failed",
		api.StateResuming: "running paused stopping failed", api.StateSnapshotting: "running paused failed",
		api.StateForking: "running paused failed", api.StateStopping: "stopped failed", api.StateStopped: "", api.StateFailed: "",
	}
	reached := map[api.State]bool{api.StateCreating: true}
	for range api.States() {
		for s := range reached {
			for _, next := range after(s) {
				reached[next] = true
			}
		}
	}
	for _, s := range api.States() {
		got := ""
		for _, to := range after(s) {
			got += " " + string(to)
			if s.Ended() || !legal(s, to) {
				t.Errorf("%s to %s", s, to)
			}
		}
		if got != "" {
			got = got[1:]
		}
		if got != want[s] {
			t.Errorf("after %s: %q, want %q", s, got, want[s])
		}
		if !reached[s] {
			t.Errorf("%s is never reached", s)
		}
		if short(s) == (s.Ended() || s == api.StateRunning || s == api.StatePaused) {
			t.Errorf("short(%s) = %v", s, short(s))
		}
	}
}

// model is a naive map of what an edge should know.
type model struct {
	n      *node
	state  map[string]api.State
	memory map[string]int64
	ids    []string
}

const (
	modelSandboxes = 5
	modelMemory    = 2048
)

// TestEdgeAgainstModel drives a real edge and compares it with the model after every step.
func TestEdgeAgainstModel(t *testing.T) {
	n := startNode(t, func(c *Config) { c.Capacity = Capacity{Sandboxes: modelSandboxes, MemoryMB: modelMemory} })
	rapid.Check(t, func(t *rapid.T) {
		if err := n.edge.StopAll(context.Background(), nil); err != nil {
			t.Fatal(err)
		}
		m := &model{n: n, state: map[string]api.State{}, memory: map[string]int64{}}
		t.Repeat(map[string]func(*rapid.T){
			"create": m.create, "stop": m.stop, "die": m.die, "exec": m.exec, "patch": m.patch, "": m.compare,
			"pause":  func(t *rapid.T) { m.turn(t, "sandbox.pause", api.StatePaused) },
			"resume": func(t *rapid.T) { m.turn(t, "sandbox.resume", api.StateRunning) },
			"restart": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "one in four") == 0 {
					n.restart()
				}
			},
		})
	})
}

func (m *model) used() (memory int64, count int) {
	for id, s := range m.state {
		if alive(s) {
			memory += m.memory[id]
			count++
		}
	}
	return memory, count
}

func (m *model) pick(t *rapid.T) string {
	if len(m.ids) == 0 {
		t.Skip("no sandbox yet")
	}
	return rapid.SampledFrom(m.ids).Draw(t, "id")
}

func (m *model) call(method, id string, body, into any) error {
	return m.n.call(context.Background(), as("p", method, id, encode(m.n.t, body)), into)
}

func (m *model) create(t *rapid.T) {
	mb := rapid.Int64Range(1, 1024).Draw(t, "mb")
	var sb api.Sandbox
	err := m.call("sandbox.create", "", fmt.Sprintf(`{"image":"busybox","resources":{"memory_mb":%d}}`, mb), &sb)
	if sum, count := m.used(); count == modelSandboxes || sum+mb > modelMemory {
		if e := api.AsError(err); e == nil || e.Code != api.CodeNoCapacity || e.RetryMS == 0 {
			t.Fatalf("create with %d MiB and %d sandboxes: %v", sum, count, err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	m.ids, m.state[sb.ID], m.memory[sb.ID] = append(m.ids, sb.ID), api.StateRunning, mb
}

func (m *model) stop(t *rapid.T) {
	id := m.pick(t)
	var sb api.Sandbox
	if err := m.call("sandbox.stop", id, nil, &sb); err != nil || sb.Already == alive(m.state[id]) || sb.PausedAt != nil {
		t.Fatalf("stop of a sandbox that is %s: %+v, %v", m.state[id], sb, err)
	}
	if alive(m.state[id]) {
		m.state[id] = api.StateStopped
	}
}

func (m *model) die(t *rapid.T) {
	id := m.pick(t)
	if !alive(m.state[id]) {
		t.Skip("not alive")
	}
	m.n.fake.kill(id)
	m.state[id] = api.StateFailed
	until(m.n.t, "death is noticed", func() bool { return m.n.get(id).State == api.StateFailed && !m.n.edge.room.Holds(id) })
}

func (m *model) exec(t *rapid.T) {
	id := m.pick(t)
	tr := m.n.exec("p", id, argv("say", "x"), nil)
	if (tr.err == nil) != alive(m.state[id]) || tr.err != nil && !api.IsCode(tr.err, api.CodeWrongState) {
		t.Fatalf("exec in a sandbox that is %s: %v", m.state[id], tr.err)
	}
	if tr.err == nil {
		m.state[id] = api.StateRunning
	}
}

func (m *model) turn(t *rapid.T, method string, to api.State) {
	id := m.pick(t)
	var v api.Sandbox
	err := m.call(method, id, nil, &v)
	switch was := m.state[id]; {
	case !alive(was):
		if !api.IsCode(err, api.CodeWrongState) {
			t.Fatalf("%s of a sandbox that is %s: %v", method, was, err)
		}
	case err != nil || v.Already != (was == to):
		t.Fatalf("%s of a sandbox that is %s: %+v, %v", method, was, v, err)
	default:
		m.state[id] = to
	}
}

func (m *model) patch(t *rapid.T) {
	id := m.pick(t)
	mb := rapid.Int64Range(1, 1024).Draw(t, "mb")
	err := m.call("sandbox.patch", id, fmt.Sprintf(`{"resources":{"memory_mb":%d}}`, mb), nil)
	sum, _ := m.used()
	switch {
	case !alive(m.state[id]):
		if !api.IsCode(err, api.CodeWrongState) {
			t.Fatalf("patch of a sandbox that is %s: %v", m.state[id], err)
		}
	case sum-m.memory[id]+mb > modelMemory && mb > m.memory[id]:
		if !api.IsCode(err, api.CodeNoCapacity) {
			t.Fatalf("patch beyond capacity: %v", err)
		}
	case err != nil:
		t.Fatal(err)
	default:
		m.memory[id] = mb
	}
}

func (m *model) compare(t *rapid.T) {
	for id, want := range m.state {
		if v := m.n.get(id); v.State != want || *v.Spec.Resources.MemoryMB != m.memory[id] {
			t.Fatalf("%s is %s with %d MiB, want %s with %d", id, v.State, *v.Spec.Resources.MemoryMB, want, m.memory[id])
		}
	}
	sum, count := m.used()
	if u := m.n.edge.room.Used(); u.MemoryMB != sum || u.Sandboxes != int64(count) {
		t.Fatalf("in use: %+v, want %d sandboxes with %d MiB", u, count, sum)
	}
}

// TestAdmissionIsExact lets many creates and patches compete for less than all of them want.
func TestAdmissionIsExact(t *testing.T) {
	n := startNode(t, func(c *Config) { c.Capacity = Capacity{Sandboxes: 1000, MemoryMB: 1000} })
	var admitted, refused, most atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			var sb api.Sandbox
			err := n.call(context.Background(), as("p", "sandbox.create", "", []byte(`{"image":"busybox","resources":{"memory_mb":100}}`)), &sb)
			switch {
			case err == nil:
				admitted.Add(1)
				perr := n.call(context.Background(), as("p", "sandbox.patch", sb.ID, []byte(`{"resources":{"memory_mb":150}}`)), nil)
				if perr != nil && !api.IsCode(perr, api.CodeNoCapacity) {
					t.Error(perr)
				}
			case api.IsCode(err, api.CodeNoCapacity):
				refused.Add(1)
			default:
				t.Error(err)
			}
			used := n.edge.room.Used().MemoryMB
			for old := most.Load(); used > old && !most.CompareAndSwap(old, used); old = most.Load() {
				runtime.Gosched()
			}
		})
	}
	wg.Wait()
	if most.Load() > 1000 || admitted.Load()+refused.Load() != 64 || admitted.Load() < 6 || admitted.Load() > 10 {
		t.Errorf("%d admitted, %d refused, at most %d MiB of 1000", admitted.Load(), refused.Load(), most.Load())
	}
	if len(n.fake.living()) != int(admitted.Load()) {
		t.Errorf("%d living, %d admitted", len(n.fake.living()), admitted.Load())
	}
}

func TestPatch(t *testing.T) {
	n := startNode(t, func(c *Config) { c.Capacity = Capacity{MemoryMB: 1000} })
	sb := n.create(`{"image":"busybox","env":{"A":"1"},"labels":{"l":"1"},"resources":{"memory_mb":400}}`)
	var v api.Sandbox
	n.must("sandbox.patch", sb.ID, `{"env":{"B":"2"},"labels":{"m":"2"},"resources":{"memory_mb":600,"cpu":0.5}}`, &v)
	want := api.Resources{CPU: new(0.5), MemoryMB: new(int64(600)), PIDs: new(int64(512))}
	if diff := cmp.Diff(want, v.Spec.Resources); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"B": "2"}, v.Spec.Env); diff != "" || v.Spec.Labels["m"] != "2" || len(v.Spec.Labels) != 1 {
		t.Errorf("words: %+v", v.Spec)
	}
	n.fake.mu.Lock()
	set := n.fake.boxes[sb.ID].limits
	n.fake.mu.Unlock()
	if diff := cmp.Diff(want, set); diff != "" {
		t.Errorf("the backend was told (-want +got):\n%s", diff)
	}
	if out := string(n.exec("p", sb.ID, argv("call"), nil).stdout); !slices.Contains(lines(out), "B=2") || slices.Contains(lines(out), "A=1") {
		t.Errorf("environment after the patch:\n%s", out)
	}
	unchanged := func(why string) {
		t.Helper()
		if diff := cmp.Diff(v.Spec, n.get(sb.ID).Spec); diff != "" || n.edge.room.Used().MemoryMB != 600 {
			t.Errorf("%s changed something; in use %+v:\n%s", why, n.edge.room.Used(), diff)
		}
	}
	patch := func(body string) error {
		return n.call(t.Context(), as("p", "sandbox.patch", sb.ID, encode(n.t, body)), nil)
	}
	wantCode(t, patch(`{"resources":{"memory_mb":1001}}`), api.CodeImpossible)
	other := n.create(`{"image":"busybox","resources":{"memory_mb":300}}`)
	wantCode(t, patch(`{"env":{"C":"3"},"resources":{"memory_mb":800}}`), api.CodeNoCapacity)
	n.must("sandbox.stop", other.ID, nil, nil)
	unchanged("a refused patch")
	n.fake.setFault("limits", errors.New("no cgroup"))
	wantCode(t, patch(`{"env":{"C":"3"},"resources":{"memory_mb":800}}`), api.CodeInternal)
	n.fake.setFault("limits", nil)
	unchanged("a failed patch")
	if e := wantCode(t, patch(`{"resources":{"memory_mb":0}}`), api.CodeInvalid); e.Field != "resources.memory_mb" || e.Hint == "" || e.RequestID != "r1" {
		t.Errorf("%+v", e)
	}
	wantCode(t, patch(`{"resources":{"cpu":100000}}`), api.CodeImpossible)
	wantCode(t, patch(`{"image":"x"}`), api.CodeUnknownField)
	n.restart()
	unchanged("a restart")
}

func lines(s string) []string { return strings.Split(s, "\n") }

func TestListPagesAreStable(t *testing.T) {
	n := startNode(t, nil)
	want := map[string]bool{}
	for i := range 25 {
		sb := n.create(fmt.Sprintf(`{"image":"busybox","labels":{"odd":"%d"}}`, i%2))
		want[sb.ID] = true
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { // a busy node: creates and stops while the pages are read
		for {
			select {
			case <-stop:
				return
			default:
				sb := n.create(plain)
				n.must("sandbox.stop", sb.ID, nil, nil)
			}
		}
	})
	for range 20 {
		seen := map[string]bool{}
		cursor := ""
		var last *api.Sandbox
		for {
			var page api.SandboxList
			n.must("sandbox.list", "", fmt.Sprintf(`{"limit":7,"cursor":%q}`, cursor), &page)
			if len(page.Items) > 7 {
				t.Fatalf("page of %d", len(page.Items))
			}
			for _, sb := range page.Items {
				if seen[sb.ID] {
					t.Errorf("%s twice", sb.ID)
				}
				if last != nil && sb.CreatedAt.After(last.CreatedAt) {
					t.Errorf("%s is newer than the one before", sb.ID)
				}
				seen[sb.ID], last = true, &sb
			}
			if cursor = page.Cursor; cursor == "" {
				break
			}
		}
		for id := range want {
			if !seen[id] {
				t.Errorf("%s is missing", id)
			}
		}
	}
	close(stop)
	wg.Wait()
	var page api.SandboxList
	n.must("sandbox.list", "", `{"labels":{"odd":"1"},"state":"running","limit":1000}`, &page)
	if len(page.Items) != 12 || page.Cursor != "" {
		t.Errorf("%d odd ones, cursor %q", len(page.Items), page.Cursor)
	}
	for body, field := range map[string]string{
		`{"limit":0}`: "limit", `{"limit":1001}`: "limit", `{"limit":-1}`: "limit", `{"cursor":"x"}`: "cursor", `{"cursor":"MS4yLjM"}`: "cursor", `{"state":"asleep"}`: "state",
	} {
		if e := wantCode(t, n.call(t.Context(), as("p", "sandbox.list", "", encode(n.t, body)), nil), api.CodeInvalid); e.Field != field {
			t.Errorf("%s: field %q", body, e.Field)
		}
	}
}

func TestEvents(t *testing.T) {
	n := startNode(t, nil)
	sb := n.create(plain)
	followed := make(chan []api.Event, 1)
	go func() { followed <- n.events(sb.ID, 1, true) }()
	box, err := n.edge.find("p", sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		n.edge.tell(box, "updated", "", map[string]any{"i": i})
	}
	n.must("sandbox.stop", sb.ID, nil, nil)
	got := <-followed
	for i, ev := range got {
		if ev.Seq != int64(i+2) {
			t.Fatalf("event %d has seq %d", i, ev.Seq)
		}
	}
	if got[len(got)-1].Type != "stopped" {
		t.Errorf("last: %+v", got[len(got)-1])
	}

	long := n.create(plain)
	box, err = n.edge.find("p", long.ID)
	if err != nil {
		t.Fatal(err)
	}
	for range 2*events.Kept + 500 {
		n.edge.tell(box, "updated", "", nil)
	}
	n.restart()
	list := n.events(long.ID, 10, false)
	first := list[0]
	if first.Type != "gap" || first.Data["first"] != float64(11) || first.Data["last"] != float64(first.Seq) || first.Seq < events.Kept {
		t.Errorf("first: %+v", first)
	}
	for i, ev := range list {
		if ev.Seq != first.Seq+int64(i) {
			t.Fatalf("event %d has seq %d after %d", i, ev.Seq, first.Seq)
		}
	}
	if last := list[len(list)-1]; last.Type != "adopted" || last.Seq != 2*events.Kept+500+3 || len(list) > events.Kept+1 {
		t.Errorf("%d events, last %+v", len(list), last)
	}
	if e := wantCode(t, n.call(t.Context(), as("p", "sandbox.events", long.ID, []byte(`{"since":-1}`)), nil), api.CodeInvalid); e.Field != "since" {
		t.Errorf("%+v", e)
	}
}
