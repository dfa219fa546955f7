package edge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/edge/admission"
	"github.com/dsec-io/dsec/internal/edge/instance"
	"github.com/google/go-cmp/cmp"
)

func parseEvents(t testing.TB, raw []byte) []api.Event {
	t.Helper()
	var events []api.Event
	for line := range bytes.Lines(raw) {
		var ev api.Event
		if err := json.Unmarshal(line, &ev); err != nil {
			t.Fatalf("event %q: %v", line, err)
		}
		events = append(events, ev)
	}
	return events
}

func TestLife(t *testing.T) {
	n := startNode(t, nil)
	if !n.fake.warm {
		t.Error("the backend wasn't told that adoption is over")
	}
	sb := n.create(`{"image":"busybox","env":{"FROM":"spec","SPEC":"yes"},"labels":{"a":"b"}}`)
	if sb.State != api.StateRunning || !instance.ValidID(sb.ID) || sb.StartedAt == nil || sb.Project != "p" {
		t.Errorf("create answered %+v", sb)
	}
	want := api.Spec{
		Backend: "container", Image: "busybox", Env: map[string]string{"FROM": "spec", "SPEC": "yes"}, User: "worker",
		Workdir: "/work", Hostname: "sandbox", Labels: map[string]string{"a": "b"}, Isolation: "shared", QoS: "be",
		OnIdle: "stop", OnExpire: "stop", Runtime: "native",
		Resources: api.Resources{CPU: new(1.0), MemoryMB: new(int64(512)), PIDs: new(int64(512))},
	}
	if diff := cmp.Diff(want, n.get(sb.ID).Spec); diff != "" {
		t.Errorf("effective spec (-want +got):\n%s", diff)
	}
	x := argv("call")
	x.Env = [][]byte{[]byte("SPEC=exec"), []byte("NEW=1")}
	tr := n.exec("p", sb.ID, x, nil)
	if tr.err != nil || tr.exited == nil || !tr.exited.HasCode || tr.started.ID == "" {
		t.Fatalf("exec: %+v", tr)
	}
	wantOut := fmt.Sprintf("cwd=/work create=true user=worker max=1048576 id=%s\nPATH=/bin\nFROM=spec\nIMAGE=yes\nSPEC=exec\nNEW=1", tr.started.ID)
	if diff := cmp.Diff(wantOut, string(tr.stdout)); diff != "" {
		t.Errorf("what the aether was told (-want +got):\n%s", diff)
	}
	var stopped api.Sandbox
	n.must("sandbox.stop", sb.ID, nil, &stopped)
	if stopped.State != api.StateStopped || stopped.Already || stopped.EndedAt == nil {
		t.Errorf("stop answered %+v", stopped)
	}
	n.must("sandbox.stop", sb.ID, nil, &stopped)
	if !stopped.Already {
		t.Errorf("second stop answered %+v", stopped)
	}
	tr = n.exec("p", sb.ID, argv("say"), nil)
	wantCode(t, tr.err, api.CodeWrongState)
	wantCode(t, n.call(t.Context(), as("p", "sandbox.patch", sb.ID, []byte(`{"env":{}}`)), nil), api.CodeWrongState)
	if diff := cmp.Diff([]string{"created", "running", "stopping", "stopped"}, n.eventTypes(sb.ID)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if used := n.edge.room.Used(); used != (admission.Claim{}) {
		t.Errorf("still in use: %+v", used)
	}
}

func TestForeignAndUnknownAreTheSame(t *testing.T) {
	n := startNode(t, nil)
	sb := n.create(plain)
	ask := func(project, id, method string) string {
		x := argv("say")
		body := []byte(nil)
		if method == "exec" {
			body = x.AppendTo(nil)
		}
		err := n.call(t.Context(), as(project, method, id, body), nil)
		return strings.ReplaceAll(wantCode(t, err, api.CodeNotFound).Error(), id, "ID")
	}
	for method := range n.edge.handlers() {
		switch method {
		case "sandbox.create", "sandbox.list", "node.get":
			continue
		}
		if strings.HasPrefix(method, "image.") {
			continue // about no sandbox
		}
		unknown := NewID(0)
		texts := []string{ask("p", unknown, method), ask("q", unknown, method), ask("q", sb.ID, method), ask("", sb.ID, method)}
		if slices.Sort(texts); texts[0] != texts[3] {
			t.Errorf("%s tells foreign from unknown: %q", method, texts)
		}
	}
	for _, method := range []string{"add", "remove", "boxes", "keeper", "stats", "nonsense"} {
		wantCode(t, n.call(t.Context(), as("p", method, sb.ID, nil), nil), api.CodeNotImplemented)
	}
	var page api.SandboxList
	if err := n.call(t.Context(), as("q", "sandbox.list", "", nil), &page); err != nil || len(page.Items) != 0 {
		t.Errorf("another project lists %+v, %v", page, err)
	}
	if err := n.call(t.Context(), as("q", "sandbox.list", "", []byte(`{"project":"p"}`)), &page); err != nil || len(page.Items) != 0 {
		t.Errorf("another project lists %+v, %v", page, err)
	}
	wantCode(t, n.call(t.Context(), as("", "sandbox.create", "", encode(n.t, plain)), nil), api.CodeUnauthenticated)
	wantCode(t, n.call(t.Context(), as("", "node.get", "", nil), nil), api.CodeUnauthenticated)
}

func TestCreateFailsWhole(t *testing.T) {
	n := startNode(t, nil)
	none := func(t *testing.T) {
		t.Helper()
		var page api.SandboxList
		n.must("sandbox.list", "", nil, &page)
		files, _ := filepath.Glob(filepath.Join(n.inst.DataDir, "sandboxes", "*"))
		if len(page.Items) != 0 || len(n.fake.living()) != 0 || len(files) != 0 || n.edge.room.Used() != (admission.Claim{}) {
			t.Errorf("left: %+v, living %v, files %v, used %+v", page.Items, n.fake.living(), files, n.edge.room.Used())
		}
	}
	create := func(ctx context.Context, spec string) error {
		return n.call(ctx, as("p", "sandbox.create", "", encode(n.t, spec)), nil)
	}
	t.Run("image", func(t *testing.T) {
		wantCode(t, create(t.Context(), `{"image":"nope"}`), api.CodeNoSuchImage)
		none(t)
	})
	t.Run("unknown-field", func(t *testing.T) {
		wantCode(t, create(t.Context(), `{"image":"busybox","imge":1}`), api.CodeUnknownField)
		none(t)
	})
	t.Run("backend", func(t *testing.T) {
		n.fake.setFault("start", errors.New("no namespaces today"))
		defer n.fake.setFault("start", nil)
		wantCode(t, create(t.Context(), plain), api.CodeInternal)
		none(t)
	})
	t.Run("start-process", func(t *testing.T) {
		wantCode(t, create(t.Context(), `{"image":"busybox","command":["missing"]}`), api.CodeCommandNotFound)
		none(t)
	})
	t.Run("cancelled", func(t *testing.T) {
		n.fake.mu.Lock()
		n.fake.hold = make(chan struct{})
		n.fake.mu.Unlock()
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() { failed <- create(ctx, plain) }()
		until(t, "the create is at work", func() bool { return len(n.fake.living()) == 1 })
		cancel()
		if err := <-failed; err == nil {
			t.Error("a cancelled create succeeded")
		}
		until(t, "nothing is left", func() bool { return len(n.fake.living()) == 0 && n.edge.room.Used() == (admission.Claim{}) })
		n.fake.mu.Lock()
		n.fake.hold = nil
		n.fake.mu.Unlock()
		until(t, "it is unknown", func() bool { return len(n.edge.all()) == 0 })
		none(t)
	})
}

func TestShortStateIsWaitedFor(t *testing.T) {
	n := startNode(t, func(c *Config) { c.ShortWait = 100 * time.Millisecond })
	hold := make(chan struct{})
	n.fake.hold = hold
	created := make(chan api.Sandbox, 1)
	go func() { created <- n.create(plain) }()
	var page api.SandboxList
	until(t, "it is listed", func() bool { n.must("sandbox.list", "", nil, &page); return len(page.Items) == 1 })
	id := page.Items[0].ID
	if page.Items[0].State != api.StateCreating {
		t.Errorf("state %s", page.Items[0].State)
	}
	for _, err := range []error{n.exec("p", id, argv("say"), nil).err, n.call(t.Context(), as("p", "sandbox.stop", id, nil), nil)} {
		if e := wantCode(t, err, api.CodeWrongState); e.RetryMS == 0 {
			t.Errorf("no retry_after_ms: %+v", e)
		}
	}
	close(hold)
	if sb := <-created; sb.ID != id {
		t.Errorf("created %s, listed %s", sb.ID, id)
	}
}

func TestExecWaitsForItsSandbox(t *testing.T) {
	n := startNode(t, nil)
	hold := make(chan struct{})
	n.fake.hold = hold
	created := make(chan api.Sandbox, 1)
	go func() { created <- n.create(plain) }()
	var page api.SandboxList
	until(t, "it is listed", func() bool { n.must("sandbox.list", "", nil, &page); return len(page.Items) == 1 })
	id := page.Items[0].ID
	out := make(chan transcript, 1)
	go func() { out <- n.exec("p", id, argv("say", "hi"), nil) }()
	close(hold)
	if tr := <-out; string(tr.stdout) != "hi" {
		t.Errorf("waiting exec: %+v", tr)
	}
	if sb := <-created; sb.ID != id {
		t.Errorf("created %s, listed %s", sb.ID, id)
	}
}

func TestConcurrentStopsAllAnswer(t *testing.T) {
	n := startNode(t, nil)
	sb := n.create(plain)
	var wg sync.WaitGroup
	var mu sync.Mutex
	first := 0
	for range 20 {
		wg.Go(func() {
			var v api.Sandbox
			if err := n.call(t.Context(), as("p", "sandbox.stop", sb.ID, nil), &v); err != nil || v.State != api.StateStopped {
				t.Errorf("stop: %+v, %v", v, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if !v.Already {
				first++
			}
		})
	}
	wg.Wait()
	if first != 1 {
		t.Errorf("%d stops say that they did it", first)
	}
	if types := n.eventTypes(sb.ID); slices.Index(types, "stopping") != len(types)-2 {
		t.Errorf("events %v", types)
	}
}

func TestStopThatFailsIsCleanedUpLater(t *testing.T) {
	n := startNode(t, nil)
	sb := n.create(plain)
	n.fake.setFault("stop", errors.New("busy"))
	n.fake.setFault("clean", errors.New("busy"))
	var v api.Sandbox
	n.must("sandbox.stop", sb.ID, nil, &v)
	if v.State != api.StateFailed || !strings.Contains(v.Reason, "busy") {
		t.Errorf("%+v", v)
	}
	if n.edge.room.Used().Sandboxes != 1 {
		t.Error("its share was given away while its remains are there")
	}
	n.fake.setFault("clean", nil)
	n.edge.sweepOnce(time.Now())
	if n.edge.room.Used() != (admission.Claim{}) || len(n.fake.living()) != 0 {
		t.Errorf("after the sweep: %+v, %v", n.edge.room.Used(), n.fake.living())
	}
}

func TestDeathIsNoticed(t *testing.T) {
	n := startNode(t, nil)
	sb := n.create(plain)
	n.fake.kill(sb.ID)
	events := n.events(sb.ID, 0, true) // ends with the sandbox
	if last := events[len(events)-1]; last.Type != "failed" || last.Message == "" {
		t.Errorf("last event %+v", last)
	}
	v := n.get(sb.ID)
	if v.State != api.StateFailed || v.Reason == "" || v.EndedAt == nil {
		t.Errorf("%+v", v)
	}
	until(t, "its share is given back", func() bool { return n.edge.room.Used() == (admission.Claim{}) })
}

func TestTimeLimitsSurviveRestart(t *testing.T) {
	n := startNode(t, nil)
	a := n.create(`{"image":"busybox","ttl":{"running_s":2}}`)
	b := n.create(`{"image":"busybox","ttl":{"max_s":2,"running_s":100}}`)
	c := n.create(`{"image":"busybox","ttl":{"max_s":100}}`)
	n.restart()
	for id, why := range map[string]string{a.ID: "running_s", b.ID: "max_s"} {
		n.events(id, 0, true)
		v := n.get(id)
		if v.State != api.StateStopped || !strings.Contains(v.Reason, why) {
			t.Errorf("%+v, want stopped by %s", v, why)
		}
		if lived := v.EndedAt.Sub(v.CreatedAt); lived < 2*time.Second || lived > 4*time.Second {
			t.Errorf("ended after %v", lived)
		}
	}
	if v := n.get(c.ID); v.State != api.StateRunning {
		t.Errorf("%+v", v)
	}
}

func TestEndedRecordsExpire(t *testing.T) {
	n := startNode(t, func(c *Config) { c.EndedKeep = time.Hour })
	sb := n.create(plain)
	n.must("sandbox.stop", sb.ID, nil, nil)
	n.restart()
	if v := n.get(sb.ID); v.State != api.StateStopped {
		t.Errorf("%+v", v)
	}
	n.edge.sweepOnce(time.Now().Add(59 * time.Minute))
	n.get(sb.ID)
	n.edge.sweepOnce(time.Now().Add(61 * time.Minute))
	wantCode(t, n.call(t.Context(), as("p", "sandbox.get", sb.ID, nil), nil), api.CodeNotFound)
	if files, _ := filepath.Glob(filepath.Join(n.inst.DataDir, "sandboxes", "*")); len(files) != 0 {
		t.Errorf("files left: %v", files)
	}
}

func TestStopAll(t *testing.T) {
	n := startNode(t, nil)
	for range 10 {
		n.create(plain)
	}
	var last string
	if err := n.edge.StopAll(t.Context(), func(done, total int) { last = fmt.Sprint(done, "/", total) }); err != nil {
		t.Fatal(err)
	}
	if last != "10/10" || len(n.fake.living()) != 0 {
		t.Errorf("progress %s, living %v", last, n.fake.living())
	}
}

func TestUsageAndNode(t *testing.T) {
	n := startNode(t, nil)
	sb := n.create(plain)
	var u api.Usage
	n.must("sandbox.metrics", sb.ID, nil, &u)
	if u.MemoryBytes != 4096 || *u.Limits.MemoryMB != 512 {
		t.Errorf("%+v", u)
	}
	var nd nodeReply
	n.must("node.get", "", nil, &nd)
	if nd.States[api.StateRunning] != 1 || nd.Used.MemoryMB != 512 || nd.Used.CPU != 1 || nd.Instance != n.inst.ID {
		t.Errorf("%+v", nd)
	}
	var s api.Session
	n.must("session.create", sb.ID, `{"cwd":"/tmp"}`, &s)
	if s.Cwd != "/tmp" || s.User != "worker" {
		t.Errorf("session %+v", s)
	}
}

func TestFolderIsLocked(t *testing.T) {
	dir := t.TempDir()
	in, err := OpenInstance(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = OpenInstance(dir)
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), fmt.Sprintf("process %d ", os.Getpid())) {
		t.Errorf("second open: %v", err)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := OpenInstance(dir)
	if err != nil || again.ID != in.ID || len(in.ID) != 10 {
		t.Fatalf("reopened: %+v, %v; was %s", again, err, in.ID)
	}
	_ = again.Close()
	deep := filepath.Join(dir, strings.Repeat("d", 90))
	far, err := OpenInstance(deep)
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	if s := far.Socket("keeper.sock"); len(s) >= 100 {
		t.Errorf("socket path of %d bytes: %s", len(s), s)
	}
	_ = os.Remove(far.RunDir)
}
