package envs

import (
	"context"
	"fmt"

	"github.com/dsec-io/dsec/rl/env"
)

// MazeConfig is of a maze, another one each episode, with one way between any two places. Getting to the goal earns 1
// and is terminal; every step costs 0.01; MaxSteps is a truncation.
//
// Observation: the whole maze, bytes: 0 free, 1 wall, 2 the agent, 3 the goal. Choices: down, up, left, right; those
// into a wall are masked, and if taken all the same they lead nowhere.
type MazeConfig struct {
	Size     int // with the outer walls; odd; 11
	MaxSteps int // Size * Size
}

const (
	mazeWall, mazeAgent, mazeGoal = 1, 2, 3
	mazeStepCost                  = -0.01
)

type maze struct {
	batch
	size, area int
	maxSteps   int32
	ways       [4]int // what a choice adds to a position
	runs       []run
	stack      []int // of digging
}

type run struct {
	rand      env.Rand
	pos, goal int32
	tick      int32
}

// NewMaze makes a batch.
func NewMaze(envs int, c MazeConfig) (env.Batch, error) {
	size := or(c.Size, 11)
	maxSteps := or(c.MaxSteps, size*size)
	if size < 5 || size%2 == 0 || size > 255 || maxSteps < 1 {
		return nil, fmt.Errorf("maze: size %d, %d steps", size, maxSteps)
	}
	base, err := newBatch("maze", envs, 1, env.Bytes(mazeGoal, size, size), env.Discrete{N: 4})
	if err != nil {
		return nil, err
	}
	base.spec.Masked = true
	return &maze{
		batch: base, size: size, area: size * size, maxSteps: int32(maxSteps),
		ways: [4]int{size, -size, -1, 1}, runs: make([]run, envs),
	}, nil
}

// Reset implements [env.Batch].
func (m *maze) Reset(_ context.Context, seeds []uint64) error {
	if err := m.begin(seeds); err != nil {
		return err
	}
	for i, seed := range seeds {
		m.runs[i].rand = env.NewRand(seed)
		m.start(i)
	}
	return nil
}

func (m *maze) start(i int) {
	r := &m.runs[i]
	obs := m.b.ObsU8[i*m.area : (i+1)*m.area]
	m.dig(&r.rand, obs)
	cells := m.size / 2
	pick := 1 + r.rand.IntN(cells*cells-1) // 0 is where the agent starts
	r.pos = int32(m.size + 1)
	r.goal = int32((2*(pick/cells)+1)*m.size + 2*(pick%cells) + 1)
	r.tick = 0
	obs[r.pos], obs[r.goal] = mazeAgent, mazeGoal
	m.mask(i, int(r.pos), obs)
}

// dig makes a maze by walking at random from place to place where nobody has been, and back when there's none left.
func (m *maze) dig(rand *env.Rand, obs []uint8) {
	for j := range obs {
		obs[j] = mazeWall
	}
	at := m.size + 1
	obs[at] = 0
	m.stack = append(m.stack[:0], at)
	for len(m.stack) > 0 {
		at = m.stack[len(m.stack)-1]
		var fresh [4]int
		n := 0
		for _, way := range m.ways {
			if m.inside(at, 2*way) && obs[at+2*way] == mazeWall {
				fresh[n] = way
				n++
			}
		}
		if n == 0 {
			m.stack = m.stack[:len(m.stack)-1]
			continue
		}
		way := fresh[rand.IntN(n)]
		obs[at+way], obs[at+2*way] = 0, 0
		m.stack = append(m.stack, at+2*way)
	}
}

// inside says whether a place two steps off is in the maze. Walls at the edges keep single steps in.
func (m *maze) inside(at, by int) bool {
	to := at + by
	return to > 0 && to < m.area && (by%m.size == 0 || to/m.size == at/m.size)
}

func (m *maze) mask(i, pos int, obs []uint8) {
	mask := (*[4]uint8)(m.b.ActionMasks[i*4:])
	for a, way := range m.ways {
		mask[a] = 1
		if obs[pos+way] == mazeWall {
			mask[a] = 0
		}
	}
}

// Step implements [env.Batch].
func (m *maze) Step(context.Context) error {
	b := m.b
	clear(b.Terminals)
	clear(b.Truncations)
	for i := range m.runs {
		r := &m.runs[i]
		obs := b.ObsU8[i*m.area : (i+1)*m.area]
		r.tick++
		if to := r.pos + int32(m.ways[b.Choices[i]&3]); obs[to] != mazeWall {
			obs[r.pos] = 0
			obs[to] = mazeAgent
			r.pos = to
		}
		b.Rewards[i] = mazeStepCost
		switch {
		case r.pos == r.goal:
			b.Rewards[i] = 1
			b.Terminals[i] = 1
			m.end(i)
		case r.tick >= m.maxSteps:
			b.Truncations[i] = 1
			m.end(i)
		default:
			m.mask(i, int(r.pos), obs)
		}
	}
	return nil
}

func (m *maze) end(i int) {
	r := &m.runs[i]
	m.b.KeepFinal(i)
	m.stats.Episodes++
	m.stats.Length += float64(r.tick)
	m.stats.Return += float64(r.tick) * mazeStepCost
	if r.pos == r.goal {
		m.stats.Return += 1 - mazeStepCost
		m.stats.Score++
	}
	m.start(i)
}
