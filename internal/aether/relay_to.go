package aether

import (
	"context"
	"errors"
)

// errServerLost ends the way to a server whose connection is gone.
var errServerLost = errors.New("the server's connection is lost")

// RelayTo is [Relay] between a client and the server of its request, but for two things. When the server's connection is
// lost, everything that had come from it is passed on first, the client's stream is left as it is, and the error wraps
// [ErrConnLost]: the caller knows what its client should be told. And seen is shown every frame from the server just
// before it is passed on; its payload isn't checked, and a long message comes in parts.
func RelayTo(ctx context.Context, client, server *Stream, seen func(f *Frame)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	server.drain()
	if client.saidAll() && server.Close() == nil {
		up := watchReset(ctx, client, server)
		err := pumpFrom(ctx, client, server, seen)
		if errors.Is(err, errServerLost) {
			err = server.Err()
		}
		return errors.Join(err, up.end())
	}
	up := make(chan error, 1) // the one result
	go func() { up <- pumpTo(ctx, client, server) }()
	err := pumpFrom(ctx, client, server, seen)
	if errors.Is(err, errServerLost) {
		cancel(errServerLost)
		return errors.Join(server.Err(), <-up)
	}
	return errors.Join(err, <-up)
}

// serverLost tells whether err is the loss of the server's connection and nothing else.
func serverLost(ctx context.Context, server *Stream, err error) bool {
	over := ctx.Err() != nil && !errors.Is(context.Cause(ctx), errServerLost)
	return errors.Is(err, ErrConnLost) && errors.Is(server.Err(), ErrConnLost) && !over
}

// pumpTo copies from the client to the server.
func pumpTo(ctx context.Context, client, server *Stream) error {
	for {
		f, more, err := client.next(ctx)
		switch {
		case errors.Is(err, errEOF):
			if err = server.Close(); err == nil || errors.Is(err, ErrClosed) {
				return untilOver(ctx, server, client)
			}
		case err == nil:
			err = forward(ctx, server, client, f, !more)
		}
		switch {
		case err == nil:
			continue
		case errors.Is(err, ErrClosed) || errors.Is(err, errServerLost):
			return nil
		case errors.Is(client.Err(), ErrConnLost):
		case serverLost(ctx, server, err):
			return nil // the other way passes on what has come, and tells
		}
		tell := passOn(ctx, err)
		server.Reset(tell)
		client.Reset(tell)
		return err
	}
}

// pumpFrom copies from the server to the client.
func pumpFrom(ctx context.Context, client, server *Stream, seen func(f *Frame)) error {
	for {
		f, more, err := server.next(ctx)
		switch {
		case errors.Is(err, errEOF):
			if err = client.Close(); err == nil || errors.Is(err, ErrClosed) {
				return nil
			}
		case err != nil && serverLost(ctx, server, err):
			return errServerLost
		case err == nil:
			seen(&f)
			err = forward(ctx, client, server, f, !more)
		}
		if err == nil {
			continue
		}
		if errors.Is(err, ErrClosed) {
			return nil // the other direction has ended both and tells why
		}
		tell := passOn(ctx, err)
		client.Reset(tell)
		server.Reset(tell)
		return err
	}
}
