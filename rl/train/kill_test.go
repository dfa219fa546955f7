package train

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/dsec-io/dsec/rl/env"
)

const childRun = "DSEC_RL_TEST_RUN" // set: this process is the one that is killed, and this is the run

// killRun is a run that is killed, again and again.
type killRun struct {
	Env     string
	Folder  string // Config and its JSON leave out what isn't of the run itself
	Workers int
	Config  Config
}

// killRuns are the runs of a soak, one after another; without a soak, only the first.
func killRuns(round int) killRun {
	steps := int64(32 * 16 * 60)
	if round > 0 {
		steps *= 10
	}
	c := Config{
		Seed: 5 + uint64(round), Steps: steps, Envs: 32, Horizon: 16, CheckpointEvery: 3, Net: Net{Hidden: []int{32}, LSTM: 16},
		Learn: Learn{Minibatch: 128, Epochs: 2},
	}
	switch round % 4 {
	case 1:
		c.Learn.Optimizer.Name, c.Learn.TargetKL = "muon", 0.02
		return killRun{Env: "breakout", Workers: 2, Config: c}
	case 2:
		c.Learn.Advantage, c.Learn.PriorityAlpha, c.Learn.PriorityBeta = "vtrace4", 0.8, 0.2
		return killRun{Env: "memory", Config: c}
	case 3:
		c.Net.LSTM = 0
		return killRun{Env: "cartpole", Workers: 3, Config: c}
	}
	return killRun{Env: "squared", Config: c}
}

func (k killRun) config() Config {
	k.Config.Folder, k.Config.Workers = k.Folder, k.Workers
	return k.Config
}

// TestKilledChild isn't a test of its own: it's what TestKill starts and kills.
func TestKilledChild(t *testing.T) {
	text := os.Getenv(childRun)
	if text == "" {
		return
	}
	var k killRun
	if err := json.Unmarshal([]byte(text), &k); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), k.config(), maker(t, k.Env), Hooks{}); err != nil {
		t.Fatal(err)
	}
}

// soak is how long TestKill goes on: DSEC_SOAK (go test needs -timeout, then), one short run without.
func soak(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("DSEC_SOAK")
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestKill kills a run again and again, each time sooner or later, and lets it go on; it ends with the same bits as one
// that nobody touched. A soak does so to one run after another, of several environments, optimizers and forms.
func TestKill(t *testing.T) {
	rnd, begun, long := env.NewRand(uint64(time.Now().UnixNano())), time.Now(), soak(t)
	kills, updates := 0, 0
	for round := 0; round == 0 || time.Since(begun) < long; round++ {
		k := killRuns(round)
		k.Folder = t.TempDir()
		want := saved(t, k.config(), k.Env, Hooks{})
		k.Folder = t.TempDir()
		n := killUntilDone(t, k, &rnd)
		got, err := os.ReadFile(filepath.Join(k.Folder, CheckpointName))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("run %d, %s: after %d kills it came to something else", round, k.Env, n)
		}
		kills, updates = kills+n, updates+int(k.Config.Steps/(32*16))
		if long > 0 {
			t.Logf("%v: run %d, %s, %d steps: killed %d times", time.Since(begun).Round(time.Second), round, k.Env, k.Config.Steps, n)
		}
	}
	t.Logf("killed %d times in %d updates", kills, updates)
	if kills == 0 {
		t.Error("nothing was ever killed")
	}
}

// killUntilDone starts the run as often as it takes, and returns how often it was killed.
func killUntilDone(t *testing.T, k killRun, rnd *env.Rand) (kills int) {
	t.Helper()
	text, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	var before []byte
	for patience := time.Duration(1); ; {
		ctx, cancel := context.WithCancel(t.Context())
		cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestKilledChild$")
		cmd.Env = append(os.Environ(), childRun+"="+string(text))
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// Within the run's time there are many checkpoints: any instant is as good as another. The first kill comes soon,
		// so that a fast machine isn't done before it.
		after := time.Duration(20+rnd.IntN(30)) * time.Millisecond
		if kills > 0 {
			after += time.Duration(rnd.IntN(400)) * time.Millisecond
		}
		timer := time.AfterFunc(patience*after, func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		timer.Stop()
		cancel()
		if err == nil {
			return kills
		}
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != -1 {
			t.Fatalf("the run ended by itself: %v\n%s", err, out.Bytes())
		}
		kills++
		now, _ := os.ReadFile(filepath.Join(k.Folder, CheckpointName)) // none yet: no progress
		if bytes.Equal(now, before) {
			patience *= 2 // on a machine this slow a run would be killed before its first checkpoint, for ever
		}
		before = now
	}
}
