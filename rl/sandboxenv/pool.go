package sandboxenv

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
)

// makers is how many sandboxes a pool makes or stops at once.
const makers = 4

// How long the making and the stop of a sandbox may take.
const (
	createTime = 60 * time.Second
	stopTime   = 30 * time.Second
)

// Pool keeps fresh sandboxes ready, and stops used ones. It's safe for concurrent use; several batches may share one.
type Pool struct {
	client *libdsec.Client
	spec   api.Spec
	warm   chan *libdsec.Sandbox
	failed chan error // of those who wait for a sandbox: a failure isn't kept
	used   chan *libdsec.Sandbox
	ctx    context.Context //nolint:containedctx // the life of the pool's own goroutines
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu    sync.Mutex // guards what follows
	lost  []error    // stops that failed
	alive int        // sandboxes that aren't stopped
}

// NewPool starts to make sandboxes, of which as many as warm are kept ready. The client stays the caller's, and has to
// live longer than the pool.
func NewPool(client *libdsec.Client, spec api.Spec, warm int) (*Pool, error) {
	if warm < 1 || warm > 4096 {
		return nil, fmt.Errorf("sandbox environment: a pool of %d warm sandboxes", warm)
	}
	p := &Pool{
		client: client, spec: spec,
		warm: make(chan *libdsec.Sandbox, warm), used: make(chan *libdsec.Sandbox, warm), failed: make(chan error),
	}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	for range min(makers, warm) {
		p.wg.Go(p.fill)
		p.wg.Go(p.drain)
	}
	return p, nil
}

// retry is how long after a failure, which nobody was waiting for, a sandbox is tried again.
const retry = 200 * time.Millisecond

func (p *Pool) fill() {
	for p.ctx.Err() == nil {
		sb, err := p.create()
		if err != nil {
			select {
			case p.failed <- fmt.Errorf("create: %w", err):
			case <-time.After(retry):
			case <-p.ctx.Done():
			}
			continue
		}
		p.count(1)
		select {
		case p.warm <- sb:
		case <-p.ctx.Done():
			p.stop(sb)
		}
	}
}

// create makes a sandbox, also when the pool is being closed meanwhile: of a request that is broken off nobody would
// know whether it has made one.
func (p *Pool) create() (*libdsec.Sandbox, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), createTime)
	defer cancel()
	return p.client.Create(ctx, p.spec)
}

func (p *Pool) drain() {
	for {
		select {
		case sb := <-p.used:
			p.stop(sb)
		case <-p.ctx.Done():
			return
		}
	}
}

func (p *Pool) count(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.alive += n
}

// stop ends a sandbox, also when the pool is being closed. One that is gone already is as well.
func (p *Pool) stop(sb *libdsec.Sandbox) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), stopTime)
	defer cancel()
	_, err := sb.Stop(ctx)
	if libdsec.IsCode(err, api.CodeNotFound) {
		err = nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.lost = append(p.lost, fmt.Errorf("stop %s: %w", sb.ID(), err))
		return
	}
	p.alive--
}

// Get takes a fresh sandbox, and waits for one where none is ready. Give it back by Put.
func (p *Pool) Get(ctx context.Context) (*libdsec.Sandbox, error) {
	if p.ctx.Err() != nil {
		return nil, errClosed
	}
	select {
	case sb := <-p.warm:
		return sb, nil
	case err := <-p.failed:
		return nil, err
	case <-p.ctx.Done():
		return nil, errClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Put takes back a sandbox that was used, to stop it. It waits only where far too many are waiting for that.
func (p *Pool) Put(sb *libdsec.Sandbox) {
	select {
	case p.used <- sb:
	case <-p.ctx.Done():
		p.stop(sb)
	}
}

// Alive is how many sandboxes of the pool there are now: warm, out, and not stopped yet.
func (p *Pool) Alive() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.alive
}

// Close stops all sandboxes that are in the pool; call it after the batches' Close. It tells of every stop that failed.
func (p *Pool) Close() error {
	p.cancel(errClosed)
	p.wg.Wait()
	var left sync.WaitGroup
	for range makers {
		left.Go(p.empty)
	}
	left.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(p.lost...)
}

// empty stops what nobody has taken.
func (p *Pool) empty() {
	for {
		select {
		case sb := <-p.warm:
			p.stop(sb)
		case sb := <-p.used:
			p.stop(sb)
		default:
			return
		}
	}
}
