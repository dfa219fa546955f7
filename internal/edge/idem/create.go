package idem

import (
	"context"
	"errors"
	"io"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// errAbandoned is why a sandbox that is being made, or was made, is taken back: nobody waited for it any more.
var errAbandoned = errors.New("nobody waited for the answer")

// create makes a sandbox, once. The answer is told from the sandbox, by the first caller as by all others. A sandbox
// whose callers have all gone before one of them was told is taken back after a while, and its key is free again.
func (v *Server) create(ctx context.Context, s *aether.Stream, o aether.Open) error {
	want := call{project: o.Project, key: o.Key, kind: kindCreate, digest: digestOf(&o, o.Body, nil)}
	for {
		want.ref = v.Maker.Pick(ctx, o.Project, o.Body)
		r, ours, err := v.Keys.claim(want)
		if err != nil || !ours {
			v.Maker.Drop(want.ref)
		}
		if err != nil {
			return err
		}
		err = v.created(ctx, s, o, r, ours)
		if !errors.Is(err, errAbandoned) {
			return err
		}
	}
}

// created carries out a create, or waits for it, and tells the caller of it.
func (v *Server) created(ctx context.Context, s *aether.Stream, o aether.Open, r *Run, ours bool) error {
	me := r.join()
	defer r.leave(me)
	if ours {
		v.start(r, func(ctx context.Context) { v.make(ctx, r, o) }) //nolint:contextcheck // it outlives its caller
	}
	if err := r.follow(ctx, me, func(Frame) error { return nil }); err != nil {
		return err
	}
	raw, err := v.Maker.Made(o.Project, r.ref)
	if api.IsCode(err, api.CodeNotFound) {
		return errLost("sandbox " + r.ref + " ended, and its record is no longer kept")
	}
	if err != nil {
		return err
	}
	if err := mark(ctx, s, ours); err != nil {
		return err
	}
	if err := s.Reply(ctx, raw); err != nil {
		return err
	}
	if !o.Closed {
		if err := Confirmed(ctx, s); err != nil {
			return err
		}
	}
	v.Keys.told(r)
	return nil
}

// make is the work of a create.
func (v *Server) make(ctx context.Context, r *Run, o aether.Open) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.work(nil, func() { cancel(errAbandoned) })
	err := v.Maker.Make(ctx, o.Project, r.ref, o.Body)
	switch {
	case err == nil:
		r.work(nil, func() { v.Go(func() { v.takeBack(r, o.Project) }) })
		r.finish()
	case errors.Is(context.Cause(ctx), errAbandoned):
		r.free(errAbandoned)
	default:
		r.free(err)
	}
}

// takeBack ends a sandbox that nobody was told of.
func (v *Server) takeBack(r *Run, project string) {
	if !r.reopen() {
		return
	}
	if err := v.Maker.Unmake(v.Life, project, r.ref); err != nil {
		r.finish()
		v.Keys.told(r) // it is there still, and found by its key
		return
	}
	r.free(errAbandoned)
}

// Confirmed waits for the peer's word that its client has the answer: a graceful end of its side.
func Confirmed(ctx context.Context, s *aether.Stream) error {
	ctx = context.WithoutCancel(ctx) // which ends with the stream, however that ends
	for {
		f, err := s.Recv(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		f.Release()
	}
}
