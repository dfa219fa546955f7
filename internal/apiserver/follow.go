package apiserver

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/dsec-io/dsec/internal/aether"
)

const (
	// refusalTime is how long an answer is held back for a refusal. The edge refuses at once or never, but what is
	// followed may be silent for long.
	refusalTime = 250 * time.Millisecond
	// pingTime is how often a silent stream gets a sign of life, so that proxies keep it open.
	pingTime = 15 * time.Second
)

// follower is how a stream of the edge's becomes a live answer.
type follower struct {
	media   string
	convert func(*aether.Frame) ([]byte, error) // what to send for a frame; valid until the next call
	ping    []byte                              // sent while there is nothing else; nil: nothing
	patient bool                                // the first frame comes, however long it takes: wait with the answer
}

// plain sends output as it is.
func plain(f *aether.Frame) ([]byte, error) {
	if f.Channel == aether.Stdout || f.Channel == aether.Stderr {
		return f.Data, nil
	}
	return nil, nil
}

// follow opens a stream and answers with what comes on it, as it comes.
func (s *Server) follow(c *call, r *http.Request, o aether.Open, as follower) error {
	st, err := s.open(r.Context(), c, o)
	if err != nil {
		return err
	}
	defer st.Reset(nil)
	in := receive(r.Context(), st)
	defer in.stop()

	next := in.first(r.Context(), as.patient)
	if next.err != nil && !errors.Is(next.err, io.EOF) {
		return repeatable(next.err)
	}
	out := newLiveAnswer(c, as.media)
	if c.head { // it would wait for what it can't send
		next.release()
		return nil
	}
	ping := time.NewTicker(pingTime)
	defer ping.Stop()
	for {
		send := as.ping
		switch {
		case next.err != nil:
			return complete(next.err)
		case next.held:
			if send, err = as.convert(&next.Frame); err != nil {
				next.Release()
				return err
			}
		}
		if len(send) > 0 && out.write(send) != nil {
			next.release()
			return nil // the client has gone; there is nobody to tell
		}
		next.release()
		select {
		case next = <-in.c:
		case <-ping.C:
			next = received{}
		case <-r.Context().Done():
			return nil
		}
	}
}

// complete is how an answer ends with its stream: after the peer's own end it is complete, after anything else it must
// not look so.
func complete(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// received is a frame, or why there are no more.
type received struct {
	aether.Frame
	held bool // there is a frame
	err  error
}

func (v *received) release() {
	if v.held {
		v.Release()
		v.held = false
	}
}

// receiver receives a stream's frames in a goroutine, for a handler that waits for other things too. One frame at a time
// is on its way, so the handler's pace is the stream's. After an error, or the end of its context, nothing follows.
type receiver struct {
	c    chan received // without room, see above
	quit context.CancelCauseFunc
	done chan struct{}
}

func receive(ctx context.Context, st *aether.Stream) *receiver {
	ctx, quit := context.WithCancelCause(ctx)
	v := &receiver{c: make(chan received), quit: quit, done: make(chan struct{})}
	go v.run(ctx, st)
	return v
}

// first is the first frame or why there is none, or nothing where that takes its time and isn't to be waited for.
func (v *receiver) first(ctx context.Context, patient bool) received {
	var late <-chan time.Time
	if !patient {
		late = time.After(refusalTime)
	}
	select {
	case next := <-v.c:
		return next
	case <-late:
		return received{}
	case <-ctx.Done():
		return received{err: context.Cause(ctx)}
	}
}

func (v *receiver) run(ctx context.Context, st *aether.Stream) {
	defer close(v.done)
	for {
		f, err := st.Recv(ctx)
		next := received{Frame: f, held: err == nil, err: err}
		select {
		case v.c <- next:
		case <-ctx.Done():
			next.release()
			return
		}
		if err != nil {
			return
		}
	}
}

// stop ends the goroutine and waits for it.
func (v *receiver) stop() {
	v.quit(nil)
	<-v.done
}
