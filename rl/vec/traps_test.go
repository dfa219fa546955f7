package vec_test

import (
	"context"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/envs"
	"github.com/dsec-io/dsec/rl/vec"
)

// Each test here is of something that vectors of environments elsewhere are known to get wrong.

// script is an environment whose observation is how many steps it has taken, and whose episodes end as told.
type script struct {
	spec  env.Spec
	ends  []string // "terminal", "truncated", or "" for each step
	tick  int
	seeds []uint64
}

func newScript(ends ...string) *script {
	spec, err := env.NewSpec("script", 1, env.Reals(0, 100, 1), env.Discrete{N: 2})
	if err != nil {
		panic(err)
	}
	return &script{spec: spec, ends: ends}
}

func (s *script) Spec() env.Spec { return s.spec }
func (s *script) Close() error   { return nil }

func (s *script) Reset(_ context.Context, seed uint64, b *env.Buffers) error {
	s.seeds = append(s.seeds, seed)
	s.tick, b.ObsF32[0] = 0, 0
	return nil
}

func (s *script) Step(_ context.Context, b *env.Buffers) error {
	end := s.ends[s.tick]
	s.tick++
	b.ObsF32[0] = float32(s.tick)
	b.Rewards[0] = float32(10 * s.tick)
	switch end {
	case "terminal":
		b.Terminals[0] = 1
	case "truncated":
		b.Truncations[0] = 1
	}
	return nil
}

// TestTruncationIsNotTerminal: a truncated row has its own flag, not the terminal's, and the observation whose value
// its target needs; the terminal one is not truncated. (C cores carry one flag only, so that V(final) is taken as 0.)
func TestTruncationIsNotTerminal(t *testing.T) {
	for end, want := range map[string][2]uint8{"terminal": {1, 0}, "truncated": {0, 1}} {
		s := newScript("", "", end)
		v, err := vec.NewSerial(vec.Each(func() (env.Env, error) { return s, nil }), 1)
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		if err := v.Reset(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		b := v.Buffers()
		value := func(obs float32) float64 { return 100 + float64(obs) }
		const gamma = 0.5
		var targets []float64
		for range 3 {
			if err := v.Step(t.Context()); err != nil {
				t.Fatal(err)
			}
			target := float64(b.Rewards[0])
			switch {
			case b.Truncations[0] == 1:
				target += gamma * value(b.FinalF32[0])
			case b.Terminals[0] == 0:
				target += gamma * value(b.ObsF32[0])
			}
			targets = append(targets, target)
		}
		wantLast := 30.0
		if end == "truncated" {
			wantLast += gamma * 103
		}
		if got := [2]uint8{b.Terminals[0], b.Truncations[0]}; got != want || b.FinalF32[0] != 3 || b.ObsF32[0] != 0 {
			t.Errorf("%s: flags %v, final %v, next %v", end, got, b.FinalF32[0], b.ObsF32[0])
		}
		if !slices.Equal(targets, []float64{10 + gamma*101, 20 + gamma*102, wantLast}) {
			t.Errorf("%s: targets %v", end, targets)
		}
	}
}

// TestNoDeadRows: the step after the end is the first of the next episode, not a reset that looks like a transition of
// reward 0.
func TestNoDeadRows(t *testing.T) {
	s := newScript("", "terminal")
	v, err := vec.NewSerial(vec.Each(func() (env.Env, error) { return s, nil }), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if err := v.Reset(t.Context(), 9); err != nil {
		t.Fatal(err)
	}
	var rewards []float32
	for range 6 {
		if err := v.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
		rewards = append(rewards, v.Buffers().Rewards[0])
	}
	if !slices.Equal(rewards, []float32{10, 20, 10, 20, 10, 20}) {
		t.Errorf("rewards %v", rewards)
	}
	if s.seeds[0] != env.SeedOf(9, 0) || s.seeds[1] == s.seeds[0] || s.seeds[2] == s.seeds[1] {
		t.Errorf("seeds %v: each episode has its own, told by the first", s.seeds)
	}
}

// TestSeedsDontOverlap: two learners with neighbouring seeds share no environment.
func TestSeedsDontOverlap(t *testing.T) {
	first := make(map[string]bool)
	for seed := range uint64(3) {
		v, err := vec.NewSerial(mustMaker("maze"), 50)
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		if err := v.Reset(t.Context(), seed); err != nil {
			t.Fatal(err)
		}
		for i := range 50 {
			obs := string(v.Buffers().View(i, i+1).ObsU8)
			if first[obs] {
				t.Errorf("environment %d of seed %d was there before", i, seed)
			}
			first[obs] = true
		}
	}
}

// TestMaskOfAgentsOut: the rows of an agent that's out are masked, have no reward and no flag, until the episode that
// it shares with others is over; the step that ends it still says so.
func TestMaskOfAgentsOut(t *testing.T) {
	c := envs.ForageConfig{Agents: 2, Traps: 20, Food: 2, MaxSteps: 30}
	v, err := vec.NewSerial(vec.Each(func() (env.Env, error) { return envs.NewForage(c) }), 8)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if err := v.Reset(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	b, r := v.Buffers(), env.NewRand(1)
	out := make([]bool, b.Rows)
	masked, last := 0, 0
	for range 2000 {
		b.SampleActions(v.Spec(), &r)
		if err := v.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
		for row := range b.Rows {
			if (b.Masks[row] == 0) != out[row] || out[row] && (b.Rewards[row] != 0 || b.Done(row)) {
				t.Fatalf("row %d: out %v, mask %d, reward %v, done %v", row, out[row], b.Masks[row], b.Rewards[row], b.Done(row))
			}
			masked += 1 - int(b.Masks[row])
			out[row] = out[row] || b.Done(row)
		}
		for e := range 8 {
			if out[2*e] && out[2*e+1] {
				last++
				out[2*e], out[2*e+1] = false, false
			}
		}
	}
	if masked < 100 || last < 100 {
		t.Errorf("%d masked rows, %d episodes: the test has seen too little", masked, last)
	}
}

// cpu returns the processor time that this process has used.
func cpu(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestIdleWorkersSleep: workers with nothing to do, and callers that wait for a slow environment, use no processor,
// even where there are many times more of them than cores.
func TestIdleWorkersSleep(t *testing.T) {
	workers := 16 * runtime.NumCPU()
	slow := make(chan struct{})
	a, err := vec.NewAsync(gates(slow, 0), vec.Config{Envs: workers, Workers: workers, Blocks: workers, Batch: workers})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	p, err := vec.NewParallel(mustMaker("squared"), vec.Config{Envs: 4 * workers, Workers: workers})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	playVector(t, p, 1, 50)
	if err := a.Reset(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	blocks, err := a.Recv(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Send(blocks...); err != nil {
		t.Fatal(err)
	}
	const long = 400 * time.Millisecond
	before := cpu(t)
	timer := time.AfterFunc(long, func() { slow <- struct{}{} })
	defer timer.Stop()
	if _, err := a.Recv(t.Context()); err != nil {
		t.Fatal(err)
	}
	if used := cpu(t) - before; used > long/5 {
		t.Errorf("%v of processor time used while waiting %v", used, long)
	}
}

// TestNoCopies: a vector's rows are the very memory that environments write.
func TestNoCopies(t *testing.T) {
	a, err := vec.NewAsync(mustMaker("squared"), vec.Config{Envs: 5, Workers: 2, Blocks: 3, Batch: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := a.Reset(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	blocks, err := a.Recv(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := a.Spec().Obs.Len
	for _, b := range blocks {
		if &b.Buffers.ObsU8[0] != &a.Buffers().ObsU8[b.Lo*n] || b.Buffers.Rows != b.Hi-b.Lo {
			t.Errorf("block %d isn't rows %d to %d of the buffers", b.Index, b.Lo, b.Hi)
		}
	}
}

// TestStepDoesNotAllocate: not once warm, in any kind of vector.
func TestStepDoesNotAllocate(t *testing.T) {
	p, err := vec.NewParallel(mustMaker("cartpole"), vec.Config{Envs: 64, Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	playVector(t, p, 1, 10)
	ctx := context.Background()
	if n := testing.AllocsPerRun(100, func() { _ = p.Step(ctx) }); n != 0 {
		t.Errorf("parallel: %v allocations a step", n)
	}
	a, err := vec.NewAsync(mustMaker("cartpole"), vec.Config{Envs: 64, Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := a.Reset(ctx, 1); err != nil {
		t.Fatal(err)
	}
	blocks := make([]vec.Block, 0, 8)
	if n := testing.AllocsPerRun(100, func() {
		blocks, _ = a.RecvInto(ctx, blocks[:0])
		_ = a.Send(blocks...)
	}); n != 0 {
		t.Errorf("async: %v allocations a step", n)
	}
}
