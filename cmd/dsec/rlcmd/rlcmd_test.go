package rlcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"image/gif"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dsec-io/dsec/rl/envs"
	"github.com/dsec-io/dsec/rl/train"
)

var errSignalled = errors.New("a signal ended it")

// host plays the program around the commands.
type host struct {
	out, errs bytes.Buffer
	line      func() // called after each line of output
	handler   func(os.Signal)
}

func (h *host) Write(p []byte) (int, error) {
	n, err := h.out.Write(p)
	if h.line != nil {
		h.line()
	}
	return n, err
}

func (h *host) do(t *testing.T, args ...string) error {
	t.Helper()
	h.out.Reset()
	h.errs.Reset()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	end := func(os.Signal) { cancel(errSignalled) }
	h.handler = end
	cmd := Command(Host{
		Stdout: h, Stderr: &h.errs,
		Route: func(handler func(os.Signal)) func() {
			h.handler = handler
			return func() { h.handler = end }
		},
		Interrupted: func(os.Signal) error { return errSignalled },
	})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	cmd.SetOut(&h.errs)
	cmd.SetErr(&h.errs)
	return cmd.ExecuteContext(ctx)
}

// small is a run of squared that takes a second or two.
func small(out string, more ...string) []string {
	return append([]string{"train", "squared", "--steps", "400000", "--envs", "256", "--horizon", "32", "--hidden", "32", "--minibatch", "512", "--seed", "3", "--out", out}, more...)
}

// TestTrainAndEval is the whole way: train, try, look.
func TestTrainAndEval(t *testing.T) {
	h, out := new(host), t.TempDir()
	if err := h.do(t, small(out)...); err != nil {
		t.Fatalf("%v\n%s", err, h.errs.String())
	}
	rows := strings.Split(strings.TrimSpace(h.out.String()), "\n")
	if !strings.HasPrefix(rows[0], "update\tsteps\t") || len(rows) != 1+49 {
		t.Errorf("%d rows, the first: %q", len(rows), rows[0])
	}
	for _, file := range []string{train.CheckpointName, "log.tsv", "score.svg", "score.png", "return.png"} {
		if st, err := os.Stat(filepath.Join(out, file)); err != nil || st.Size() == 0 {
			t.Errorf("%s: %v", file, err)
		}
	}
	checkpoint := filepath.Join(out, train.CheckpointName)
	if err := h.do(t, "eval", "squared", "--checkpoint", checkpoint, "--episodes", "100", "--json"); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Episodes int64
		Score    float64
	}
	if err := json.Unmarshal(h.out.Bytes(), &got); err != nil || got.Episodes < 100 || got.Score < 0.4 {
		t.Errorf("%+v, %v: want a score of at least 0.4 (0.12 by chance)", got, err)
	}
	film, still := filepath.Join(out, "film.gif"), filepath.Join(out, "still.png")
	if err := errors.Join(
		h.do(t, "eval", "squared", "--checkpoint", checkpoint, "--episodes", "1", "--render", "gif", "--out", film),
		h.do(t, "eval", "squared", "--checkpoint", checkpoint, "--episodes", "1", "--render", "png", "--out", still),
	); err != nil {
		t.Fatal(err)
	}
	f, err := os.ReadFile(film)
	if err != nil {
		t.Fatal(err)
	}
	if g, err := gif.DecodeAll(bytes.NewReader(f)); err != nil || len(g.Image) < 2 {
		t.Errorf("the film: %v", err)
	}
	if f, err = os.ReadFile(still); err != nil {
		t.Fatal(err)
	}
	if _, err := png.Decode(bytes.NewReader(f)); err != nil {
		t.Errorf("the picture: %v", err)
	}
	if err := h.do(t, "eval", "squared", "--checkpoint", checkpoint, "--episodes", "1", "--render", "term", "--fps", "100"); err != nil || !strings.Contains(h.out.String(), "\x1b[H") {
		t.Errorf("on a terminal: %v, %d bytes", err, h.out.Len())
	}
	if err := h.do(t, "eval", "pong", "--checkpoint", checkpoint); err == nil || !strings.Contains(err.Error(), "trained on squared") {
		t.Errorf("another environment's checkpoint: %v", err)
	}
}

// TestStopAndResume: a signal ends a run with a checkpoint, and a run that goes on ends with the same bits.
func TestStopAndResume(t *testing.T) {
	h, whole, parts := new(host), t.TempDir(), t.TempDir()
	if err := h.do(t, small(whole, "--json")...); err != nil {
		t.Fatal(err)
	}
	h.line = func() { // in the midst of the second checkpoint's updates
		if bytes.Count(h.out.Bytes(), []byte("\n")) == 13 {
			h.handler(syscall.SIGINT)
		}
	}
	if err := h.do(t, small(parts, "--json")...); !errors.Is(err, errSignalled) {
		t.Fatalf("a run that was stopped: %v", err)
	}
	if n := strings.Count(h.out.String(), "\n"); n != 20 {
		t.Errorf("it stopped after update %d, want the checkpoint at 20", n)
	}
	h.line = nil
	if err := h.do(t, small(parts)...); err == nil || !strings.Contains(err.Error(), "has a run already") {
		t.Errorf("the same folder again: %v", err)
	}
	if err := h.do(t, "train", "squared", "--out", parts, "--resume", "--rate", "0.5"); err == nil {
		t.Error("it went on with another learning rate")
	}
	if err := h.do(t, "train", "squared", "--out", parts, "--resume", "--json"); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(h.out.String(), "\n"); n != 49-20 {
		t.Errorf("it went on for %d updates, want %d", n, 49-20)
	}
	var files [2][]byte
	for i, dir := range []string{whole, parts} {
		var err error
		if files[i], err = os.ReadFile(filepath.Join(dir, train.CheckpointName)); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(files[0], files[1]) {
		t.Error("another checkpoint than the run's that never stopped")
	}
	log, err := os.ReadFile(filepath.Join(parts, logName))
	if err != nil || bytes.Count(log, []byte("\n")) != 1+49 {
		t.Errorf("the log has %d lines, %v: want each update once", bytes.Count(log, []byte("\n")), err)
	}
}

// TestTwoSignals: the second one ends the run at once.
func TestTwoSignals(t *testing.T) {
	h := new(host)
	h.line = func() {
		if n := bytes.Count(h.out.Bytes(), []byte("\n")); n == 2 || n == 3 {
			h.handler(syscall.SIGINT)
		}
	}
	err := h.do(t, small(t.TempDir(), "--json")...)
	if n := strings.Count(h.out.String(), "\n"); !errors.Is(err, errSignalled) || n != 3 {
		t.Errorf("%v after %d updates", err, n)
	}
}

// TestCurves: several seeds and policies are drawn, told with their mean and spread, and kept as numbers.
func TestCurves(t *testing.T) {
	h, out := new(host), t.TempDir()
	args := []string{"curves", "memory", "--policies", "mlp,lstm", "--seeds", "2", "--steps", "20000", "--envs", "64", "--horizon", "16", "--hidden", "16", "--out", out}
	if err := h.do(t, append(args, "--json")...); err != nil {
		t.Fatalf("%v\n%s", err, h.errs.String())
	}
	var all []learnt
	if err := json.Unmarshal(h.out.Bytes(), &all); err != nil || len(all) != 2 || all[0].Policy != "mlp" || all[1].Policy != "lstm" {
		t.Fatalf("%+v, %v", all, err)
	}
	for _, l := range all {
		if len(l.Scores) != 2 || l.Mean != (l.Scores[0]+l.Scores[1])/2 || l.Spread < 0 || l.Steps != 20480 || l.SPS <= 0 {
			t.Errorf("%+v", l)
		}
	}
	numbers, err := os.ReadFile(filepath.Join(out, "memory.tsv"))
	if err != nil || !strings.Contains(string(numbers), "\nmlp 16\t1\t") || !strings.Contains(string(numbers), "\nlstm 16\t1\t20480\t") {
		t.Errorf("%v\n%s", err, numbers)
	}
	if err := h.do(t, args...); err != nil || !strings.Contains(h.out.String(), "SPREAD") {
		t.Errorf("%v: %q", err, h.out.String())
	}
	again, err := os.ReadFile(filepath.Join(out, "memory.tsv"))
	if err != nil || !bytes.Equal(again, numbers) {
		t.Errorf("other numbers the second time: %v", err)
	}
}

func TestEnvs(t *testing.T) {
	h := new(host)
	if err := h.do(t, "envs"); err != nil {
		t.Fatal(err)
	}
	for _, name := range envs.Names() {
		if !strings.Contains(h.out.String(), "\n"+name+" ") {
			t.Errorf("%s isn't listed", name)
		}
		if err := usual(name).Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	var all []struct {
		Name    string
		Choices []int
	}
	if err := h.do(t, "envs", "--json"); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(h.out.Bytes(), &all); err != nil || len(all) != len(envs.Names()) || len(all[0].Choices) == 0 {
		t.Errorf("%+v, %v", all, err)
	}
}

func TestWrongFlags(t *testing.T) {
	for name, args := range map[string]string{
		"no-env":        "train",
		"no-seeds":      "curves squared --seeds 0",
		"one-seed":      "curves squared --seed 3",
		"bad-policies":  "curves squared --policies mlp,tree",
		"unknown-env":   "train nonsense",
		"no-steps":      "train squared --steps 0",
		"policy":        "train squared --policy cnn",
		"hidden":        "train squared --hidden 0",
		"resume":        "train squared --resume --out /nonexistent/run",
		"no-checkpoint": "eval squared",
		"form":          "eval squared --checkpoint x --render mp4",
		"episodes":      "eval squared --checkpoint x --episodes 0",
	} {
		t.Run(name, func(t *testing.T) {
			if err := new(host).do(t, strings.Fields(args)...); err == nil {
				t.Errorf("dsec rl %s worked", args)
			}
		})
	}
}
