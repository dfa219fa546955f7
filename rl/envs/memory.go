package envs

import (
	"context"
	"fmt"

	"github.com/dsec-io/dsec/rl/env"
)

// MemoryConfig is of the smallest task that needs a memory: the first observation of an episode is -1 or 1, the others
// are 0, and the last action has to tell which it was (0 for -1, 1 for 1) to earn 1. Nothing else is ever earned.
type MemoryConfig struct {
	Length int // steps of an episode; 4
}

// memory has one clock for all of its environments: their episodes are of one length, and begin together.
type memory struct {
	batch
	length, tick int
	rands        []env.Rand
	goals        []int32 // the choice that earns 1
}

// NewMemory makes a batch.
func NewMemory(envs int, c MemoryConfig) (env.Batch, error) {
	length := or(c.Length, 4)
	if length < 1 {
		return nil, fmt.Errorf("memory: length %d", length)
	}
	base, err := newBatch("memory", envs, 1, env.Reals(-1, 1, 1), env.Discrete{N: 2})
	if err != nil {
		return nil, err
	}
	return &memory{batch: base, length: length, rands: make([]env.Rand, envs), goals: make([]int32, envs)}, nil
}

// Reset implements [env.Batch].
func (m *memory) Reset(_ context.Context, seeds []uint64) error {
	if err := m.begin(seeds); err != nil {
		return err
	}
	for i, seed := range seeds {
		m.rands[i] = env.NewRand(seed)
	}
	m.start()
	return nil
}

func (m *memory) start() {
	m.tick = 0
	obs, goals := m.b.ObsF32[:len(m.rands)], m.goals[:len(m.rands)]
	for i := range m.rands {
		goal := int32(m.rands[i].Uint64() >> 63)
		goals[i] = goal
		obs[i] = float32(2*goal - 1)
	}
}

// Step implements [env.Batch].
func (m *memory) Step(context.Context) error {
	b := m.b
	m.tick++
	if m.tick < m.length {
		clear(b.Rewards)
		clear(b.Terminals)
		clear(b.ObsF32)
		return nil
	}
	// The final observation tells nothing.
	clear(b.FinalF32)
	right := 0
	goals, choices, rewards, terminals := m.goals, b.Choices[:len(m.goals)], b.Rewards[:len(m.goals)], b.Terminals[:len(m.goals)]
	for i, goal := range goals {
		hit := ^(goal ^ choices[i]) & 1 // without a branch that is wrong half the time
		right += int(hit)
		rewards[i] = float32(hit)
		terminals[i] = 1
	}
	m.stats.Add(env.Stats{
		Episodes: int64(m.envs), Return: float64(right), Score: float64(right),
		Length: float64(m.envs) * float64(m.length),
	})
	m.start()
	return nil
}
