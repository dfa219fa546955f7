package bench_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/cmd/dsec/devcmd"
	"github.com/dsec-io/dsec/internal/bench"
	"github.com/dsec-io/dsec/internal/need"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestMain is also the program that a benchmark starts its own servers with.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "dev" {
		os.Exit(dev(os.Args[2:]))
	}
	testbed.Main(m)
}

// dev is `dsec dev`.
func dev(args []string) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	a := &cli.App{Env: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	a.Signals = cli.NewSignals(func(s os.Signal) { cancel(&cli.InterruptedError{Signal: s}) })
	defer a.Signals.Close()
	cmd := devcmd.Command(a)
	cmd.SetArgs(args)
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// TestExecOnARealNode runs the whole benchmark, quickly, and looks whether what it says can be.
func TestExecOnARealNode(t *testing.T) {
	need.Command(t, "mkfs.erofs")
	n := testbed.Shared(t)
	out := t.TempDir()
	var progress bytes.Buffer
	doc, err := bench.Run(t.Context(), bench.Exec, bench.Options{
		Command: "test", Quick: true, N: 20, Concurrency: []int{1, 4}, Out: out, Endpoint: n.Endpoint, Token: n.Token,
		Images: filepath.Join(n.Dir, "images"), Env: os.Environ(), Progress: &progress,
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	if doc.Failures() != 0 {
		t.Errorf("%d failures:\n%s", doc.Failures(), progress.String())
	}
	byName := map[string]bench.Result{}
	for _, r := range doc.Results {
		if r.Concurrency == 1 {
			byName[r.Name] = r
		}
	}
	rate, took, bare := byName["exec.tiny-true.rate"], byName["exec.tiny-true.latency"], byName["exec.tiny-true.bare"]
	if rate.N != 20 || rate.Value <= 0 || took.P10 <= bare.P10 || bare.P10 <= 0 || took.P99 < took.P50 {
		t.Errorf("rate %+v\nlatency %+v\nbare %+v", rate, took, bare)
	}
	for _, file := range []string{"exec.tsv", "exec-tiny-true-c1.svg", "exec-busybox-true-c4.svg"} {
		if st, err := os.Stat(filepath.Join(out, file)); err != nil || st.Size() == 0 {
			t.Errorf("%s: %v", file, err)
		}
	}
	if left, err := os.ReadDir(filepath.Join(n.Dir, "images")); err == nil && len(left) > 0 {
		t.Errorf("images left in the node's store: %v", left)
	}
}

// TestCrunOnARealNode: a peer's commands are measured in the same run.
func TestCrunOnARealNode(t *testing.T) {
	need.Command(t, "mkfs.erofs")
	need.Command(t, "crun")
	n := testbed.Shared(t)
	var progress bytes.Buffer
	doc, err := bench.Run(t.Context(), bench.Exec, bench.Options{
		Quick: true, N: 10, Concurrency: []int{2}, Peers: []string{"crun"}, Endpoint: n.Endpoint, Token: n.Token,
		Images: filepath.Join(n.Dir, "images"), Env: os.Environ(), Progress: &progress,
	})
	if err != nil || doc.Failures() != 0 {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	if r := doc.Results[0]; r.Peers["crun"].N == 0 || r.Ratio["crun"] <= 0 {
		t.Errorf("%+v", r)
	}
	if out, err := exec.CommandContext(t.Context(), "crun", "list", "-q").Output(); err == nil && bytes.Contains(out, []byte("dsecbench")) {
		t.Errorf("containers are left: %s", out)
	}
}

func TestUnknownBenchmark(t *testing.T) {
	if _, err := bench.Run(t.Context(), "nonsense", bench.Options{}); err == nil {
		t.Error("no error")
	}
}
