package bench_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/bench"
	"github.com/dsec-io/dsec/internal/need"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestRL runs the whole benchmark, quickly: it needs no server.
func TestRL(t *testing.T) {
	out := t.TempDir()
	var progress bytes.Buffer
	doc, err := bench.Run(t.Context(), bench.RL, bench.Options{Command: "test", Quick: true, N: 2, Out: out, Progress: &progress})
	if err != nil || doc.Failures() != 0 {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	want := []string{"rl.step.squared", "rl.handoff.async", "rl.advantage.gae", "rl.advantage.vtrace4", "rl.train.squared.mlp128", "rl.train.squared.lstm128"}
	for _, name := range want {
		found := false
		for _, r := range doc.Results {
			if strings.HasPrefix(r.Name, name) {
				found = true
				if !strings.HasSuffix(r.Unit, "/s") || r.Value <= 0 || r.N <= 0 || r.P50 > r.P99 {
					t.Errorf("%+v", r)
				}
			}
		}
		if !found {
			t.Errorf("nothing is called %s…", name)
		}
	}
	if !strings.Contains(doc.Machine, "loops: advantages ") {
		t.Errorf("the machine %q doesn't say which loops were used", doc.Machine)
	}
	if st, err := os.Stat(filepath.Join(out, "rl.tsv")); err != nil || st.Size() == 0 {
		t.Error(err)
	}
}

// TestRLInSandboxes: steps at once and one by one, in the same run.
func TestRLInSandboxes(t *testing.T) {
	need.Command(t, "mkfs.erofs")
	n := testbed.Shared(t)
	var progress bytes.Buffer
	doc, err := bench.Run(t.Context(), bench.RL, bench.Options{
		Command: "test", Quick: true, N: 4, Sandboxes: 4, Endpoint: n.Endpoint, Token: n.Token,
		Images: filepath.Join(n.Dir, "images"), Env: os.Environ(), Progress: &progress,
	})
	if err != nil || doc.Failures() != 0 || len(doc.Results) != 3 {
		t.Fatalf("%v, %+v\n%s", err, doc, progress.String())
	}
	for _, r := range doc.Results {
		if r.N != 16 || r.Value <= 0 || r.Concurrency != 4 || r.Peers["sequential"].N != 16 || r.Ratio["sequential"] <= 0 {
			t.Errorf("%+v", r)
		}
	}
}

// ownOriginal is an environment of the interface that the C originals have, with rules of its own.
const ownOriginal = `
typedef struct { float perf, n; } Log;
typedef struct { Log log; unsigned char *observations; int *actions; float *rewards; unsigned char *terminals; int size, tick; } Squared;
void c_reset(Squared *e) { e->tick = 0; e->observations[0] = 1; }
void c_step(Squared *e) {
	e->observations[e->tick % (e->size * e->size)] = e->actions[0];
	e->rewards[0] = 0;
	e->terminals[0] = ++e->tick == 50;
	if (e->terminals[0]) { e->log.n++; c_reset(e); }
}
void draw_window(int);
void c_render(Squared *e) { draw_window(e->size); }
`

// TestRLOriginals: what a folder has of the C originals is compiled and takes turns with ours.
func TestRLOriginals(t *testing.T) {
	need.Command(t, "gcc")
	folder := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(folder, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	run := func(env []string) (*bench.Document, error) {
		var progress bytes.Buffer
		return bench.Run(t.Context(), bench.RL, bench.Options{Command: "test", Quick: true, N: 2, Originals: folder, Env: env, Progress: &progress})
	}
	refused := func(what string) {
		t.Helper()
		var e *api.Error
		if _, err := run(os.Environ()); !errors.As(err, &e) || e.Code != api.CodeInvalid || e.Field != "--originals" || e.Hint == "" || !strings.Contains(e.Error(), what) {
			t.Errorf("%v, want a refusal with %q", err, what)
		}
	}
	refused("has none of squared/squared.h")
	write("squared/squared.h", "typedef int Squared; nonsense")
	refused("squared.h doesn't compile: ")
	write("squared/squared.h", strings.Replace(ownOriginal, "c_step(Squared *e) {", "c_step(Squared *e) { return;", 1))
	if _, err := run(os.Environ()); err == nil || !strings.Contains(err.Error(), "change nothing") {
		t.Errorf("a peer that does nothing: %v", err)
	}
	write("squared/squared.h", ownOriginal)
	doc, err := run(os.Environ())
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, r := range doc.Results {
		if p, ok := r.Peers["original"]; ok {
			compared++
			if r.Name != "rl.step.squared" || p.Value <= 0 || p.P99 < p.Value || r.Ratio["original"] != r.Value/p.Value {
				t.Errorf("%+v", r)
			}
		}
	}
	if compared != 1 || !slices.ContainsFunc(doc.Notes, func(n string) bool { return strings.Contains(n, "pong/pong.h") }) {
		t.Errorf("%d compared; notes %q", compared, doc.Notes)
	}
	t.Setenv("PATH", t.TempDir())
	refused("no gcc")
	folder = filepath.Join(folder, "squared", "squared.h")
	refused("isn't a folder")
}
