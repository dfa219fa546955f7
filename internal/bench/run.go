package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// laps tells how long the steps of an operation took.
type laps struct {
	names []string
	times []time.Duration
	last  time.Time
}

// lap ends a step that began with the step before.
func (l *laps) lap(name string) {
	now := time.Now()
	l.add(name, now.Sub(l.last))
	l.last = now
}

func (l *laps) add(name string, d time.Duration) {
	l.names, l.times = append(l.names, name), append(l.times, d)
}

// contender is one who does the operations of a benchmark.
type contender struct {
	name string
	peer bool
	// thread prepares the thread of a worker, which then is that worker's alone; nil: any thread will do.
	thread func() error
	do     func(ctx context.Context, l *laps) error
	share  int // it does an n-th of the operations, because it is so slow; 0: all
}

// plan is what one run measures.
type plan struct {
	contenders  []*contender
	n           int
	rounds      int
	concurrency int
	failed      func(contender string, err error)
}

// run measures, and returns what it has also when ctx ends early.
func (p *plan) run(ctx context.Context) map[string]*tally {
	out := make(map[string]*tally, len(p.contenders))
	for _, c := range p.contenders {
		out[c.name] = &tally{}
	}
	for round := range p.rounds {
		for i := range p.contenders {
			if ctx.Err() != nil {
				return out
			}
			c := p.contenders[(i+round)%len(p.contenders)] // nobody is always the one after the slowest
			n := max(p.n/max(c.share, 1)/p.rounds, min(p.concurrency, p.n), 1)
			p.block(ctx, c, out[c.name], n)
		}
	}
	return out
}

// worker is one of those who do a block's operations.
type worker struct {
	laps []laps
	errs []error
}

// block has one contender do n operations.
func (p *plan) block(ctx context.Context, c *contender, t *tally, n int) {
	workers := make([]worker, min(p.concurrency, n))
	var left, under, peak atomic.Int64
	left.Store(int64(n))
	start := make(chan struct{})
	var ready, done sync.WaitGroup
	for i := range workers {
		ready.Add(1)
		done.Go(func() {
			w := &workers[i]
			err := c.enter()
			ready.Done()
			<-start
			if err != nil {
				w.errs = append(w.errs, fmt.Errorf("prepare: %w", err))
				return
			}
			for ctx.Err() == nil && left.Add(-1) >= 0 {
				raise(&peak, under.Add(1))
				l := laps{last: time.Now()}
				err := c.do(ctx, &l)
				under.Add(-1)
				if err != nil {
					w.errs = append(w.errs, err)
				} else {
					w.laps = append(w.laps, l)
				}
			}
		})
	}
	ready.Wait()
	began := time.Now()
	close(start)
	done.Wait()
	p.collect(c, t, workers, time.Since(began))
	t.peak = max(t.peak, int(peak.Load()))
}

func (c *contender) enter() error {
	if c.thread == nil {
		return nil
	}
	return c.thread()
}

func raise(peak *atomic.Int64, now int64) {
	for {
		was := peak.Load()
		if now <= was || peak.CompareAndSwap(was, now) {
			return
		}
	}
}

func (p *plan) collect(c *contender, t *tally, workers []worker, took time.Duration) {
	n := 0
	for _, w := range workers {
		for _, err := range w.errs {
			t.failed++
			p.failed(c.name, err)
		}
		n += len(w.laps)
		for _, l := range w.laps {
			for i, name := range l.names {
				s := t.step(c.name, name)
				s.times = append(s.times, l.times[i])
			}
		}
	}
	t.done += n
	t.wall += took
	t.rates = append(t.rates, float64(n)/took.Seconds())
}
