package vec

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dsec-io/dsec/rl/env"
)

// worthWaking is how much work a step has to have before it pays to wake another worker: a few times what it costs
// the kernel to get a sleeping thread to run.
const worthWaking = 20 * time.Microsecond

// parallel steps its blocks on several goroutines, one of them the caller's. Blocks are claimed, not dealt out: a
// worker that the kernel is slow to wake finds them done, and nobody waits for it.
type parallel struct {
	*blocks
	next    atomic.Int64 // the next block to claim; at least len(all) between steps
	pending atomic.Int64 // blocks not done yet
	work    atomic.Int64 // nanoseconds that the blocks of this step took, together
	wake    chan struct{}
	over    chan struct{} // has one element when a step's last block is done
	workers sync.WaitGroup
	helpers int
	errs    []error

	// What to do: written before next is set to 0, read after a block was claimed.
	ctx    context.Context //nolint:containedctx // of the step under way
	reset  bool
	failed error
}

// NewParallel returns a vector whose workers share the steps out among themselves.
func NewParallel(maker Maker, c Config) (Vector, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	workers := min(max(c.Workers, 1), c.Envs)
	count := c.Blocks
	if count == 0 {
		count = 4 * workers // what the slowest block can hold up is then little
	}
	b, err := open(maker, c.Envs, min(count, c.Envs))
	if err != nil {
		return nil, err
	}
	p := &parallel{
		blocks:  b,
		helpers: workers - 1,
		wake:    make(chan struct{}, workers),
		over:    make(chan struct{}, 1),
		errs:    make([]error, len(b.all)),
	}
	p.next.Store(int64(len(b.all)))
	for range p.helpers {
		p.workers.Go(func() {
			for range p.wake {
				p.help()
			}
		})
	}
	return p, nil
}

// help does blocks until none is left to claim.
func (p *parallel) help() {
	if p.next.Load() >= int64(len(p.all)) {
		return
	}
	began := time.Now()
	done := int64(0)
	for {
		i := p.next.Add(1) - 1
		if i >= int64(len(p.all)) {
			break
		}
		p.errs[i] = p.all[i].run(p.ctx, p.reset)
		done++
	}
	if done == 0 {
		return
	}
	p.work.Add(int64(time.Since(began)))
	if p.pending.Add(-done) == 0 {
		p.over <- struct{}{}
	}
}

// Reset implements [Vector].
func (p *parallel) Reset(ctx context.Context, seed uint64) error {
	p.seed(seed)
	return p.run(ctx, true)
}

// Step implements [Vector].
func (p *parallel) Step(ctx context.Context) error { return p.run(ctx, false) }

func (p *parallel) run(ctx context.Context, reset bool) error {
	if p.failed != nil {
		return p.failed
	}
	p.ctx, p.reset = ctx, reset
	helpers := p.helpers
	if !reset && time.Duration(p.work.Load()) < worthWaking {
		helpers = 0
	}
	p.work.Store(0)
	p.pending.Store(int64(len(p.all)))
	p.next.Store(0)
	for range helpers {
		select {
		case p.wake <- struct{}{}:
		default: // as many calls as there are workers are on their way already
		}
	}
	p.help()
	<-p.over
	for _, err := range p.errs {
		if err != nil {
			p.failed = err
			return err
		}
	}
	return nil
}

// Close implements [Vector].
func (p *parallel) Close() error {
	close(p.wake)
	p.workers.Wait()
	return p.close()
}

var (
	_ Vector         = (*parallel)(nil)
	_ env.StatsTaker = (*parallel)(nil)
)
