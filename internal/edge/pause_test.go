package edge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/edge/pause"
)

// count notes a call of a box's method.
func (f *fake) count(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[what]++
}

// meet is what happens to a request before it is served.
func (f *fake) meet(method string) error {
	f.count(method)
	err := f.fault("frozen-once")
	if err != nil {
		f.setFault("frozen-once", nil)
		f.onFrozen()
	}
	if f.slow != nil {
		<-f.slow
	}
	return err
}

// called is how often a box's method was called.
func (f *fake) called(what string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[what]
}

func (b *fakeBox) still() string { return b.f.alive(b.id) + ".still" }

// Pause makes a file, so that it holds over a restart of the edge as a frozen group does.
func (b *fakeBox) Pause(ctx context.Context) error {
	b.f.count("pause")
	if err := errors.Join(b.f.wait(ctx), b.f.fault("pause"), context.Cause(ctx)); err != nil {
		return err
	}
	return os.WriteFile(b.still(), nil, 0o600)
}

func (b *fakeBox) Resume(ctx context.Context) error {
	b.f.count("resume")
	if err := errors.Join(b.f.wait(ctx), b.f.fault("resume"), context.Cause(ctx)); err != nil {
		return err
	}
	if err := os.Remove(b.still()); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (b *fakeBox) Paused() (bool, error) {
	_, err := os.Stat(b.still())
	return err == nil, b.f.fault("paused")
}

// unheld is how long something that doesn't wait would take at most.
const unheld = 50 * time.Millisecond

// held makes the fake hold every call back until let go is called.
func (n *node) held() (letGo func()) {
	hold := make(chan struct{})
	n.fake.mu.Lock()
	n.fake.hold = hold
	n.fake.mu.Unlock()
	return sync.OnceFunc(func() {
		n.fake.mu.Lock()
		n.fake.hold = nil
		n.fake.mu.Unlock()
		close(hold)
	})
}

func (n *node) pause(id string) api.Sandbox {
	n.t.Helper()
	var v api.Sandbox
	n.must("sandbox.pause", id, nil, &v)
	if v.State != api.StatePaused || v.PausedAt == nil {
		n.t.Fatalf("%+v", v)
	}
	return v
}

// TestWhatWakes holds every method of the edge's socket to whether it wakes a paused sandbox.
func TestWhatWakes(t *testing.T) {
	n := startNode(t, nil)
	wake := strings.Fields("exec attach signal resize forget session.create session.interrupt session.close " +
		"file.read file.write file.list file.op file.tar file.untar file.watch port.dial sandbox.resume")
	sleep := strings.Fields("processes process session.list sandbox.get sandbox.list sandbox.patch sandbox.extend sandbox.pause sandbox.metrics " +
		"sandbox.events sandbox.logs sandbox.create node.get")
	bodies := map[string]string{
		"exec": "", "sandbox.extend": `{"running_s":5}`, "sandbox.patch": `{"labels":{"a":"b"},"resources":{"memory_mb":64}}`,
		"sandbox.create": plain, "sandbox.resume": `{"running_s":5}`,
	}
	var all []string
	for m := range n.edge.handlers() {
		if !strings.HasPrefix(m, "image.") {
			all = append(all, m)
		}
	}
	want := append(slices.Concat(wake, sleep), "sandbox.stop")
	slices.Sort(all)
	slices.Sort(want)
	if !slices.Equal(all, want) {
		t.Fatalf("methods %v, the table has %v", all, want)
	}
	sb := n.create(`{"image":"busybox","command":["say","x"]}`)
	for _, m := range all {
		if m == "sandbox.stop" {
			continue
		}
		n.pause(sb.ID)
		body := []byte(bodies[m])
		if m == "exec" {
			x := argv("say", "hi")
			body = x.AppendTo(nil)
		}
		s, err := n.client.Open(t.Context(), aether.Open{Method: m, Sandbox: sb.ID, Project: "p", Body: body, Closed: true})
		if err != nil {
			t.Fatal(err)
		}
		n.read(s) // until its end; the fake doesn't know most methods
		s.Reset(nil)
		woken := n.get(sb.ID).State == api.StateRunning
		if woken != slices.Contains(wake, m) || pause.Wakes(m) != slices.Contains(wake, m) {
			t.Errorf("%s wakes: %v", m, woken)
		}
	}
	n.pause(sb.ID)
	n.must("sandbox.stop", sb.ID, nil, nil)
	if calls := n.fake.called("resume"); calls != len(wake) {
		t.Errorf("%d resumes for %d methods: a stop doesn't wake", calls, len(wake))
	}
}

// TestManyRequestsOneResume: whoever comes while it is on its way waits for the same.
func TestManyRequestsOneResume(t *testing.T) {
	n := startNode(t, nil)
	sb := n.create(plain)
	n.exec("p", sb.ID, argv("say", "hi"), nil) // the aether is there
	n.pause(sb.ID)
	letGo := n.held()
	var wg sync.WaitGroup
	for i := range 500 {
		wg.Go(func() {
			var err error
			switch i % 3 {
			case 0:
				err = n.exec("p", sb.ID, argv("say", "hi"), nil).err
			case 1:
				err = n.call(t.Context(), as("p", "session.create", sb.ID, []byte(`{}`)), nil)
			default:
				err = n.call(t.Context(), as("p", "sandbox.resume", sb.ID, nil), nil)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	until(t, "it resumes", func() bool { return n.get(sb.ID).State == api.StateResuming })
	letGo()
	wg.Wait()
	if calls := n.fake.called("resume"); calls != 1 {
		t.Errorf("%d resumes", calls)
	}
	want := []string{"created", "running", "pausing", "paused", "resuming", "resumed"}
	if types := n.eventTypes(sb.ID); !slices.Equal(types, want) {
		t.Errorf("events %v", types)
	}
	var v api.Sandbox
	n.must("sandbox.resume", sb.ID, nil, &v)
	if !v.Already || v.PausedAt != nil || v.Reason != "" {
		t.Errorf("once more: %+v", v)
	}
	n.pause(sb.ID)
	if v := n.pause(sb.ID); !v.Already {
		t.Errorf("paused once more: %+v", v)
	}
}

// TestPauseThatFails goes back to running, and everybody who waited is told why.
func TestPauseThatFails(t *testing.T) {
	files := &failingFiles{}
	n := startNode(t, func(c *Config) { c.files = files })
	sb := n.create(plain)
	runs := func() {
		t.Helper()
		if v := n.get(sb.ID); v.State != api.StateRunning || v.PausedAt != nil || v.Reason != "" {
			t.Errorf("%+v", v)
		}
		if still, err := n.fake.boxes[sb.ID].Paused(); still || err != nil {
			t.Errorf("it stands still: %v, %v", still, err)
		}
		calls := n.fake.called("resume")
		if tr := n.exec("p", sb.ID, argv("say", "hi"), nil); string(tr.stdout) != "hi" {
			t.Errorf("%+v", tr)
		}
		if n.fake.called("resume") != calls {
			t.Error("it had to be woken")
		}
	}
	fails := func(code api.Code, text string) {
		t.Helper()
		err := n.call(t.Context(), as("p", "sandbox.pause", sb.ID, nil), nil)
		if e := wantCode(t, err, code); !strings.Contains(e.Detail, text) || e.RetryMS == 0 {
			t.Errorf("%+v", e)
		}
		if types := n.eventTypes(sb.ID); types[len(types)-1] != "pause_failed" {
			t.Errorf("events %v", types)
		}
		runs()
	}
	n.fake.setFault("pause", errors.New("process 7 is stuck"))
	fails(api.CodePauseFailed, "process 7 is stuck")
	n.fake.setFault("pause", fmt.Errorf("it won't: %w", ErrStuck))
	fails(api.CodePauseFailed, "it won't")
	n.fake.setFault("pause", nil)

	var states []string
	record := func(path string) {
		if raw, err := os.ReadFile(path); err == nil {
			_, last, _ := strings.Cut(string(raw[bytes.LastIndexByte(raw[:len(raw)-1], '\n')+1:]), `"state":"`)
			state, _, _ := strings.Cut(last, `"`)
			states = append(states, state)
		}
	}
	files.set(func() { files.onSync = record })
	n.pause(sb.ID)
	files.set(func() { files.onSync = nil })
	if !slices.Equal(states, []string{"paused"}) { // and the folder
		t.Errorf("brought to disk: %v", states)
	}
	n.must("sandbox.resume", sb.ID, nil, nil)

	files.set(func() { files.sync = syscall.EIO })
	fails(api.CodePauseFailed, "to disk")
	files.set(func() { files.sync = syscall.ENOSPC })
	fails(api.CodeDiskFull, "to disk")
	files.set(func() { files.sync = nil })

	// One that can't be let go again stands still, and that is told.
	n.fake.setFault("pause", ErrStuck)
	n.fake.setFault("resume", errors.New("neither"))
	wantCode(t, n.call(t.Context(), as("p", "sandbox.pause", sb.ID, nil), nil), api.CodePauseFailed)
	if v := n.get(sb.ID); v.State != api.StatePaused {
		t.Errorf("%+v", v)
	}
	wantCode(t, n.exec("p", sb.ID, argv("say", "hi"), nil).err, api.CodeResumeFailed)
	n.fake.setFault("resume", nil)
	if tr := n.exec("p", sb.ID, argv("say", "hi"), nil); string(tr.stdout) != "hi" {
		t.Errorf("%+v", tr)
	}
}

// TestPauseThatTakesTooLong is given up, and everything goes on.
func TestPauseThatTakesTooLong(t *testing.T) {
	n := startNode(t, func(c *Config) { c.PauseTime = 100 * time.Millisecond })
	sb := n.create(plain)
	letGo := n.held()
	wantCode(t, n.call(t.Context(), as("p", "sandbox.pause", sb.ID, nil), nil), api.CodePauseFailed)
	letGo()
	if v := n.get(sb.ID); v.State != api.StateRunning || v.PausedAt != nil {
		t.Errorf("%+v", v)
	}
	if tr := n.exec("p", sb.ID, argv("say", "hi"), nil); string(tr.stdout) != "hi" {
		t.Errorf("%+v", tr)
	}
}

// TestResumeThatFails leaves it paused; of all who wait each is told, and it isn't tried for each.
func TestResumeThatFails(t *testing.T) {
	n := startNode(t, nil)
	sb := n.create(plain)
	n.pause(sb.ID)
	n.fake.setFault("resume", errors.New("not now"))
	letGo := n.held()
	failed := make(chan error, 100)
	for range cap(failed) {
		go func() { failed <- n.exec("p", sb.ID, argv("say", "hi"), nil).err }()
	}
	box, err := n.edge.find("p", sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	until(t, "all have come", func() bool { return box.active.IdleFor(uptime()) == 0 && n.fake.called("resume") == 1 })
	letGo()
	for range cap(failed) {
		if e := wantCode(t, <-failed, api.CodeResumeFailed); !strings.Contains(e.Detail, "not now") || e.RetryMS == 0 {
			t.Errorf("%+v", e)
		}
	}
	if v := n.get(sb.ID); v.State != api.StatePaused || v.PausedAt == nil {
		t.Errorf("%+v", v)
	}
	if calls := n.fake.called("resume"); calls > cap(failed)/2 { // some may have come late
		t.Errorf("tried %d times for %d", calls, cap(failed))
	}
	n.fake.setFault("resume", nil)
	n.must("sandbox.resume", sb.ID, nil, nil)
	n.must("sandbox.stop", sb.ID, nil, nil)
	wantCode(t, n.call(t.Context(), as("p", "sandbox.pause", sb.ID, nil), nil), api.CodeWrongState)
	wantCode(t, n.call(t.Context(), as("p", "sandbox.resume", sb.ID, nil), nil), api.CodeWrongState)
	wantCode(t, n.call(t.Context(), as("q", "sandbox.pause", sb.ID, nil), nil), api.CodeNotFound)
}

// TestStopDoesntWaitForAPause, nor for a resume: it gives it up.
func TestStopDoesntWaitForAPause(t *testing.T) {
	n := startNode(t, func(c *Config) { c.PauseTime = time.Hour })
	for _, from := range []api.State{api.StatePausing, api.StateResuming, api.StatePaused} {
		sb := n.create(plain)
		letGo, answer := func() {}, make(chan error, 1)
		if from != api.StatePausing {
			n.pause(sb.ID)
		}
		if method := map[api.State]string{api.StatePausing: "sandbox.pause", api.StateResuming: "sandbox.resume"}[from]; method != "" {
			letGo = n.held()
			go func() { answer <- n.call(t.Context(), as("p", method, sb.ID, nil), nil) }()
		} else {
			answer <- api.Errorf(api.CodeWrongState, "")
		}
		until(t, "it is "+string(from), func() bool { return n.get(sb.ID).State == from })
		n.must("sandbox.stop", sb.ID, nil, nil)
		if v := n.get(sb.ID); v.State != api.StateStopped || n.fake.living()[sb.ID] {
			t.Errorf("stopped while %s: %+v", from, v)
		}
		if e := wantCode(t, <-answer, api.CodeWrongState); e.RetryMS != 0 {
			t.Errorf("it was waited for: %+v", e)
		}
		letGo()
	}
	sb := n.create(plain)
	n.pause(sb.ID)
	n.fake.kill(sb.ID)
	until(t, "the death of a paused one is noticed", func() bool { return n.get(sb.ID).State == api.StateFailed })
}

// TestRestartInTheMiddle: whatever the last edge was doing, the next one has it running or paused.
func TestRestartInTheMiddle(t *testing.T) {
	for name, tc := range map[string]struct {
		state  api.State
		still  bool   // as the kernel says
		faults string // methods that fail
		want   api.State
	}{
		"pausing":                  {api.StatePausing, false, "", api.StateRunning},
		"pausing-was-done":         {api.StatePausing, true, "", api.StateRunning},
		"pausing-cant-be-undone":   {api.StatePausing, true, "resume", api.StatePaused},
		"paused":                   {api.StatePaused, true, "", api.StatePaused},
		"paused-and-let-go":        {api.StatePaused, false, "", api.StatePaused},
		"paused-and-cant-be-again": {api.StatePaused, false, "pause", api.StateRunning},
		"resuming":                 {api.StateResuming, true, "", api.StateRunning},
		"resuming-was-done":        {api.StateResuming, false, "", api.StateRunning},
		"resuming-fails":           {api.StateResuming, true, "resume", api.StatePaused},
		"running-stands-still":     {api.StateRunning, true, "", api.StateRunning},
		"not-known":                {api.StatePaused, true, "paused", api.StatePaused},
	} {
		t.Run(name, func(t *testing.T) {
			n := startNode(t, nil)
			sb := n.create(`{"image":"busybox","ttl":{"running_s":3600,"paused_s":7200}}`)
			box, err := n.edge.find("p", sb.ID)
			if err != nil {
				t.Fatal(err)
			}
			box.mu.Lock()
			box.rec.State = tc.state
			n.edge.saveLocked(box)
			box.mu.Unlock()
			if tc.still {
				if err := os.WriteFile(n.fake.boxes[sb.ID].still(), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			n.tune = func(c *Config) {
				for m := range strings.FieldsSeq(tc.faults) {
					c.Backend.(*fake).setFault(m, errors.New("no"))
				}
			}
			n.restart()
			v := n.get(sb.ID)
			if v.State != tc.want || (v.PausedAt != nil) != (tc.want == api.StatePaused) || v.ExpiresAt == nil {
				t.Errorf("%+v", v)
			}
			for _, m := range []string{"pause", "resume", "paused"} {
				n.fake.setFault(m, nil)
			}
			if still, err := n.fake.boxes[sb.ID].Paused(); err != nil || still != (tc.want == api.StatePaused) {
				t.Errorf("it stands still: %v, %v", still, err)
			}
			if tr := n.exec("p", sb.ID, argv("say", "hi"), nil); string(tr.stdout) != "hi" {
				t.Errorf("%+v", tr)
			}
			n.must("sandbox.stop", sb.ID, nil, nil)
		})
	}
}

// TestPausedMeanwhile: a request that was on its way to a sandbox as that was paused wakes it and is made again.
func TestPausedMeanwhile(t *testing.T) {
	n := startNode(t, nil)
	sb := n.create(plain)
	n.fake.onFrozen = func() { n.pause(sb.ID) }
	n.fake.setFault("frozen-once", api.Errorf(api.CodeFrozen, "the sandbox is paused"))
	if tr := n.exec("p", sb.ID, argv("say", "hi"), nil); string(tr.stdout) != "hi" {
		t.Errorf("%+v", tr)
	}
	n.fake.setFault("frozen-once", api.Errorf(api.CodeFrozen, "the sandbox is paused"))
	n.must("session.create", sb.ID, `{"id":"s1"}`, nil)
	if calls := n.fake.called("resume"); calls != 2 {
		t.Errorf("%d resumes", calls)
	}
	// What somebody else has frozen isn't ours to thaw.
	n.fake.onFrozen = func() {}
	n.fake.setFault("frozen-once", api.Errorf(api.CodeFrozen, "the sandbox is paused"))
	wantCode(t, n.exec("p", sb.ID, argv("say", "hi"), nil).err, api.CodeFrozen)
	n.fake.setFault("frozen-once", api.Errorf(api.CodeFrozen, "the sandbox is paused"))
	wantCode(t, n.call(t.Context(), as("p", "session.create", sb.ID, []byte(`{}`)), nil), api.CodeFrozen)
}

// TestPauseWaitsForWhatHasJustCome, and what has come is no reason to be woken.
func TestPauseWaitsForWhatHasJustCome(t *testing.T) {
	n := startNode(t, nil)
	sb := n.create(plain)
	n.fake.slow = make(chan struct{})
	answered := make(chan transcript, 1)
	go func() { answered <- n.exec("p", sb.ID, argv("say", "hi"), nil) }()
	until(t, "it has come", func() bool { return n.fake.called("exec") == 1 })
	paused := make(chan api.Sandbox, 1)
	go func() { paused <- n.pause(sb.ID) }()
	until(t, "it pauses", func() bool { return n.get(sb.ID).State == api.StatePausing })
	select {
	case <-paused:
		t.Error("it didn't wait")
	case <-time.After(unheld):
	}
	close(n.fake.slow)
	if tr := <-answered; string(tr.stdout) != "hi" {
		t.Errorf("%+v", tr)
	}
	<-paused
	if n.fake.called("resume") != 0 {
		t.Error("it was woken")
	}
}
