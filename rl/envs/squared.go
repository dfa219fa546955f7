package envs

import (
	"context"
	"fmt"

	"github.com/dsec-io/dsec/rl/env"
)

// SquaredConfig is of a square that an agent walks on from its middle, to a target somewhere. Reaching it is +1.
// Leaving the square, or being too late, loses, which is -1: both are rules of the game and end it (terminal).
//
// Observation: the square, bytes, 1 the agent, 2 the target. Choices: stay, down, up, left, right.
type SquaredConfig struct {
	Size     int // 11
	MaxSteps int // the last step that may reach the target; 3*Size + 2
}

const (
	squaredAgent  = 1
	squaredTarget = 2
	squaredOut    = -1
)

type squared struct {
	batch
	size, area, centre, maxSteps int
	next                         []int16 // [area][8]: where a choice leads; squaredOut is out
	cells                        []squaredCell
}

type squaredCell struct {
	rand     env.Rand
	pos, aim int16
	tick     int32
}

// NewSquared makes a batch.
func NewSquared(envs int, c SquaredConfig) (env.Batch, error) {
	size := or(c.Size, 11)
	maxSteps := or(c.MaxSteps, 3*size+2)
	if size < 2 || size > 127 || maxSteps < 1 {
		return nil, fmt.Errorf("squared: size %d, %d steps", size, maxSteps)
	}
	base, err := newBatch("squared", envs, 1, env.Bytes(squaredTarget, size, size), env.Discrete{N: 5})
	if err != nil {
		return nil, err
	}
	s := &squared{
		batch: base, size: size, area: size * size, maxSteps: maxSteps,
		centre: size/2*size + size/2,
		next:   make([]int16, size*size*8),
		cells:  make([]squaredCell, envs),
	}
	for pos := range s.area {
		for a := range 8 {
			s.next[pos*8+a] = s.move(pos, a)
		}
	}
	return s, nil
}

func (s *squared) move(pos, action int) int16 {
	r, c := pos/s.size, pos%s.size
	switch action {
	case 1:
		r++
	case 2:
		r--
	case 3:
		c--
	case 4:
		c++
	}
	if r < 0 || c < 0 || r >= s.size || c >= s.size {
		return squaredOut
	}
	return int16(r*s.size + c)
}

// Reset implements [env.Batch].
func (s *squared) Reset(_ context.Context, seeds []uint64) error {
	if err := s.begin(seeds); err != nil {
		return err
	}
	clear(s.b.ObsU8)
	for i, seed := range seeds {
		s.cells[i].rand = env.NewRand(seed)
		s.start(&s.cells[i], s.b.ObsU8[i*s.area:(i+1)*s.area])
	}
	return nil
}

// start begins an episode on an empty square.
func (s *squared) start(c *squaredCell, obs []uint8) {
	aim := c.rand.IntN(s.area - 1)
	if aim >= s.centre {
		aim++
	}
	c.pos, c.aim, c.tick = int16(s.centre), int16(aim), 0
	obs[s.centre] = squaredAgent
	obs[aim] = squaredTarget
}

// Step implements [env.Batch].
func (s *squared) Step(context.Context) error {
	b, area, last := s.b, s.area, int32(s.maxSteps)
	cells := s.cells
	choices, rewards, terminals := b.Choices[:len(cells)], b.Rewards[:len(cells)], b.Terminals[:len(cells)]
	clear(rewards)
	clear(terminals)
	obs := b.ObsU8
	for i := range cells {
		c := &cells[i]
		c.tick++
		row := obs[:area:area]
		obs = obs[area:]
		to := s.next[int(c.pos)*8+int(choices[i]&7)]
		if to == squaredOut || to == c.aim || c.tick >= last {
			rewards[i], terminals[i] = s.end(c, to, row, b.FinalU8[i*area:(i+1)*area]), 1
			continue
		}
		row[c.pos] = 0
		row[to] = squaredAgent
		c.pos = to
	}
	return nil
}

// end finishes an episode and begins the next one. An agent that is out is nowhere to be seen.
func (s *squared) end(c *squaredCell, to int16, obs, final []uint8) (reward float32) {
	reward = -1
	obs[c.pos] = 0
	copy(final, obs)
	if to != squaredOut {
		final[to] = squaredAgent
	}
	if to == c.aim {
		reward = 1
		s.stats.Score++
	}
	s.stats.Episodes++
	s.stats.Return += float64(reward)
	s.stats.Length += float64(c.tick)
	obs[c.aim] = 0
	s.start(c, obs)
	return reward
}
