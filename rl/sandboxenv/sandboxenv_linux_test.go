package sandboxenv

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/env/envcheck"
	"github.com/dsec-io/dsec/rl/train"
	"github.com/dsec-io/dsec/rl/train/plot"
	"github.com/dsec-io/dsec/rl/vec"
	"github.com/dsec-io/dsec/test/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// newPool makes a pool on a node, which has to be empty at the end.
func newPool(t *testing.T, n *testbed.Node, warm int) *Pool {
	t.Helper()
	p, err := NewPool(n.Client, api.Spec{Image: "busybox"}, warm)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil || p.Alive() != 0 {
			t.Errorf("pool: %v, %d sandboxes are left", err, p.Alive())
		}
		for sb, err := range n.Client.List(context.Background(), libdsec.ListOptions{State: api.StateRunning}) {
			t.Errorf("left behind: %v, %v", sb, err)
		}
		if _, err := p.Get(context.Background()); err == nil {
			t.Error("a closed pool gave a sandbox")
		}
	})
	return p
}

// vector is a batch under a vector, reset.
func vector(t *testing.T, p *Pool, task Task, cfg Config, n int) (vec.Vector, *Batch) {
	t.Helper()
	b, err := New(p, task, cfg, n)
	if err != nil {
		t.Fatal(err)
	}
	v, err := vec.NewSerial(func(int) (env.Batch, error) { return b, nil }, n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := v.Reset(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	return v, b
}

// commands is a task of given commands: each that exits with 0 earns 1.
type commands []libdsec.Cmd

func (c commands) Spec() env.Spec {
	spec, err := env.NewSpec("commands", 1, env.Reals(0, 1e6, 1), env.Discrete{N: len(c)})
	if err != nil {
		panic(err)
	}
	return spec
}

func (c commands) Begin(uint64) Episode { return &commandsEpisode{c, 0} }

// commandsEpisode shows how many steps it has had.
type commandsEpisode struct {
	all   commands
	steps float32
}

func (e *commandsEpisode) Setup() libdsec.Cmd              { return libdsec.Cmd{Argv: []string{"true"}} }
func (e *commandsEpisode) Act(choices []int32) libdsec.Cmd { return e.all[choices[0]] }
func (e *commandsEpisode) Verify() *libdsec.Cmd            { return nil }

func (e *commandsEpisode) Judge(acted, _ *libdsec.Result) Verdict {
	e.steps++
	if acted.ExitCode != nil && *acted.ExitCode == 0 {
		return Verdict{Reward: 1}
	}
	return Verdict{Reward: -1}
}

func (e *commandsEpisode) Observe(_ *libdsec.Result, obs []float32) { obs[0] = e.steps }

func step(t *testing.T, v vec.Vector, choices ...int32) *env.Buffers {
	t.Helper()
	b := v.Buffers()
	copy(b.Choices, choices)
	if err := v.Step(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestOrders: doing as told earns 1, anything else 0, and the terminal shows what is to be done next.
func TestOrders(t *testing.T) {
	v, b := vector(t, newPool(t, testbed.Shared(t), 4), Orders{Length: 6}, Config{}, 3)
	kinds := len(orders())
	for range 13 { // over two ends of episodes
		told := make([]int32, 3)
		for i := range told {
			told[i] = int32(b.seats[i].doing.(*ordersEpisode).now)
			for w, word := range vocabulary() {
				want := strings.Contains(" "+orders()[told[i]].words+" ", " "+word+" ")
				if got := v.Buffers().ObsF32[i*len(vocabulary())+w]; word != "done" && word != "wrong" && (got == 1) != want {
					t.Errorf("row %d was told %q and sees %q: %v", i, orders()[told[i]].words, word, got)
				}
			}
		}
		got := step(t, v, told[0], told[1], (told[2]+1)%int32(kinds))
		if got.Rewards[0] != 1 || got.Rewards[1] != 1 || got.Rewards[2] != 0 || got.Masks[0]+got.Masks[1]+got.Masks[2] != 3 {
			t.Errorf("orders %v: rewards %v, masks %v, want 1, 1, 0", told, got.Rewards, got.Masks)
		}
	}
	s := v.(env.StatsTaker).TakeStats()
	if s.Episodes != 6 || s.Return != 24 || s.Length != 36 {
		t.Errorf("%+v, want six episodes of six steps and 24 orders done", s)
	}
	if c := b.Cost(); c.Steps != 39 || c.Episodes != 9 || c.Commands != 2*39+9 || c.Masked != 0 || c.Running <= 0 {
		t.Errorf("cost %+v", c)
	}
}

// TestConforms: it's an environment as any other, the same for the same seed and actions.
func TestConforms(t *testing.T) {
	p := newPool(t, testbed.Shared(t), 8)
	if err := envcheck.Batch(t.Context(), Maker(p, Orders{Length: 3}, Config{}), envcheck.Config{Envs: 2, Steps: 8, Seed: 1}); err != nil {
		t.Error(err)
	}
}

// TestEveryOrderHasOneAnswer: the verifier takes the right command only.
func TestEveryOrderHasOneAnswer(t *testing.T) {
	v, b := vector(t, newPool(t, testbed.Shared(t), 2), Orders{Length: 1000}, Config{}, 1)
	e := b.seats[0].doing.(*ordersEpisode)
	for told, o := range orders() {
		for choice, done := range orders() {
			e.now = told // every order finds the same files
			got := step(t, v, int32(choice)).Rewards[0]
			if (got == 1) != (told == choice) || got != 0 && got != 1 {
				t.Errorf("%q for %q earned %v", done.command, o.words, got)
			}
		}
	}
}

// TestAtOnce: a step takes as long as its slowest command.
func TestAtOnce(t *testing.T) {
	const rows = 8
	v, b := vector(t, newPool(t, testbed.Shared(t), rows), commands{{Argv: []string{"sleep", "0.5"}}}, Config{}, rows)
	b.Cost()
	start := time.Now()
	step(t, v)
	took := time.Since(start)
	if c := b.Cost(); c.Running < rows*500*time.Millisecond || took > c.Running/3 {
		t.Errorf("%v for commands of %v in all", took, c.Running)
	}
	if c := b.RowCost(0); c.Commands != 1 || c.Running < 500*time.Millisecond {
		t.Errorf("a row's cost is %+v", c)
	}
}

// TestAgentsFaultsAreData: what the command did wrong is judged, and nothing is masked.
func TestAgentsFaultsAreData(t *testing.T) {
	task := commands{{Argv: []string{"true"}}, {Argv: []string{"sleep", "60"}}, {Argv: []string{"/nope"}}, {Shell: "exit 3"}, {Shell: "kill -9 $$"}}
	v, b := vector(t, newPool(t, testbed.Shared(t), 5), task, Config{Timeout: 400 * time.Millisecond, MaxSteps: 2}, 5)
	for n := range 2 {
		got := step(t, v, 0, 1, 2, 3, 4)
		for i := range 5 {
			want := float32(-1)
			if i == 0 {
				want = 1
			}
			if got.Masks[i] != 1 || got.Rewards[i] != want || got.Terminals[i] != 0 || got.Truncations[i] != uint8(n) {
				t.Errorf("step %d, %+v: mask %d, reward %v, flags %d %d", n, task[i], got.Masks[i], got.Rewards[i], got.Terminals[i], got.Truncations[i])
			}
			if n == 1 && (got.FinalF32[i] != 2 || got.ObsF32[i] != 0) {
				t.Errorf("at its end row %d shows %v, then %v", i, got.FinalF32[i], got.ObsF32[i])
			}
		}
	}
	if c := b.Cost(); c.TimedOut != 2 || c.Masked != 0 {
		t.Errorf("cost %+v, want two time-outs", c)
	}
}

// members are the processes of a node's cgroups.
func members(t *testing.T, n *testbed.Node, groups string) (pids []int) {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		files, err := filepath.Glob(filepath.Join(root, "dsec-"+n.Instance(), groups, "cgroup.procs"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			raw, err := os.ReadFile(f)
			if err != nil {
				continue // it has just gone
			}
			for word := range strings.FieldsSeq(string(raw)) {
				pid, err := strconv.Atoi(word)
				if err != nil {
					t.Fatal(err)
				}
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func kill(t *testing.T, pids []int) {
	t.Helper()
	if len(pids) == 0 {
		t.Fatal("nothing to kill")
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatal(err)
		}
	}
}

// during makes a step of three rows, of which the last two sleep, and does something while they do.
func during(t *testing.T, v vec.Vector, b *Batch, do func()) {
	t.Helper()
	step(t, v, 0, 0, 0)
	boxes := []*libdsec.Sandbox{b.seats[1].box, b.seats[2].box}
	copy(v.Buffers().Choices, []int32{0, 1, 1})
	stepped := make(chan error, 1) // one result
	go func() { stepped <- v.Step(t.Context()) }()
	testbed.Until(t, time.Minute, "both commands to run", func() bool {
		for _, box := range boxes {
			if r, err := box.Exec(t.Context(), libdsec.Cmd{Shell: "pidof sleep"}); err != nil || r.ExitCode == nil || *r.ExitCode != 0 {
				return false
			}
		}
		return true
	})
	do()
	select {
	case err := <-stepped:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the step goes on without its aether")
	}
}

// TestAetherLostInAStep: where an aether is lost together with its keeper, nobody knows how commands end. That's masked,
// never a reward of 0; what was done before counts; and the rows go on.
func TestAetherLostInAStep(t *testing.T) {
	n := testbed.Start(t, testbed.Options{})
	v, b := vector(t, newPool(t, n, 3), commands{{Argv: []string{"true"}}, {Argv: []string{"sleep", "90"}}}, Config{Timeout: 2 * time.Minute}, 3)
	during(t, v, b, func() { kill(t, append(members(t, n, "keeper"), members(t, n, "shard-*/self")...)) })
	got := v.Buffers()
	for i, want := range []struct {
		mask   uint8
		reward float32
		shows  float32
	}{{1, 1, 2}, {0, 0, 0}, {0, 0, 0}} {
		if got.Masks[i] != want.mask || got.Rewards[i] != want.reward || got.ObsF32[i] != want.shows || got.Done(i) {
			t.Errorf("row %d: mask %d, reward %v, shows %v, done %v; want %+v", i, got.Masks[i], got.Rewards[i], got.ObsF32[i], got.Done(i), want)
		}
	}
	if c := b.Cost(); c.Masked != 2 {
		t.Errorf("cost %+v, want two masked", c)
	}
	got = step(t, v, 0, 0, 0)
	for i := range 3 {
		if got.Masks[i] != 1 || got.Rewards[i] != 1 {
			t.Errorf("afterwards row %d has mask %d, reward %v", i, got.Masks[i], got.Rewards[i])
		}
	}
}

// TestShardKilledInAStep: another one takes over, so that a step either comes out as if nothing had been, or is masked.
func TestShardKilledInAStep(t *testing.T) {
	n := testbed.Start(t, testbed.Options{})
	v, b := vector(t, newPool(t, n, 3), commands{{Argv: []string{"true"}}, {Argv: []string{"sleep", "3"}}}, Config{}, 3)
	check := func(got *env.Buffers) {
		for i := range 3 {
			if got.Rewards[i] != float32(got.Masks[i]) || got.Done(i) {
				t.Errorf("row %d: mask %d, reward %v, done %v", i, got.Masks[i], got.Rewards[i], got.Done(i))
			}
		}
	}
	during(t, v, b, func() { kill(t, members(t, n, "shard-*/self")) })
	check(v.Buffers())
	for round := range 4 { // and where commands are short
		pids := members(t, n, "shard-*/self")
		time.AfterFunc(time.Duration(round)*time.Millisecond, func() {
			for _, pid := range pids {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have gone
			}
		})
		check(step(t, v, 0, 0, 0))
		check(step(t, v, 0, 0, 0))
	}
	t.Logf("cost %+v", b.Cost())
}

// TestStoppedSandboxIsMasked: a sandbox that somebody else stops is DSec's failure too, as far as the learner goes.
func TestStoppedSandboxIsMasked(t *testing.T) {
	v, b := vector(t, newPool(t, testbed.Shared(t), 2), commands{{Argv: []string{"true"}}}, Config{}, 2)
	if _, err := b.seats[0].box.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := step(t, v, 0, 0)
	if got.Masks[0] != 0 || got.Rewards[0] != 0 || got.Done(0) || got.Masks[1] != 1 || got.Rewards[1] != 1 {
		t.Errorf("masks %v, rewards %v", got.Masks, got.Rewards)
	}
	if got = step(t, v, 0, 0); got.Masks[0] != 1 || got.Rewards[0] != 1 {
		t.Errorf("afterwards: masks %v, rewards %v", got.Masks, got.Rewards)
	}
}

// TestNoSandboxAtAll: when no row can begin, that's an error with its reason.
func TestNoSandboxAtAll(t *testing.T) {
	p, err := NewPool(testbed.Shared(t).Client, api.Spec{Image: "no-such-image"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	b, err := New(p, Orders{}, Config{Tries: 2}, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Bind(env.NewBuffers(b.Spec(), 1)); err != nil {
		t.Fatal(err)
	}
	if err := b.Reset(t.Context(), []uint64{1}); !libdsec.IsCode(err, api.CodeNoSuchImage) {
		t.Errorf("%v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func learnConfig(seed uint64, steps int64) train.Config {
	return train.Config{
		Seed: seed, Steps: steps, Envs: 16, Horizon: 8, CheckpointEvery: 1000, Net: train.Net{Hidden: []int{32}, Activation: "tanh"},
		Learn: train.Learn{Rate: 0.01, Minibatch: 64, Epochs: 4, Gamma: 0.5, Anneal: "none"},
	}
}

// learn trains on real sandboxes, and returns the share of orders that were done, update by update.
func learn(t *testing.T, p *Pool, cfg train.Config) []plot.Point {
	t.Helper()
	var points []plot.Point
	_, err := train.Run(t.Context(), cfg, Maker(p, Orders{}, Config{}), train.Hooks{Update: func(u train.Progress) error {
		if u.Update%4 == 0 || u.Update == u.Updates {
			t.Logf("%d steps: %.3f of the orders done, %.0f steps/s", u.Steps, u.Episodes.Score, u.SPS)
		}
		points = append(points, plot.Point{X: float64(u.Steps), Y: u.Episodes.Score})
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return points
}

// late is the mean of the last few updates: each has the same number of episodes.
func late(points []plot.Point) float64 {
	sum, last := 0.0, points[len(points)-4:]
	for _, p := range last {
		sum += p.Y / float64(len(last))
	}
	return sum
}

// TestLearns trains on real sandboxes; with DSEC_LONG until hardly an order is misunderstood.
func TestLearns(t *testing.T) {
	p := newPool(t, testbed.Shared(t), 16)
	cfg, want := learnConfig(1, 768), 0.25
	if os.Getenv("DSEC_LONG") != "" {
		cfg.Steps, want = 4096, 0.95
	}
	if got := late(learn(t, p, cfg)); got < want {
		t.Errorf("at its end %.3f of the orders are done, want %.2f (0.167 by chance)", got, want)
	}
}

// TestCurves draws learning curves of five seeds to the folder DSEC_CURVES, as SVG, PNG and TSV. It does nothing without.
func TestCurves(t *testing.T) {
	folder := os.Getenv("DSEC_CURVES")
	if folder == "" {
		return
	}
	p := newPool(t, testbed.Shared(t), 16)
	var runs []plot.Run
	var ends []float64
	for seed := range uint64(5) {
		points := learn(t, p, learnConfig(seed, 2048))
		runs, ends = append(runs, plot.Run{Curve: "mlp 32", Seed: seed, Points: points}), append(ends, late(points))
	}
	if err := plot.Write(folder, "orders", "orders done", runs); err != nil {
		t.Fatal(err)
	}
	t.Logf("at their ends: %.3f of the orders done", ends)
}
