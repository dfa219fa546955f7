package vec

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/dsec-io/dsec/rl/env"
)

// ErrOutOfTurn is what Send and Recv return where there's nothing to send or to receive.
var ErrOutOfTurn = errors.New("receive before sending, reset before receiving")

// Async steps blocks of environments while its caller is busy with others. Every block is either with the caller
// (received), or on its way (sent): Recv takes some of those that are ready, Send gives received ones back.
type Async struct {
	*blocks
	batch   int
	ordered bool
	views   []Block
	workers sync.WaitGroup

	mu     sync.Mutex
	work   sync.Cond // todo isn't empty, or closed
	done   sync.Cond // ready has grown
	todo   queue
	ready  queue
	state  []state       // of each block
	out    int           // how many blocks the caller has
	turn   int           // the next block to give out, if ordered
	want   int           // how many ready blocks done is waited for with; 0: any change
	cost   time.Duration // of a block, of late, at worst
	fresh  []bool        // which blocks are to be reset, not stepped
	failed error
	closed bool
	ctx    context.Context //nolint:containedctx // ends with Close: a step goes on when the call that sent it has returned
	cancel context.CancelCauseFunc
}

// state says where a block is.
type state uint8

const (
	received state = iota // with the caller
	sent                  // in todo or with a worker
	waiting               // in ready
)

// queue is a ring of block numbers; no block is twice in it.
type queue struct {
	ring    []int
	head, n int
}

func (q *queue) push(i int) {
	at := q.head + q.n
	if at >= len(q.ring) {
		at -= len(q.ring)
	}
	q.ring[at] = i
	q.n++
}

func (q *queue) pop() int {
	i := q.ring[q.head]
	if q.head++; q.head == len(q.ring) {
		q.head = 0
	}
	q.n--
	return i
}

// NewAsync starts the workers. As many may be running as are useful: they are goroutines, and environments that wait
// for something need no core.
func NewAsync(maker Maker, c Config) (*Async, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	workers := min(max(c.Workers, 1), c.Envs)
	count := c.Blocks
	if count == 0 {
		count = 2 * workers
	}
	b, err := open(maker, c.Envs, min(count, c.Envs))
	if err != nil {
		return nil, err
	}
	n := len(b.all)
	a := &Async{blocks: b, ordered: c.Ordered, batch: min(c.Batch, n), state: make([]state, n), fresh: make([]bool, n), out: n}
	if c.Batch == 0 {
		a.batch = max(n/2, 1)
	}
	a.todo.ring, a.ready.ring = make([]int, n), make([]int, n)
	a.work.L, a.done.L = &a.mu, &a.mu
	a.ctx, a.cancel = context.WithCancelCause(context.Background())
	for i := range n {
		lo, hi := b.rows(i)
		a.views = append(a.views, Block{Index: i, Lo: lo, Hi: hi, Buffers: b.buffers.View(lo, hi)})
	}
	for range min(workers, n) {
		a.workers.Go(a.serve)
	}
	return a, nil
}

// serve takes one block after another: never two at once, of which the first could hold up the second.
func (a *Async) serve() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for turn := 0; ; turn++ {
		for a.todo.n == 0 && !a.closed {
			a.work.Wait()
		}
		if a.closed {
			return
		}
		i := a.todo.pop()
		reset := a.fresh[i]
		a.fresh[i] = false
		// Looking at the clock takes longer than some blocks do.
		clock := turn%16 == 0 || a.cost > time.Microsecond
		a.mu.Unlock()
		var began time.Time
		if clock {
			began = time.Now()
		}
		err := a.all[i].run(a.ctx, reset)
		var took time.Duration
		if clock {
			took = time.Since(began)
		}
		a.mu.Lock()
		if clock {
			a.cost = max(a.cost-a.cost/8, took)
		}
		if err != nil && a.failed == nil {
			a.failed = err
		}
		a.state[i] = waiting
		a.ready.push(i)
		// Whoever waits for more isn't woken for less.
		if a.failed != nil || a.enough(a.want) {
			a.done.Signal()
		}
	}
}

// Reset waits for what is on its way, then has an episode started in every environment; environment i gets
// env.SeedOf(seed, i). All blocks are to be received next, those that are ready first before the others.
func (a *Async) Reset(ctx context.Context, seed uint64) error {
	defer a.wakeOn(ctx)()
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.busy() {
		if err := a.wait(ctx); err != nil {
			return err
		}
	}
	if a.failed != nil {
		return a.failed
	}
	a.seed(seed)
	a.ready.n, a.turn, a.out = 0, 0, 0
	for i := range a.state {
		a.state[i], a.fresh[i] = sent, true
		a.todo.push(i)
	}
	a.work.Broadcast()
	return nil
}

func (a *Async) busy() bool {
	return slices.Contains(a.state, sent)
}

// wait waits for a change of ready, or for the end of ctx.
func (a *Async) wait(ctx context.Context) error {
	if a.closed {
		return errors.New("closed")
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	a.done.Wait()
	return nil
}

// wakeOn makes waits look at ctx when it ends. The result undoes it.
func (a *Async) wakeOn(ctx context.Context) func() {
	if ctx.Done() == nil {
		return func() {}
	}
	stop := context.AfterFunc(ctx, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.done.Broadcast()
	})
	return func() { stop() }
}

// Recv returns the next Config.Batch blocks that are ready, or as many as are on their way where that is fewer.
func (a *Async) Recv(ctx context.Context) ([]Block, error) { return a.RecvInto(ctx, nil) }

// RecvInto is Recv with a slice to append to.
func (a *Async) RecvInto(ctx context.Context, to []Block) ([]Block, error) {
	defer a.wakeOn(ctx)()
	a.mu.Lock()
	defer a.mu.Unlock()
	want := min(a.coming(), a.batch)
	if want == 0 {
		return to, ErrOutOfTurn
	}
	a.want = want
	defer func() { a.want = 0 }()
	for a.failed == nil && !a.enough(want) {
		if a.todo.n > 0 {
			a.work.Broadcast()
		}
		if err := a.wait(ctx); err != nil {
			return to, err
		}
	}
	if a.failed != nil {
		return to, a.failed
	}
	for range want {
		i := a.take()
		a.state[i] = received
		a.out++
		to = append(to, a.views[i])
	}
	return to, nil
}

// coming counts the blocks that can be waited for: in order, those up to the first that the caller has.
func (a *Async) coming() int {
	if !a.ordered {
		return len(a.state) - a.out
	}
	n := 0
	for n < len(a.state) && a.state[(a.turn+n)%len(a.state)] != received {
		n++
	}
	return n
}

// enough says whether the next n blocks to give out are ready.
func (a *Async) enough(n int) bool {
	if !a.ordered {
		return a.ready.n >= n
	}
	for i := range n {
		if a.state[(a.turn+i)%len(a.state)] != waiting {
			return false
		}
	}
	return true
}

// take removes the next block from ready.
func (a *Async) take() int {
	if !a.ordered {
		return a.ready.pop()
	}
	i := a.turn
	a.turn = (a.turn + 1) % len(a.state)
	for range a.ready.n {
		if j := a.ready.pop(); j != i {
			a.ready.push(j)
		}
	}
	return i
}

// Send has received blocks stepped: their actions are in the buffers.
func (a *Async) Send(blocks ...Block) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed != nil {
		return a.failed
	}
	for _, b := range blocks {
		if a.state[b.Index] != received {
			return ErrOutOfTurn
		}
	}
	for _, b := range blocks {
		a.state[b.Index] = sent
		a.out--
		a.todo.push(b.Index)
	}
	a.wakeFor(len(blocks))
	return nil
}

// wakeFor wakes as many workers as n more blocks are worth. If that proves too few, RecvInto wakes the rest before it
// waits.
func (a *Async) wakeFor(n int) {
	if helpers := 1 + int(time.Duration(n)*min(a.cost, worthWaking)/worthWaking); helpers < n {
		for range helpers {
			a.work.Signal()
		}
		return
	}
	a.work.Broadcast()
}

// TakeStats implements [env.StatsTaker]. It waits for the steps under way.
func (a *Async) TakeStats() env.Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.busy() && !a.closed {
		a.done.Wait()
	}
	return a.blocks.TakeStats()
}

// Close stops the workers after the blocks that they are at, and closes the environments.
func (a *Async) Close() error {
	a.cancel(errors.New("the vector was closed"))
	a.mu.Lock()
	a.closed = true
	a.work.Broadcast()
	a.done.Broadcast()
	a.mu.Unlock()
	a.workers.Wait()
	return a.close()
}
