package sandboxenv

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/vec"
)

// Batch is a number of tasks in as many sandboxes.
type Batch struct {
	pool  *Pool
	task  Task
	cfg   Config
	spec  env.Spec
	seats []seat
	b     *env.Buffers
	stats env.Stats
	cost  Cost
}

// Maker makes batches that share a pool.
func Maker(pool *Pool, task Task, cfg Config) vec.Maker {
	return func(n int) (env.Batch, error) { return New(pool, task, cfg, n) }
}

// New makes a batch. The pool stays the caller's.
func New(pool *Pool, task Task, cfg Config, n int) (*Batch, error) {
	spec := task.Spec()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if n < 1 || spec.Agents != 1 || spec.Obs.DType != env.Float32 || spec.Act.Numbers > 0 || spec.Masked {
		return nil, fmt.Errorf("sandbox environment: %d of %s, which needs one agent, observations of float32 and choices without masks", n, spec.Name)
	}
	return &Batch{pool: pool, task: task, cfg: cfg.withDefaults(), spec: spec, seats: make([]seat, n)}, nil
}

// Spec implements [env.Batch].
func (b *Batch) Spec() env.Spec { return b.spec }

// Bind implements [env.Batch].
func (b *Batch) Bind(buffers *env.Buffers) error {
	if err := buffers.Check(b.spec); err != nil {
		return err
	}
	if buffers.Rows != len(b.seats) {
		return fmt.Errorf("%s: %d rows for %d sandboxes", b.spec.Name, buffers.Rows, len(b.seats))
	}
	b.b = buffers
	for i := range b.seats {
		b.seats[i].row, b.seats[i].batch = buffers.View(i, i+1), b
	}
	return nil
}

// Reset implements [env.Batch].
func (b *Batch) Reset(ctx context.Context, seeds []uint64) error {
	if b.b == nil || len(seeds) != len(b.seats) {
		return fmt.Errorf("%s: %d seeds for %d sandboxes, or no buffers bound", b.spec.Name, len(seeds), len(b.seats))
	}
	b.b.BeginStep()
	for i, seed := range seeds {
		b.seats[i].seed, b.seats[i].episode = seed, 0
	}
	return b.all(ctx, func(ctx context.Context, s *seat) error { return s.begin(ctx) })
}

// Step implements [env.Batch].
func (b *Batch) Step(ctx context.Context) error {
	heads := b.spec.Act.Choices
	for i, choice := range b.b.Choices {
		if n := heads[i%len(heads)]; choice < 0 || int(choice) >= n {
			return fmt.Errorf("%s: row %d chose %d of %d", b.spec.Name, i/len(heads), choice, n)
		}
	}
	b.b.BeginStep()
	return b.all(ctx, func(ctx context.Context, s *seat) error { return s.step(ctx) })
}

// all does something with all seats at once, and adds up what they spent and earned.
func (b *Batch) all(ctx context.Context, do func(context.Context, *seat) error) error {
	errs := make([]error, len(b.seats))
	var wg sync.WaitGroup
	for i := range b.seats {
		wg.Go(func() {
			b.seats[i].cost = Cost{}
			if err := do(ctx, &b.seats[i]); err != nil {
				errs[i] = fmt.Errorf("sandbox of row %d: %w", i, err)
			}
		})
	}
	wg.Wait()
	for i := range b.seats {
		b.cost.add(b.seats[i].cost)
		b.stats.Add(b.seats[i].ended)
		b.seats[i].ended = env.Stats{}
	}
	return errors.Join(errs...)
}

// TakeStats implements [env.StatsTaker]. The score of an episode is its reward a step.
func (b *Batch) TakeStats() env.Stats {
	taken := b.stats
	b.stats = env.Stats{}
	return taken
}

// Cost is what was spent since the last call.
func (b *Batch) Cost() Cost {
	spent := b.cost
	b.cost = Cost{}
	return spent
}

// RowCost is what the last Step or Reset of a row has spent.
func (b *Batch) RowCost(row int) Cost { return b.seats[row].cost }

// Close implements [env.Batch]: the sandboxes go back to the pool.
func (b *Batch) Close() error {
	for i := range b.seats {
		b.seats[i].leave()
	}
	return nil
}

var (
	_ env.Batch      = (*Batch)(nil)
	_ env.StatsTaker = (*Batch)(nil)
)
