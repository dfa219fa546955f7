// Package backendtest is the suite that every backend of the edge passes: what the edge relies on, told as checks.
//
//	backendtest.Run(t, backendtest.Node{Open: open, Instance: instance, Image: "busybox"})
//
// Each check opens a backend of its own over the node's data and must leave nothing in the kernel or on disk. Checks run
// one after the other.
package backendtest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/edge"
	"github.com/dsec-io/dsec/internal/leakcheck"
)

// Node is where backends are tested.
type Node struct {
	// Open makes a backend over the node's data. A second one is opened only after the first has been closed.
	Open     func(t *testing.T) edge.Backend
	Instance string // name of the instance in cgroups
	Image    string // has /bin/sh
	// Left lists what is on disk for sandboxes; nothing may be when all have been stopped.
	Left func() ([]string, error)
}

// Run runs all checks.
func Run(t *testing.T, n Node) {
	for _, c := range []struct {
		name string
		run  func(*run)
	}{
		{"start-exec-stop", startExecStop},
		{"stop-is-idempotent", stopIsIdempotent},
		{"adopt-after-forgetting", adoptAfterForgetting},
		{"adopt-the-dead", adoptTheDead},
		{"clean-without-state", cleanWithoutState},
		{"failed-persist-leaves-nothing", failedPersist},
		{"cancelled-start-leaves-nothing", cancelledStart},
		{"limits-are-set", limitsAreSet},
		{"death-of-init-is-noticed", deathOfInit},
		{"boxes-are-isolated", boxesAreIsolated},
		{"many-at-once", manyAtOnce},
	} {
		t.Run(c.name, func(t *testing.T) {
			leakcheck.CheckInstance(t, n.Instance)
			r := &run{T: t, node: n}
			r.open()
			t.Cleanup(r.finish)
			c.run(r)
		})
	}
}

// run is one check's view of the node.
type run struct {
	*testing.T
	node    Node
	backend edge.Backend
	next    int
	started []edge.Box
}

const patience = 20 * time.Second

func (r *run) open() {
	r.Helper()
	r.backend = r.node.Open(r.T)
	if w, ok := r.backend.(edge.Warmer); ok && r.next == 0 {
		w.Warm()
	}
}

// close closes the backend as the end of its process would.
func (r *run) close() {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := r.backend.Close(ctx); err != nil {
		r.Errorf("Close() = %v", err)
	}
}

func (r *run) finish() {
	for _, box := range r.started { // those that a failed check has left
		r.stop(box)
	}
	r.close()
	left, err := r.node.Left()
	if err != nil || len(left) > 0 {
		r.Errorf("on disk: %v, %v", left, err)
	}
}

// params are those of a sandbox with usual limits. Its last persisted state goes to *state.
func (r *run) params(state *json.RawMessage) edge.BoxParams {
	r.next++
	return edge.BoxParams{
		ID: fmt.Sprintf("test%d", r.next), Project: "p",
		Spec: api.Spec{
			Backend: r.backend.Name(), Image: r.node.Image, User: "0", Workdir: "/", Hostname: "sandbox", Isolation: "shared",
			Resources: api.Resources{CPU: new(1.0), MemoryMB: new(int64(64)), PIDs: new(int64(64))},
		},
		Persist: func(s json.RawMessage) error {
			*state = s
			return nil
		},
	}
}

func (r *run) start() (edge.Box, edge.BoxParams, json.RawMessage) {
	r.Helper()
	var state json.RawMessage
	p := r.params(&state)
	box, err := r.backend.Start(r.Context(), p)
	if err != nil {
		r.Fatalf("Start() = %v", err)
	}
	r.started = append(r.started, box)
	if string(state) != string(box.State()) {
		r.Errorf("persisted %s, the box says %s", state, box.State())
	}
	return box, p, state
}

func (r *run) stop(box edge.Box) {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := box.Stop(ctx); err != nil {
		r.Errorf("Stop() = %v", err)
	}
}

// sh runs a script and returns what it wrote.
func (r *run) sh(box edge.Box, script string) (string, aether.Exited) {
	r.Helper()
	out, exited, err := Exec(r.Context(), box, "/bin/sh", "-c", script)
	if err != nil {
		r.Fatalf("exec %s: %v", script, err)
	}
	return out, exited
}

// want runs a script that has to write something.
func (r *run) want(box edge.Box, script, want string) {
	r.Helper()
	if got, ended := r.sh(box, script); got != want {
		r.Errorf("%s: got %q, want %q (%+v)", script, got, want, ended)
	}
}

// Exec runs a command and returns its output (both streams) and its end.
func Exec(ctx context.Context, box edge.Box, argv ...string) (string, aether.Exited, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m := aether.ExecStart{ID: "e" + strings.ToLower(rand.Text()), MaxOutput: 1 << 20}
	for _, a := range argv {
		m.Argv = append(m.Argv, []byte(a))
	}
	s, err := box.Open(ctx, aether.Open{Method: "exec", Body: m.AppendTo(nil)})
	if err != nil {
		return "", aether.Exited{}, err
	}
	defer s.Reset(nil)
	var out strings.Builder
	for {
		f, err := s.Recv(ctx)
		if errors.Is(err, io.EOF) {
			return "", aether.Exited{}, errors.New("no end was reported")
		}
		if err != nil {
			return "", aether.Exited{}, err
		}
		if f.Channel == aether.Stdout || f.Channel == aether.Stderr {
			out.Write(f.Data)
		}
		if f.Channel == aether.Message && f.Type == aether.MsgExited {
			var e aether.Exited
			err := e.Unmarshal(f.Data)
			f.Release()
			return out.String(), e, err
		}
		f.Release()
	}
}

func startExecStop(r *run) {
	box, _, _ := r.start()
	r.want(box, "echo $((6*7)); hostname; id -u", "42\nsandbox\n0\n")
	select {
	case <-box.Done():
		r.Error("Done() of a living sandbox is closed")
	default:
	}
	r.stop(box)
	select {
	case <-box.Done():
	default:
		r.Error("Done() of a stopped sandbox isn't closed")
	}
	if _, _, err := Exec(r.Context(), box, "/bin/true"); err == nil {
		r.Error("exec in a stopped sandbox worked")
	}
}

func stopIsIdempotent(r *run) {
	box, p, state := r.start()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { r.stop(box) })
	}
	wg.Wait()
	r.stop(box)
	for _, s := range []json.RawMessage{state, nil} {
		if err := r.backend.Clean(r.Context(), p.ID, s); err != nil {
			r.Errorf("Clean() after Stop() = %v", err)
		}
	}
}

func adoptAfterForgetting(r *run) {
	box, p, state := r.start()
	r.want(box, "echo kept >/tmp/f; (while :; do date >/tmp/alive; sleep 0.05; done) >/dev/null 2>&1 & echo ok", "ok\n")
	r.close()
	r.open()
	again, err := r.backend.Adopt(r.Context(), p.ID, state)
	if err != nil {
		r.Fatalf("Adopt() = %v", err)
	}
	r.started = append(r.started, again)
	if w, ok := r.backend.(edge.Warmer); ok {
		w.Warm()
	}
	r.want(again, "cat /tmp/f; rm -f /tmp/alive; i=0; until [ -e /tmp/alive ] || [ $i = 600 ]; do i=$((i+1)); sleep 0.1; done; [ -e /tmp/alive ] && echo alive", "kept\nalive\n")
	// What was adopted takes room like what was made: the next one must not collide with it.
	other, _, _ := r.start()
	r.want(other, "ls /tmp", "")
	r.stop(other)
	r.stop(again)
}

func adoptTheDead(r *run) {
	box, p, state := r.start()
	r.stop(box)
	if _, err := r.backend.Adopt(r.Context(), p.ID, state); !errors.Is(err, edge.ErrGone) {
		r.Errorf("Adopt() of a stopped sandbox = %v, want ErrGone", err)
	}
	if err := r.backend.Clean(r.Context(), p.ID, state); err != nil {
		r.Errorf("Clean() = %v", err)
	}
}

func cleanWithoutState(r *run) {
	_, p, state := r.start()
	r.close()
	r.open()
	r.listed(p.ID, true)
	if err := r.backend.Clean(r.Context(), p.ID, nil); err != nil {
		r.Errorf("Clean() = %v", err)
	}
	r.listed(p.ID, false)
	// The process that forgot the sandbox is this one, which goes on living as init's parent.
	if _, err := initOf(r, state).Wait(); err != nil {
		r.Errorf("wait for init: %v", err)
	}
}

// listed checks that a backend that lists tells of a sandbox, or doesn't.
func (r *run) listed(id string, want bool) {
	r.Helper()
	l, ok := r.backend.(edge.Lister)
	if !ok {
		return
	}
	if ids, err := l.List(); err != nil || slices.Contains(ids, id) != want {
		r.Errorf("List() = %v, %v; with %s: %v", ids, err, id, want)
	}
}

func failedPersist(r *run) {
	for fail := 1; ; fail++ {
		var state json.RawMessage
		p := r.params(&state)
		inner, calls, boom := p.Persist, 0, errors.New("disk full")
		p.Persist = func(s json.RawMessage) error {
			if calls++; calls == fail {
				return boom
			}
			return inner(s)
		}
		box, err := r.backend.Start(r.Context(), p)
		if calls < fail {
			if err != nil {
				r.Fatalf("Start() = %v without a fault", err)
			}
			r.stop(box)
			break
		}
		if !errors.Is(err, boom) {
			r.Errorf("Start() with fault %d = %v", fail, err)
		}
		r.nothingLeft(p.ID, state)
	}
}

// nothingLeft checks a start that has failed: also without Clean nothing is left, and Clean is harmless.
func (r *run) nothingLeft(id string, state json.RawMessage) {
	r.Helper()
	s, err := leakcheck.Take()
	if err != nil {
		r.Fatal(err)
	}
	for _, entry := range append(s.Cgroups, s.Processes...) {
		if strings.Contains(entry, r.node.Instance+"/") && strings.Contains(entry, "/"+id) {
			r.Errorf("left by a failed start: %s", entry)
		}
	}
	if err := r.backend.Clean(r.Context(), id, state); err != nil {
		r.Errorf("Clean() = %v", err)
	}
}

func cancelledStart(r *run) {
	warm, _, _ := r.start() // the first start of a project takes longer
	r.stop(warm)
	cause := errors.New("cancelled by the test")
	finished := 0
	for delay := time.Duration(0); delay < 8*time.Millisecond && finished < 3; delay += 150 * time.Microsecond {
		ctx, cancel := context.WithCancelCause(r.Context())
		timer := time.AfterFunc(delay, func() { cancel(cause) })
		var state json.RawMessage
		p := r.params(&state)
		box, err := r.backend.Start(ctx, p)
		timer.Stop()
		cancel(nil)
		if err == nil {
			finished++
			r.stop(box)
			continue
		}
		r.nothingLeft(p.ID, state)
	}
}

func limitsAreSet(r *run) {
	box, _, _ := r.start()
	_, ended := r.sh(box, "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}")
	u, err := box.Usage()
	if err != nil {
		r.Fatalf("Usage() = %v", err)
	}
	if ended.HasCode && ended.Code == 0 || u.OOMKills == 0 {
		r.Errorf("200 MB in 64 MiB: ended %+v, usage %+v", ended, u)
	}
	if u.PIDs < 1 || u.MemoryBytes <= 0 || u.CPUNanos <= 0 {
		r.Errorf("usage %+v", u)
	}
	if err := box.SetLimits(r.Context(), api.Resources{CPU: new(1.0), MemoryMB: new(int64(512)), PIDs: new(int64(100))}); err != nil {
		r.Fatalf("SetLimits() = %v", err)
	}
	if _, ended := r.sh(box, "x=$(head -c 50000000 /dev/zero | tr '\\0' x); [ ${#x} = 50000000 ]"); !ended.HasCode || ended.Code != 0 {
		r.Errorf("50 MB in 512 MiB: %+v", ended)
	}
	// Last, because nothing can be started in a full sandbox.
	r.sh(box, "i=0; while [ $i -lt 200 ]; do sleep 30 >/dev/null 2>&1 & i=$((i+1)); done 2>/dev/null")
	if u, err := box.Usage(); err != nil || u.PIDs > 100 || u.PIDs < 90 {
		r.Errorf("200 processes in a sandbox for 100: %+v, %v", u, err)
	}
	r.stop(box)
}

func deathOfInit(r *run) {
	box, p, state := r.start()
	// The whole group is killed, as an OOM of the machine might do it.
	if err := r.backend.Clean(r.Context(), "nobody", nil); err != nil {
		r.Errorf("Clean() of nobody = %v", err)
	}
	if err := initOf(r, state).Kill(); err != nil {
		r.Fatalf("kill init: %v", err)
	}
	select {
	case <-box.Done():
	case <-time.After(patience):
		r.Fatal("the death of init isn't noticed")
	}
	if _, err := r.backend.Adopt(r.Context(), p.ID, state); !errors.Is(err, edge.ErrGone) {
		r.Errorf("Adopt() = %v, want ErrGone", err)
	}
	r.stop(box)
}

func boxesAreIsolated(r *run) {
	a, _, _ := r.start()
	b, _, _ := r.start()
	r.want(a, "echo secret >/tmp/f; (sleep 30 >/dev/null 2>&1 &) ; echo ok", "ok\n")
	r.want(b, "cat /tmp/f 2>/dev/null; hostname", "sandbox\n")
	r.want(b, "ps | grep -c '[s]leep 30'", "0\n")
	ida, _ := r.sh(a, "cat /proc/self/uid_map; readlink /proc/self/ns/net; readlink /proc/self/ns/ipc; readlink /proc/self/ns/mnt")
	idb, _ := r.sh(b, "cat /proc/self/uid_map; readlink /proc/self/ns/net; readlink /proc/self/ns/ipc; readlink /proc/self/ns/mnt")
	la, lb := strings.Split(ida, "\n"), strings.Split(idb, "\n")
	for i := range min(len(la), len(lb), 4) {
		if la[i] == lb[i] {
			r.Errorf("both sandboxes have %q", la[i])
		}
	}
	r.stop(a)
	r.want(b, "echo still here", "still here\n")
	r.stop(b)
}

func manyAtOnce(r *run) {
	const workers, each = 4, 8
	var wg sync.WaitGroup
	var mu sync.Mutex
	params := func() edge.BoxParams {
		mu.Lock()
		defer mu.Unlock()
		var state json.RawMessage
		return r.params(&state)
	}
	for range workers {
		wg.Go(func() {
			for range each {
				p := params()
				box, err := r.backend.Start(r.Context(), p)
				if err != nil {
					r.Errorf("Start() = %v", err)
					return
				}
				// Running means that the first exec is answered.
				out, _, err := Exec(r.Context(), box, "/bin/echo", p.ID)
				if err != nil || out != p.ID+"\n" {
					r.Errorf("exec in %s: %q, %v", p.ID, out, err)
				}
				r.stop(box)
			}
		})
	}
	wg.Wait()
}
