package bench_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	if err != nil || doc.Failures() != 0 || len(doc.Results) != 2 {
		t.Fatalf("%v, %+v\n%s", err, doc, progress.String())
	}
	for _, r := range doc.Results {
		if r.N != 16 || r.Value <= 0 || r.Concurrency != 4 || r.Peers["sequential"].N != 16 || r.Ratio["sequential"] <= 0 {
			t.Errorf("%+v", r)
		}
	}
}
