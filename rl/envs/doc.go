// Package envs has environments to learn on and to measure with. Each steps its whole batch in one call; most keep
// part of their state in the observations themselves, so that a step touches little memory.
//
// squared, cartpole, memory, pong, breakout and 2048 have the rules (not the code) of the environments of these names
// that are in use elsewhere, with what is wrong in some of those put right: see each Config. maze, snake (many agents,
// each with episodes of its own) and forage (many agents that share one, and go out of it one by one) have their own.
package envs

import (
	"fmt"
	"slices"

	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/vec"
)

// Names returns the names that Maker knows, sorted.
func Names() []string {
	return []string{"2048", "breakout", "cartpole", "forage", "maze", "memory", "pong", "snake", "squared"}
}

// Maker returns what makes batches of an environment with its usual settings.
func Maker(name string) (vec.Maker, error) {
	switch name {
	case "2048":
		return func(n int) (env.Batch, error) { return New2048(n, Config2048{}) }, nil
	case "breakout":
		return func(n int) (env.Batch, error) { return NewBreakout(n, BreakoutConfig{}) }, nil
	case "cartpole":
		return func(n int) (env.Batch, error) { return NewCartpole(n, CartpoleConfig{}) }, nil
	case "forage":
		return vec.Each(func() (env.Env, error) { return NewForage(ForageConfig{}) }), nil
	case "maze":
		return func(n int) (env.Batch, error) { return NewMaze(n, MazeConfig{}) }, nil
	case "memory":
		return func(n int) (env.Batch, error) { return NewMemory(n, MemoryConfig{}) }, nil
	case "pong":
		return func(n int) (env.Batch, error) { return NewPong(n, PongConfig{}) }, nil
	case "snake":
		return func(n int) (env.Batch, error) { return NewSnake(n, SnakeConfig{}) }, nil
	case "squared":
		return func(n int) (env.Batch, error) { return NewSquared(n, SquaredConfig{}) }, nil
	}
	return nil, fmt.Errorf("no environment %q; there are %v", name, Names())
}

// batch is what all native batches have.
type batch struct {
	spec  env.Spec
	envs  int
	b     *env.Buffers
	stats env.Stats
}

func newBatch(name string, envs, agents int, obs, act env.Space) (batch, error) {
	if envs < 1 {
		return batch{}, fmt.Errorf("%s: %d environments", name, envs)
	}
	spec, err := env.NewSpec(name, agents, obs, act)
	return batch{spec: spec, envs: envs}, err
}

// Spec implements [env.Batch].
func (b *batch) Spec() env.Spec { return b.spec }

// Bind implements [env.Batch].
func (b *batch) Bind(buffers *env.Buffers) error {
	if err := buffers.Check(b.spec); err != nil {
		return err
	}
	if buffers.Rows != b.envs*b.spec.Agents {
		return fmt.Errorf("%s: %d rows for %d environments of %d agents", b.spec.Name, buffers.Rows, b.envs, b.spec.Agents)
	}
	b.b = buffers
	return nil
}

// begin checks the seeds of a Reset, and clears what a Reset clears.
func (b *batch) begin(seeds []uint64) error {
	if b.b == nil || len(seeds) != b.envs {
		return fmt.Errorf("%s: %d seeds for %d environments, or no buffers bound", b.spec.Name, len(seeds), b.envs)
	}
	b.b.BeginStep()
	return nil
}

// TakeStats implements [env.StatsTaker].
func (b *batch) TakeStats() env.Stats {
	taken := b.stats
	b.stats = env.Stats{}
	return taken
}

// Close implements [env.Batch].
func (b *batch) Close() error { return nil }

// or returns v, or what it is where it's not set.
func or[T comparable](v, usual T) T {
	var zero T
	if v == zero {
		return usual
	}
	return v
}

// positive says which of the named numbers isn't.
func positive(name string, numbers ...int) error {
	if i := slices.IndexFunc(numbers, func(n int) bool { return n < 1 }); i >= 0 {
		return fmt.Errorf("%s: number %d of its config is %d", name, i+1, numbers[i])
	}
	return nil
}
