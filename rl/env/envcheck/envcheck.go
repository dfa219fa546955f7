// Package envcheck says what is wrong with an environment: whether it does what package env says of a Batch or an Env.
//
// It plays random actions, open ones where there are masks, on several copies side by side. What it finds is wrong for
// certain; what it can't find is an environment whose game is another than its author meant.
package envcheck

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/dsec-io/dsec/rl/env"
)

// Config says how long to look.
type Config struct {
	Envs  int    // 5
	Steps int    // 2000
	Seed  uint64 // of seeds and actions
}

func (c Config) filled() Config {
	if c.Envs == 0 {
		c.Envs = 5
	}
	if c.Steps == 0 {
		c.Steps = 2000
	}
	return c
}

// Batch checks what makes batches. Among what it looks at: everything is in its space, flags are 0 or 1 and never both,
// each episode is the same wherever its environment sits and whatever ran before, final observations are whole, and
// no row but the own is written.
func Batch(ctx context.Context, open func(envs int) (env.Batch, error), c Config) (err error) {
	c = c.filled()
	var all []*player
	defer func() {
		for _, p := range all {
			err = errors.Join(err, p.batch.Close())
		}
	}()
	// Two together, whose unused memory holds different rubbish, and one that has its environments one by one.
	for i := range 2 {
		p, err := newPlayer(open, c.Envs, uint8(1+0xa4*i))
		if err != nil {
			return err
		}
		all = append(all, p)
	}
	for range c.Envs {
		p, err := newPlayer(open, 1, 77)
		if err != nil {
			return err
		}
		all = append(all, p)
	}
	if err := sameSpec(all); err != nil {
		return err
	}
	m := &match{c: c, spec: all[0].spec, first: all[0], second: all[1], singles: all[2:], rand: env.NewRand(c.Seed)}
	return m.play(ctx)
}

func sameSpec(all []*player) error {
	for _, p := range all {
		a, b := all[0].spec, p.spec
		if a.Name != b.Name || a.Agents != b.Agents || a.Obs.Len != b.Obs.Len || a.Obs.DType != b.Obs.DType {
			return fmt.Errorf("two of one maker differ: %+v and %+v", a, b)
		}
	}
	return nil
}

// guard is how many environments' rows lie on either side of a player's, for writes that go astray.
const guard = 1

// player is a batch with its rows, in the middle of more.
type player struct {
	spec   env.Spec
	batch  env.Batch
	whole  *env.Buffers
	own    *env.Buffers
	envs   int
	poison uint8
}

func newPlayer(open func(int) (env.Batch, error), envs int, poison uint8) (*player, error) {
	batch, err := open(envs)
	if err != nil {
		return nil, fmt.Errorf("make %d environments: %w", envs, err)
	}
	p := &player{spec: batch.Spec(), batch: batch, envs: envs, poison: poison}
	if err := checkSpec(p.spec); err != nil {
		return nil, errors.Join(err, batch.Close())
	}
	p.whole = env.NewBuffers(p.spec, envs+2*guard)
	fill(p.whole, poison)
	lo, hi := guard*p.spec.Agents, (guard+envs)*p.spec.Agents
	p.own = p.whole.View(lo, hi)
	if err := batch.Bind(env.NewBuffers(p.spec, envs+1)); err == nil {
		return nil, errors.Join(errors.New("bind: buffers of another size are taken"), batch.Close())
	}
	if err := batch.Bind(p.own); err != nil {
		return nil, errors.Join(fmt.Errorf("bind: %w", err), batch.Close())
	}
	return p, nil
}

func checkSpec(s env.Spec) error {
	if s.Name == "" {
		return errors.New("spec: no name")
	}
	want, err := env.NewSpec(s.Name, s.Agents, s.Obs.Space, s.Act.Space)
	if err != nil {
		return fmt.Errorf("spec: %w", err)
	}
	if s.Obs.Len != want.Obs.Len || s.Obs.DType != want.Obs.DType || len(s.Act.Choices) != len(want.Act.Choices) ||
		s.Act.Numbers != want.Act.Numbers {
		return errors.New("spec: the layout isn't that of the space")
	}
	if len(s.Act.Choices) == 0 && s.Act.Numbers == 0 {
		return errors.New("spec: no actions")
	}
	return nil
}

// fill writes rubbish everywhere: for float32 it's NaN of one kind or another.
func fill(b *env.Buffers, v uint8) {
	for _, s := range [][]uint8{b.ObsU8, b.FinalU8, b.Terminals, b.Truncations, b.Masks, b.ActionMasks} {
		for i := range s {
			s[i] = v
		}
	}
	for _, s := range [][]float32{b.ObsF32, b.FinalF32, b.Rewards} {
		for i := range s {
			s[i] = math.Float32frombits(0x7fc00000 | uint32(v))
		}
	}
}

// astray says whether something was written beyond the own rows.
func (p *player) astray() error {
	lo, hi := guard*p.spec.Agents, (guard+p.envs)*p.spec.Agents
	for _, side := range [][2]int{{0, lo}, {hi, p.whole.Rows}} {
		b := p.whole.View(side[0], side[1])
		for _, s := range [][]uint8{b.ObsU8, b.FinalU8, b.Terminals, b.Truncations, b.Masks, b.ActionMasks} {
			for _, v := range s {
				if v != p.poison {
					return errors.New("rows of somebody else were written")
				}
			}
		}
		for _, s := range [][]float32{b.ObsF32, b.FinalF32, b.Rewards} {
			for _, v := range s {
				if math.Float32bits(v) != 0x7fc00000|uint32(p.poison) {
					return errors.New("rows of somebody else were written")
				}
			}
		}
	}
	return nil
}
