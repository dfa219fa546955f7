package envcheck

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/dsec-io/dsec/rl/env"
)

// match plays copies of the same environments side by side.
type match struct {
	c             Config
	spec          env.Spec
	first, second *player
	singles       []*player
	rand          env.Rand
}

func (m *match) players() []*player { return append([]*player{m.first, m.second}, m.singles...) }

func (m *match) play(ctx context.Context) error {
	// The second round starts in the middle of episodes, and has to be the same as the first: seeds say all.
	var traces [2][]uint64
	for round := range traces {
		actions := env.NewRand(m.c.Seed + 1)
		if err := m.reset(ctx); err != nil {
			return fmt.Errorf("reset: %w", err)
		}
		for step := range m.c.Steps / len(traces) {
			if err := m.step(ctx, &actions); err != nil {
				return fmt.Errorf("step %d after reset %d: %w", step+1, round+1, err)
			}
			traces[round] = append(traces[round], digest(m.first.own))
		}
	}
	if !slices.Equal(traces[0], traces[1]) {
		return errors.New("the same seeds and actions gave something else after another reset")
	}
	return m.illegal(ctx)
}

func (m *match) seeds() []uint64 {
	seeds := make([]uint64, m.c.Envs)
	for i := range seeds {
		seeds[i] = env.SeedOf(m.c.Seed, uint64(i))
	}
	return seeds
}

func (m *match) reset(ctx context.Context) error {
	seeds := m.seeds()
	for _, p := range []*player{m.first, m.second} {
		if err := p.batch.Reset(ctx, seeds); err != nil {
			return err
		}
	}
	for i, p := range m.singles {
		if err := p.batch.Reset(ctx, seeds[i:i+1]); err != nil {
			return err
		}
	}
	for _, p := range m.players() {
		for row := range p.own.Rows {
			if p.own.Rewards[row] != 0 || p.own.Terminals[row] != 0 || p.own.Truncations[row] != 0 || p.own.Masks[row] != 1 {
				return fmt.Errorf("row %d: reward %v, terminal %d, truncation %d, mask %d, want 0, 0, 0, 1", row,
					p.own.Rewards[row], p.own.Terminals[row], p.own.Truncations[row], p.own.Masks[row])
			}
		}
	}
	return m.look()
}

func (m *match) step(ctx context.Context, actions *env.Rand) error {
	m.first.own.SampleActions(m.spec, actions)
	copy(m.second.own.Choices, m.first.own.Choices)
	copy(m.second.own.Numbers, m.first.own.Numbers)
	agents := m.spec.Agents
	for i, p := range m.singles {
		v := m.first.own.View(i*agents, (i+1)*agents)
		copy(p.own.Choices, v.Choices)
		copy(p.own.Numbers, v.Numbers)
	}
	for _, p := range m.players() {
		// Final rows have to be written whole. The rest is the batch's to keep: what never changes, it needn't write.
		fill(&env.Buffers{FinalU8: p.own.FinalU8, FinalF32: p.own.FinalF32}, p.poison)
		if err := p.batch.Step(ctx); err != nil {
			return err
		}
	}
	return m.look()
}

// look checks the values, and that all copies agree.
func (m *match) look() error {
	for _, p := range m.players() {
		if err := p.astray(); err != nil {
			return err
		}
	}
	if err := m.values(); err != nil {
		return err
	}
	if err := differ(m.spec, m.first.own, m.second.own); err != nil {
		return fmt.Errorf("two copies differ, or something is left unwritten: %w", err)
	}
	agents := m.spec.Agents
	for i, p := range m.singles {
		if err := differ(m.spec, m.first.own.View(i*agents, (i+1)*agents), p.own); err != nil {
			return fmt.Errorf("environment %d alone and among others differ: %w", i, err)
		}
	}
	return nil
}

// values checks that everything is in its space.
func (m *match) values() error {
	b := m.first.own
	for row := range b.Rows {
		if err := flags(b, row); err != nil {
			return fmt.Errorf("row %d: %w", row, err)
		}
		if err := inSpace(m.spec, b.ObsU8, b.ObsF32, row); err != nil {
			return fmt.Errorf("row %d: observation: %w", row, err)
		}
		if b.Done(row) {
			if err := inSpace(m.spec, b.FinalU8, b.FinalF32, row); err != nil {
				return fmt.Errorf("row %d: final observation: %w", row, err)
			}
		}
		if err := openChoices(m.spec, b, row); err != nil {
			return fmt.Errorf("row %d: %w", row, err)
		}
	}
	return nil
}

func flags(b *env.Buffers, row int) error {
	t, u, mask, reward := b.Terminals[row], b.Truncations[row], b.Masks[row], float64(b.Rewards[row])
	switch {
	case t > 1 || u > 1 || mask > 1:
		return fmt.Errorf("terminal %d, truncation %d, mask %d: flags are 0 or 1", t, u, mask)
	case t&u != 0:
		return errors.New("terminal and truncated at once: what has ended isn't cut off")
	case mask == 0 && t|u != 0:
		return errors.New("done and masked")
	case mask == 0 && reward != 0:
		return fmt.Errorf("masked, with a reward of %v", reward)
	case math.IsNaN(reward) || math.IsInf(reward, 0):
		return fmt.Errorf("reward %v, or none written", reward)
	}
	return nil
}

// openChoices wants at least one open choice of each.
func openChoices(spec env.Spec, b *env.Buffers, row int) error {
	if b.ActionMasks == nil {
		return nil
	}
	n := spec.Act.MaskLen()
	mask := b.ActionMasks[row*n : (row+1)*n]
	for i, choices := range spec.Act.Choices {
		count := 0
		for _, v := range mask[:choices] {
			if v > 1 {
				return fmt.Errorf("action mask %d", v)
			}
			count += int(v)
		}
		if count == 0 {
			return fmt.Errorf("no choice %d is open", i)
		}
		mask = mask[choices:]
	}
	return nil
}

func inSpace(spec env.Spec, u8 []uint8, f32 []float32, row int) error {
	n := spec.Obs.Len
	if spec.Obs.DType == env.Uint8 {
		u8 = u8[row*n : (row+1)*n]
	} else {
		f32 = f32[row*n : (row+1)*n]
		for i, v := range f32 {
			if math.IsNaN(float64(v)) {
				return fmt.Errorf("element %d is no number, or wasn't written", i)
			}
		}
	}
	return spec.Obs.Contains(u8, f32)
}

// differ says where two don't have the same.
func differ(spec env.Spec, a, b *env.Buffers) error {
	for row := range a.Rows {
		if a.Rewards[row] != b.Rewards[row] || a.Terminals[row] != b.Terminals[row] ||
			a.Truncations[row] != b.Truncations[row] || a.Masks[row] != b.Masks[row] {
			return fmt.Errorf("row %d: reward %v and %v, terminal %d and %d, truncation %d and %d, mask %d and %d", row,
				a.Rewards[row], b.Rewards[row], a.Terminals[row], b.Terminals[row],
				a.Truncations[row], b.Truncations[row], a.Masks[row], b.Masks[row])
		}
		same := func(x, y []uint8, f, g []float32) bool {
			lo, hi := row*spec.Obs.Len, (row+1)*spec.Obs.Len
			if spec.Obs.DType == env.Uint8 {
				return slices.Equal(x[lo:hi], y[lo:hi])
			}
			return slices.Equal(f[lo:hi], g[lo:hi])
		}
		if !same(a.ObsU8, b.ObsU8, a.ObsF32, b.ObsF32) {
			return fmt.Errorf("row %d: observations", row)
		}
		if a.Done(row) && !same(a.FinalU8, b.FinalU8, a.FinalF32, b.FinalF32) {
			return fmt.Errorf("row %d: final observations", row)
		}
	}
	if !slices.Equal(a.ActionMasks, b.ActionMasks) {
		return errors.New("action masks")
	}
	return nil
}

// digest sums up what a step said.
func digest(b *env.Buffers) uint64 {
	sum := uint64(14695981039346656037)
	add := func(v uint32) { sum = (sum ^ uint64(v)) * 1099511628211 }
	for row := range b.Rows {
		add(math.Float32bits(b.Rewards[row]))
		add(uint32(b.Terminals[row]) | uint32(b.Truncations[row])<<1 | uint32(b.Masks[row])<<2)
	}
	for _, v := range b.ObsU8 {
		add(uint32(v))
	}
	for _, v := range b.ObsF32 {
		add(math.Float32bits(v))
	}
	return sum
}

// illegal takes actions that are in no space, which have to do no harm to memory: an error is fine, and so is any
// reward.
func (m *match) illegal(ctx context.Context) error {
	p := m.first
	for _, choice := range []int32{-1, math.MaxInt32, math.MinInt32} {
		for i := range p.own.Choices {
			p.own.Choices[i] = choice
		}
		for i := range p.own.Numbers {
			p.own.Numbers[i] = float32(math.NaN())
		}
		if err := p.batch.Step(ctx); err != nil {
			return nil
		}
		if err := p.astray(); err != nil {
			return fmt.Errorf("after choices of %d: %w", choice, err)
		}
		if err := m.values(); err != nil {
			return fmt.Errorf("after choices of %d: %w", choice, err)
		}
	}
	return nil
}
