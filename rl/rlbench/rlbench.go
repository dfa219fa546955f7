// Package rlbench measures how fast environments step here.
//
// Every figure is of work that was checked: after each sample the state of all environments has to be the one that
// other vectors, cut into other blocks, come to by the same actions. What is measured on one core counts that thread's
// processor time, if Config.Clock tells it, so that a busy machine doesn't make it slower than it is; what hands work
// from one worker to another counts the time on the wall. A figure is the median of its samples.
package rlbench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/envs"
	"github.com/dsec-io/dsec/rl/vec"
)

// Result is one figure.
type Result struct {
	Name    string  `json:"name"`
	Unit    string  `json:"unit"`
	Value   float64 `json:"value"` // the median
	Best    float64 `json:"best"`
	Wall    float64 `json:"wall"`    // the median of the same by the time on the wall
	N       int64   `json:"n"`       // environment steps measured, together
	Samples int     `json:"samples"` // of which the median is
	Target  float64 `json:"target,omitempty"`
	// Peer is the median of what Config.Peers has under this name, and PeerBest the best; 0 where it has nothing.
	Peer     float64 `json:"peer,omitempty"`
	PeerBest float64 `json:"peer_best,omitempty"`
}

// Peer is another implementation of an environment, of as many rows as ours, which are Config.Rows.
type Peer interface {
	// Step steps all rows so many times. It returns the processor time that took, and a number for the state they are in:
	// a peer whose state stays the same hasn't done the work.
	Step(ctx context.Context, steps int) (took time.Duration, state float64, err error)
}

// Config says what to measure, and for how long.
type Config struct {
	Rows    int           // 1024
	Workers int           // 2, of those that share the work
	Samples int           // 7
	Sample  time.Duration // 100 ms, about
	Match   string        // measure only what has this in its name
	// Clock returns the processor time of the thread that calls it (CLOCK_THREAD_CPUTIME_ID on Linux). Where it's nil,
	// the time on the wall is all there is.
	Clock func() time.Duration
	// Peers take turns with ours, sample by sample. Their names are results' names.
	Peers map[string]Peer
}

// Validate reports every fault.
func (c Config) Validate() error {
	if c.Rows < 0 || c.Workers < 0 || c.Samples < 0 || c.Sample < 0 {
		return fmt.Errorf("%d rows, %d workers, %d samples of %v", c.Rows, c.Workers, c.Samples, c.Sample)
	}
	return nil
}

// stand is one thing to measure: a vector, which run steps a number of times.
type stand struct {
	name   string
	target float64
	wall   bool // it's about the hand-off
	maker  vec.Maker
	envs   int
	open   func(s *stand) (runner, error)
	clock  func() time.Duration
}

// runner steps a vector some times with prepared actions, and says what state its environments are in.
type runner interface {
	run(ctx context.Context, seed uint64, steps int) (took elapsed, err error)
	digest() uint64
	close() error
}

// Run measures everything, and stops at what's wrong.
func Run(ctx context.Context, c Config) ([]Result, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c.Rows, c.Workers = cmp.Or(c.Rows, 1024), cmp.Or(c.Workers, 2)
	c.Samples, c.Sample = cmp.Or(c.Samples, 7), cmp.Or(c.Sample, 100*time.Millisecond)
	all, err := stands(c)
	if err != nil {
		return nil, err
	}
	var results []Result
	for i := range all {
		s := &all[i]
		if !strings.Contains(s.name, c.Match) {
			continue
		}
		s.clock = c.Clock
		r, err := s.measure(ctx, c)
		if err != nil {
			return results, fmt.Errorf("%s: %w", s.name, err)
		}
		results = append(results, r)
	}
	return results, nil
}

// target returns what an environment is to reach: 1.5 times what was measured of the C original on a machine like the
// one this was written on, with 1,024 rows; 0 where there's none.
func target(name string) float64 {
	switch name {
	case "squared":
		return 1.5 * 61e6
	case "memory":
		return 1.5 * 93e6
	case "cartpole":
		return 1.5 * 34e6
	case "pong":
		return 1.5 * 27e6
	case "2048":
		return 1.5 * 16e6
	case "breakout":
		return 1.5 * 3.6e6
	case "snake-256":
		return 1.5 * 4.56e6
	}
	return 0
}

func stands(c Config) ([]stand, error) {
	var all []stand
	for _, name := range envs.Names() {
		maker, err := envs.Maker(name)
		if err != nil {
			return nil, err
		}
		all = append(all, stand{name: "step/" + name, target: target(name), maker: maker, envs: c.Rows, open: openSerial})
	}
	crowd := envs.SnakeConfig{Width: 640, Height: 360, Snakes: 256, Food: 4096, MaxLength: 128}
	snakes := func(n int) (env.Batch, error) { return envs.NewSnake(n, crowd) }
	squared, err := envs.Maker("squared")
	if err != nil {
		return nil, err
	}
	parallel := func(blocks int) func(s *stand) (runner, error) {
		return func(s *stand) (runner, error) {
			v, err := vec.NewParallel(s.maker, vec.Config{Envs: s.envs, Workers: c.Workers, Blocks: blocks})
			return newSteps(v, err)
		}
	}
	async := func(s *stand) (runner, error) {
		config := vec.Config{Envs: s.envs, Workers: c.Workers, Blocks: s.envs, Batch: s.envs / 2}
		return newTurns(vec.NewAsync(s.maker, config))
	}
	return append(all,
		stand{name: "step/snake-256", target: target("snake-256"), maker: snakes, envs: c.Rows, open: openSerial},
		stand{name: "step/squared-alone", maker: squared, envs: 1, open: openSerial},
		stand{name: "handoff/parallel-64x1", target: 3e6, wall: true, maker: squared, envs: 64, open: parallel(64)},
		stand{name: "handoff/async-64x1", target: 3e6, wall: true, maker: squared, envs: 64, open: async},
		stand{name: "handoff/parallel-blocks", wall: true, maker: squared, envs: c.Rows, open: parallel(0)},
	), nil
}

func openSerial(s *stand) (runner, error) {
	one, err := s.maker(1)
	if err != nil {
		return nil, err
	}
	agents := one.Spec().Agents
	if err := one.Close(); err != nil {
		return nil, err
	}
	v, err := vec.NewSerial(s.maker, max(s.envs/agents, 1))
	if err != nil {
		return nil, err
	}
	return &steps{v: v, actions: prepare(v.Spec(), v.Buffers().Rows), clock: s.clock}, nil
}

// measure takes the samples. Each begins with other episodes, and is played again on a vector of three blocks.
func (s *stand) measure(ctx context.Context, c Config) (result Result, err error) {
	r, err := s.open(s)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	check, rows, err := s.checker()
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, check.close()) }()
	steps, err := calibrate(ctx, r, c.Sample)
	if err != nil {
		return Result{}, err
	}
	result = Result{Name: s.name, Unit: "steps/s", Samples: c.Samples, Target: s.target}
	var wall, own, others []float64
	peer, before := c.Peers[s.name], math.NaN()
	for sample := range c.Samples {
		took, err := r.run(ctx, uint64(sample), steps)
		if err != nil {
			return result, err
		}
		if _, err := check.run(ctx, uint64(sample), steps); err != nil {
			return result, err
		}
		if got, want := r.digest(), check.digest(); got != want {
			return result, fmt.Errorf("after %d steps the environments are in state %x, want %x", steps, got, want)
		}
		n := float64(steps) * float64(rows)
		result.N += int64(steps) * int64(rows)
		wall = append(wall, n/took.wall.Seconds())
		own = append(own, n/took.thread.Seconds())
		if peer != nil {
			took, state, err := peer.Step(ctx, steps)
			if err != nil {
				return result, err
			}
			if state == before {
				return result, fmt.Errorf("%d steps of the peer change nothing", steps)
			}
			before, others = state, append(others, n/max(took, 1).Seconds())
		}
	}
	if len(others) > 0 {
		result.Peer, result.PeerBest = median(others), slices.Max(others)
	}
	result.Wall = median(wall)
	if s.wall {
		own = wall
	}
	result.Value, result.Best = median(own), slices.Max(own)
	return result, nil
}

// checker makes the vector that plays everything again.
func (s *stand) checker() (r *steps, rows int, err error) {
	one, err := openSerial(s)
	if err != nil {
		return nil, 0, err
	}
	n := one.(*steps).v.Buffers().Rows / one.(*steps).v.Spec().Agents
	if err := one.close(); err != nil {
		return nil, 0, err
	}
	v, err := vec.NewParallel(s.maker, vec.Config{Envs: n, Workers: 1, Blocks: 3})
	if err != nil {
		return nil, 0, err
	}
	made, err := newSteps(v, nil)
	if err != nil {
		return nil, 0, err
	}
	return made.(*steps), v.Buffers().Rows, nil
}

// calibrate finds how many steps take about as long as a sample is to be.
func calibrate(ctx context.Context, r runner, long time.Duration) (int, error) {
	for n := 16; ; n *= 2 {
		took, err := r.run(ctx, 0, n)
		if err != nil {
			return 0, err
		}
		if took.wall > long/8 {
			return max(1, int(float64(n)*long.Seconds()/took.wall.Seconds())), nil
		}
	}
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// digest sums up what the last step said.
func digest(b *env.Buffers) uint64 {
	h := fnv.New64a()
	h.Write(b.ObsU8)
	h.Write(b.Terminals)
	h.Write(b.Truncations)
	var word [4]byte
	for _, s := range [][]float32{b.ObsF32, b.Rewards} {
		for _, v := range s {
			bits := math.Float32bits(v)
			word = [4]byte{byte(bits), byte(bits >> 8), byte(bits >> 16), byte(bits >> 24)}
			h.Write(word[:])
		}
	}
	return h.Sum64()
}
