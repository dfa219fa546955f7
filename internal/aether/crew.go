package aether

import (
	"sync"
	"sync/atomic"
)

// crew is the goroutines that handle a connection's streams. A few stay when they have nothing to do: a new goroutine's
// stack has to grow to a handler's depth step by step, which takes longer than what many a handler does.
type crew struct {
	next  chan *Stream // unbuffered: only who waits takes one
	over  <-chan struct{}
	serve func(*Stream)
	idle  atomic.Int32
	all   sync.WaitGroup
}

const maxIdle = 8

// start has a stream handled, and doesn't wait.
func (w *crew) start(s *Stream) {
	select {
	case w.next <- s:
	default:
		w.all.Go(func() { w.work(s) })
	}
}

func (w *crew) work(s *Stream) {
	for {
		w.serve(s)
		if w.idle.Add(1) > maxIdle {
			w.idle.Add(-1)
			return
		}
		select {
		case s = <-w.next:
			w.idle.Add(-1)
		case <-w.over:
			return
		}
	}
}
