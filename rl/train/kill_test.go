package train

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/dsec-io/dsec/rl/env"
)

const childFolder = "DSEC_RL_TEST_FOLDER" // set: this process is the one that is killed

func killConfig(folder string, steps int64) Config {
	return Config{
		Seed: 5, Steps: steps, Envs: 32, Horizon: 16, CheckpointEvery: 3, Folder: folder, Net: Net{Hidden: []int{32}, LSTM: 16},
		Learn: Learn{Minibatch: 128, Epochs: 2},
	}
}

// TestKilledChild isn't a test of its own: it's what TestKill starts and kills.
func TestKilledChild(t *testing.T) {
	folder := os.Getenv(childFolder)
	if folder == "" {
		return
	}
	if _, err := Run(t.Context(), killConfig(folder, soakSteps(t)), maker(t, "squared"), Hooks{}); err != nil {
		t.Fatal(err)
	}
}

// soak is how long TestKill may take: DSEC_SOAK (go test needs -timeout, then), a few seconds without.
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

// soakSteps is how many steps two runs, one of them killed, take for a soak, about.
func soakSteps(t *testing.T) int64 {
	t.Helper()
	return 32*16*60 + int64(soak(t).Seconds()*20_000)
}

// TestKill kills a run again and again, each time sooner or later, and lets it go on; it ends with the same bits as one
// that nobody touched.
func TestKill(t *testing.T) {
	straight, killed := t.TempDir(), t.TempDir()
	want := saved(t, killConfig(straight, soakSteps(t)), "squared", Hooks{})
	rnd, kills := env.NewRand(uint64(time.Now().UnixNano())), 0
	var before []byte
	for patience := time.Duration(1); ; {
		ctx, cancel := context.WithCancel(t.Context())
		cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestKilledChild$")
		cmd.Env = append(os.Environ(), childFolder+"="+killed)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// Within the first run's time there are many checkpoints: any instant is as good as another.
		after := patience * (time.Duration(100+rnd.IntN(400))*time.Millisecond + soak(t)/50)
		timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		timer.Stop()
		cancel()
		if err == nil {
			break
		}
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != -1 {
			t.Fatalf("the run ended by itself: %v\n%s", err, out.Bytes())
		}
		kills++
		now, _ := os.ReadFile(filepath.Join(killed, CheckpointName)) // none yet: no progress
		if bytes.Equal(now, before) {
			patience *= 2 // on a machine this slow a run would be killed before its first checkpoint, for ever
		}
		before = now
	}
	got, err := os.ReadFile(filepath.Join(killed, CheckpointName))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("after %d kills it came to something else", kills)
	}
	t.Logf("killed %d times", kills)
	if kills == 0 && soak(t) > 0 {
		t.Error("it was never killed")
	}
}
