package envs

import (
	"context"
	"fmt"
	"slices"

	"github.com/dsec-io/dsec/rl/env"
)

// ForageConfig is of several agents that share an episode. Food earns 1; a trap costs 1, and the agent is out
// (terminal, and masked from then on); the episode ends when no food is left or no agent (terminal), or is truncated
// at MaxSteps. Agents move one after another, and not onto each other. It is an [env.Env]: it doesn't reset itself.
//
// Observation: the field, bytes: 0 free, 1 food, 2 trap, 3 another agent, 4 oneself; all 0 for an agent that is out.
// Choices: stay, down, up, left, right.
type ForageConfig struct {
	Size     int // 7
	Agents   int // 3
	Food     int // 6
	Traps    int // 3
	MaxSteps int // 64
}

const forageFood, forageTrap, forageOther, forageSelf = 1, 2, 3, 4

// Forage is one environment.
type Forage struct {
	c     ForageConfig
	spec  env.Spec
	rand  env.Rand
	grid  []uint8 // food and traps
	at    []int   // where each agent is; -1: out
	eaten []int   // by each
	left  int     // food
	tick  int
	over  bool
}

// NewForage makes one.
func NewForage(c ForageConfig) (*Forage, error) {
	c.Size, c.Agents, c.Food = or(c.Size, 7), or(c.Agents, 3), or(c.Food, 6)
	c.Traps, c.MaxSteps = or(c.Traps, 3), or(c.MaxSteps, 64)
	if err := positive("forage", c.Size, c.Agents, c.Food, c.Traps, c.MaxSteps); err != nil {
		return nil, err
	}
	if c.Agents+c.Food+c.Traps > c.Size*c.Size {
		return nil, fmt.Errorf("forage: a field of %d is too small", c.Size)
	}
	spec, err := env.NewSpec("forage", c.Agents, env.Bytes(forageSelf, c.Size, c.Size), env.Discrete{N: 5})
	return &Forage{
		c: c, spec: spec, over: true,
		grid: make([]uint8, c.Size*c.Size), at: make([]int, c.Agents), eaten: make([]int, c.Agents),
	}, err
}

// Spec implements [env.Env].
func (f *Forage) Spec() env.Spec { return f.spec }

// Close implements [env.Env].
func (f *Forage) Close() error { return nil }

// Info implements [env.Informer]: the share of the food that the agent had.
func (f *Forage) Info(agent int) map[string]float64 {
	return map[string]float64{"score": float64(f.eaten[agent]) / float64(f.c.Food)}
}

// Reset implements [env.Env].
func (f *Forage) Reset(_ context.Context, seed uint64, b *env.Buffers) error {
	f.rand = env.NewRand(seed)
	f.tick, f.left, f.over = 0, f.c.Food, false
	clear(f.grid)
	clear(f.eaten)
	for i := range f.at {
		f.at[i] = -1
	}
	for range f.c.Food {
		f.grid[f.free()] = forageFood
	}
	for range f.c.Traps {
		f.grid[f.free()] = forageTrap
	}
	for i := range f.at {
		f.at[i] = f.free()
	}
	f.observe(b)
	return nil
}

func (f *Forage) free() int {
	for {
		if p := f.rand.IntN(len(f.grid)); f.grid[p] == 0 && !f.taken(p) {
			return p
		}
	}
}

func (f *Forage) taken(p int) bool {
	return slices.Contains(f.at, p)
}

func (f *Forage) observe(b *env.Buffers) {
	area := len(f.grid)
	for i, self := range f.at {
		obs := b.ObsU8[i*area : (i+1)*area]
		copy(obs, f.grid)
		for _, at := range f.at {
			if at >= 0 {
				obs[at] = forageOther
			}
		}
		if self >= 0 {
			obs[self] = forageSelf
		} else if b.Masks[i] == 0 {
			clear(obs)
		}
	}
}

// Step implements [env.Env].
func (f *Forage) Step(_ context.Context, b *env.Buffers) error {
	if f.over {
		return env.ErrEpisodeOver
	}
	f.tick++
	for i := range f.at {
		if f.at[i] < 0 {
			b.Masks[i] = 0
			continue
		}
		f.move(i, int(b.Choices[i]), b)
	}
	for i := range f.at {
		switch {
		case f.at[i] < 0:
		case f.left == 0:
			b.Terminals[i] = 1
		case f.tick >= f.c.MaxSteps:
			b.Truncations[i] = 1
		}
	}
	f.observe(b)
	f.over = b.Over()
	return nil
}

func (f *Forage) move(i, choice int, b *env.Buffers) {
	size := f.c.Size
	r, c := f.at[i]/size, f.at[i]%size
	switch choice {
	case 1:
		r = min(r+1, size-1)
	case 2:
		r = max(r-1, 0)
	case 3:
		c = max(c-1, 0)
	case 4:
		c = min(c+1, size-1)
	}
	to := r*size + c
	if f.taken(to) {
		return
	}
	f.at[i] = to
	switch f.grid[to] {
	case forageFood:
		f.grid[to] = 0
		f.left--
		f.eaten[i]++
		b.Rewards[i] = 1
	case forageTrap:
		f.at[i] = -1
		b.Rewards[i] = -1
		b.Terminals[i] = 1
	}
}
