package vec

import (
	"context"
	"errors"
	"fmt"

	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/render"
)

// Each makes batches of environments that are made one by one and don't reset themselves.
func Each(open func() (env.Env, error)) Maker {
	return func(envs int) (env.Batch, error) {
		b := &each{seats: make([]seat, 0, envs)}
		for i := range envs {
			e, err := open()
			if err != nil {
				return nil, errors.Join(fmt.Errorf("environment %d: %w", i, err), b.Close())
			}
			b.seats = append(b.seats, seat{env: e})
		}
		b.spec = b.seats[0].env.Spec()
		return b, nil
	}
}

// seat is one environment with its rows.
type seat struct {
	env     env.Env
	buffers *env.Buffers
	returns []float64 // of each agent's episode up to now
	lengths []int
	seed    uint64
	episode uint64
}

// each steps its environments one after another, and resets those whose episode is over.
type each struct {
	spec  env.Spec
	seats []seat
	stats env.Stats
}

// Spec implements [env.Batch].
func (b *each) Spec() env.Spec { return b.spec }

// Bind implements [env.Batch].
func (b *each) Bind(buffers *env.Buffers) error {
	if err := buffers.Check(b.spec); err != nil {
		return err
	}
	agents := b.spec.Agents
	if buffers.Rows != len(b.seats)*agents {
		return fmt.Errorf("%d rows for %d environments of %d agents", buffers.Rows, len(b.seats), agents)
	}
	for i := range b.seats {
		s := &b.seats[i]
		s.buffers = buffers.View(i*agents, (i+1)*agents)
		s.returns, s.lengths = make([]float64, agents), make([]int, agents)
	}
	return nil
}

// Reset implements [env.Batch].
func (b *each) Reset(ctx context.Context, seeds []uint64) error {
	for i := range b.seats {
		s := &b.seats[i]
		s.seed, s.episode = seeds[i], 0
		s.buffers.BeginStep()
		if err := s.reset(ctx); err != nil {
			return fmt.Errorf("environment %d: %w", i, err)
		}
	}
	return nil
}

// reset starts the next episode. Its seed is the first one's for the first, so that one environment alone does what
// its Env does, and is derived from it for the others.
func (s *seat) reset(ctx context.Context) error {
	seed := s.seed
	if s.episode > 0 {
		seed = env.SeedOf(s.seed, s.episode)
	}
	s.episode++
	clear(s.returns)
	clear(s.lengths)
	if err := s.env.Reset(ctx, seed, s.buffers); err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	return nil
}

// Step implements [env.Batch].
func (b *each) Step(ctx context.Context) error {
	for i := range b.seats {
		s := &b.seats[i]
		s.buffers.BeginStep()
		if err := s.env.Step(ctx, s.buffers); err != nil {
			return fmt.Errorf("environment %d: step: %w", i, err)
		}
		s.count(&b.stats)
		if !s.buffers.Over() {
			continue
		}
		if err := s.reset(ctx); err != nil {
			return fmt.Errorf("environment %d: %w", i, err)
		}
	}
	return nil
}

// count keeps the returns, and the final observation of the agents that are done now.
func (s *seat) count(stats *env.Stats) {
	for row, mask := range s.buffers.Masks {
		if mask == 0 {
			continue
		}
		s.returns[row] += float64(s.buffers.Rewards[row])
		s.lengths[row]++
		if !s.buffers.Done(row) {
			continue
		}
		s.buffers.KeepFinal(row)
		score := s.returns[row]
		if informer, ok := s.env.(env.Informer); ok {
			if v, ok := informer.Info(row)["score"]; ok {
				score = v
			}
		}
		stats.Add(env.Stats{Episodes: 1, Return: s.returns[row], Length: float64(s.lengths[row]), Score: score})
	}
}

// TakeStats implements [env.StatsTaker].
func (b *each) TakeStats() env.Stats {
	taken := b.stats
	b.stats = env.Stats{}
	return taken
}

// Paint implements [render.Painter], where the environments do.
func (b *each) Paint(i int) *render.Canvas {
	if i < 0 || i >= len(b.seats) {
		return nil
	}
	if painter, ok := b.seats[i].env.(render.Painter); ok {
		return painter.Paint(0)
	}
	return nil
}

// Close implements [env.Batch].
func (b *each) Close() error {
	var errs []error
	for i := range b.seats {
		errs = append(errs, b.seats[i].env.Close())
	}
	return errors.Join(errs...)
}
