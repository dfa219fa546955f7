package cli

import (
	"context"
	"time"
)

// Rest waits, or tells why ctx ended first.
func Rest(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Every calls fn again and again until it fails or ctx ends, with a rest after each call.
func (a *App) Every(ctx context.Context, rest time.Duration, fn func(context.Context) error) error {
	for {
		if err := fn(ctx); err != nil {
			return err
		}
		if err := Rest(ctx, rest); err != nil {
			return err
		}
	}
}

// Repeat is [App.Every] for what is looked at again and again: a terminal shows the newest alone.
func (a *App) Repeat(ctx context.Context, rest time.Duration, fn func(context.Context) error) error {
	_, tty := Terminal(a.Stdout)
	return a.Every(ctx, rest, func(ctx context.Context) error {
		if tty {
			if err := a.Write([]byte("\x1b[H\x1b[2J")); err != nil {
				return err
			}
		}
		return fn(ctx)
	})
}
