package cli

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// Signals hands the process's signals to whoever is in charge of them now: at first to the root, which ends the
// command; while a remote command runs in the foreground, to what forwards them. The lock is never held during a call.
type Signals struct {
	ch   chan os.Signal
	done chan struct{}
	wg   sync.WaitGroup

	mu      sync.Mutex // guards handler
	handler func(os.Signal)
}

// NewSignals starts routing. A burst of a few signals is kept while a handler is busy.
func NewSignals(handler func(os.Signal)) *Signals {
	r := &Signals{ch: make(chan os.Signal, 8), done: make(chan struct{}), handler: handler}
	signal.Notify(r.ch, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	r.wg.Go(r.loop)
	return r
}

func (r *Signals) loop() {
	for {
		select {
		case s := <-r.ch:
			r.mu.Lock()
			h := r.handler
			r.mu.Unlock()
			h(s)
		case <-r.done:
			return
		}
	}
}

// Route sends signals to handler until the returned function is called. Until then a reader of ours that has gone, as
// with `| head`, shows as an error of the write instead of ending us: the remote command is still to be ended.
func (r *Signals) Route(handler func(os.Signal)) (restore func()) {
	pipes := make(chan os.Signal, 1) // nobody listens: the write's error says it
	signal.Notify(pipes, syscall.SIGPIPE)
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.handler
	r.handler = handler
	return func() {
		signal.Stop(pipes)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.handler = old
	}
}

// Close ends the routing: signals act as they do by default again.
func (r *Signals) Close() {
	signal.Stop(r.ch)
	close(r.done)
	r.wg.Wait()
}
