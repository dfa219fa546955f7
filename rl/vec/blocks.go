package vec

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/render"
)

// blocks are the batches that a vector is made of, bound to its buffers.
type blocks struct {
	spec    env.Spec
	envs    int
	buffers *env.Buffers
	all     []part
}

// part is one batch: environments first to first+envs.
type part struct {
	batch       env.Batch
	first, envs int
	seeds       []uint64
}

// open makes the batches: count of them, of sizes that differ by one at most.
func open(maker Maker, envs, count int) (*blocks, error) {
	b := &blocks{envs: envs, all: make([]part, 0, count)}
	for i := range count {
		first, next := i*envs/count, (i+1)*envs/count
		batch, err := maker(next - first)
		if err != nil {
			return nil, errors.Join(err, b.close())
		}
		b.all = append(b.all, part{batch: batch, first: first, envs: next - first, seeds: make([]uint64, next-first)})
		if i == 0 {
			b.spec = batch.Spec()
			b.buffers = env.NewBuffers(b.spec, envs)
		}
		lo, hi := b.rows(i)
		if err := batch.Bind(b.buffers.View(lo, hi)); err != nil {
			return nil, errors.Join(fmt.Errorf("bind environments %d to %d: %w", first, next, err), b.close())
		}
	}
	return b, nil
}

func (b *blocks) rows(i int) (lo, hi int) {
	p := &b.all[i]
	return p.first * b.spec.Agents, (p.first + p.envs) * b.spec.Agents
}

func (b *blocks) seed(seed uint64) {
	for i := range b.all {
		p := &b.all[i]
		for j := range p.seeds {
			p.seeds[j] = env.SeedOf(seed, uint64(p.first+j))
		}
	}
}

// run does a step, or a reset, of one block, and makes an error of a panic.
func (p *part) run(ctx context.Context, reset bool) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("environments %d to %d: panic: %v\n%s", p.first, p.first+p.envs, r, debug.Stack())
		}
	}()
	if reset {
		err = p.batch.Reset(ctx, p.seeds)
	} else {
		err = p.batch.Step(ctx)
	}
	if err != nil {
		return fmt.Errorf("environments %d to %d: %w", p.first, p.first+p.envs, err)
	}
	return nil
}

// Spec returns what the environments are.
func (b *blocks) Spec() env.Spec { return b.spec }

// Buffers returns the rows of all environments.
func (b *blocks) Buffers() *env.Buffers { return b.buffers }

// TakeStats implements [env.StatsTaker].
func (b *blocks) TakeStats() env.Stats {
	var sum env.Stats
	for i := range b.all {
		if s, ok := b.all[i].batch.(env.StatsTaker); ok {
			sum.Add(s.TakeStats())
		}
	}
	return sum
}

// Paint implements [render.Painter], where the environments do.
func (b *blocks) Paint(i int) *render.Canvas {
	for j := range b.all {
		p := &b.all[j]
		if painter, ok := p.batch.(render.Painter); ok && i >= p.first && i < p.first+p.envs {
			return painter.Paint(i - p.first)
		}
	}
	return nil
}

func (b *blocks) close() error {
	var errs []error
	for _, p := range slices.Backward(b.all) {
		errs = append(errs, p.batch.Close())
	}
	return errors.Join(errs...)
}
