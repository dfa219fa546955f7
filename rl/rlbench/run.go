package rlbench

import (
	"context"
	"runtime"
	"time"

	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/vec"
)

// elapsed is what a run took.
type elapsed struct {
	wall   time.Duration
	thread time.Duration // processor time of the thread that ran it; wall where no clock tells
}

// timed measures f.
func timed(f func() error) (elapsed, error) {
	began := time.Now()
	err := f()
	wall := max(time.Since(began), 1)
	return elapsed{wall, wall}, err
}

// timedThread measures f on a thread of its own, which no other goroutine gets: those that are to take turns with f
// would have to be woken on another each time.
func timedThread(clock func() time.Duration, f func() error) (elapsed, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := clock()
	e, err := timed(f)
	e.thread = max(clock()-began, 1)
	return e, err
}

// tables is how many steps' actions are prepared.
const tables = 61

// prepare returns actions for all rows. They are the same for vectors of the same rows.
func prepare(spec env.Spec, rows int) (all [tables][]int32) {
	r := env.NewRand(7)
	b := env.NewBuffers(spec, rows/spec.Agents)
	for i := range all {
		b.SampleActions(spec, &r)
		all[i] = append([]int32(nil), b.Choices...)
	}
	return all
}

// steps runs a vector step by step.
type steps struct {
	v       vec.Vector
	actions [tables][]int32
	clock   func() time.Duration // nil unless everything is done on the calling goroutine
}

func newSteps(v vec.Vector, err error) (runner, error) {
	if err != nil {
		return nil, err
	}
	return &steps{v: v, actions: prepare(v.Spec(), v.Buffers().Rows)}, nil
}

func (s *steps) run(ctx context.Context, seed uint64, n int) (elapsed, error) {
	if err := s.v.Reset(ctx, seed); err != nil {
		return elapsed{}, err
	}
	choices := s.v.Buffers().Choices
	all := func() error {
		for i := range n {
			copy(choices, s.actions[i%tables])
			if err := s.v.Step(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	if s.clock == nil {
		return timed(all)
	}
	return timedThread(s.clock, all)
}

func (s *steps) digest() uint64 { return digest(s.v.Buffers()) }
func (s *steps) close() error   { return s.v.Close() }

// turns runs an Async until every block has had its steps, in whatever order blocks come.
type turns struct {
	a       *vec.Async
	actions [tables][]int32
	done    []int // steps of each block
}

func newTurns(a *vec.Async, err error) (runner, error) {
	if err != nil {
		return nil, err
	}
	// As many blocks as rows, where each is one environment, is the most there can be.
	return &turns{a, prepare(a.Spec(), a.Buffers().Rows), make([]int, a.Buffers().Rows)}, nil
}

func (t *turns) run(ctx context.Context, seed uint64, n int) (elapsed, error) {
	if err := t.a.Reset(ctx, seed); err != nil {
		return elapsed{}, err
	}
	clear(t.done)
	width := len(t.a.Spec().Act.Choices)
	var blocks, again []vec.Block
	return timed(func() error {
		for left := t.a.Buffers().Rows; left > 0; {
			var err error
			if blocks, err = t.a.RecvInto(ctx, blocks[:0]); err != nil {
				return err
			}
			again = again[:0]
			for _, b := range blocks {
				step := t.done[b.Index]
				if step == n {
					left -= b.Hi - b.Lo
					continue
				}
				copy(b.Buffers.Choices, t.actions[step%tables][b.Lo*width:b.Hi*width])
				t.done[b.Index]++
				again = append(again, b)
			}
			if err := t.a.Send(again...); err != nil {
				return err
			}
		}
		return nil
	})
}

func (t *turns) digest() uint64 { return digest(t.a.Buffers()) }
func (t *turns) close() error   { return t.a.Close() }
