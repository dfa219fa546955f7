package envcheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/vec"
)

// Env checks what makes environments one by one: that an episode that's over takes no step, that seeds say all, and
// everything that Batch looks at.
func Env(ctx context.Context, open func() (env.Env, error), c Config) error {
	c = c.filled()
	e, err := open()
	if err != nil {
		return fmt.Errorf("make an environment: %w", err)
	}
	err = checkSpec(e.Spec())
	if err == nil {
		err = overIsOver(ctx, e, c)
	}
	if err := errors.Join(err, e.Close()); err != nil {
		return err
	}
	return Batch(ctx, vec.Each(open), c)
}

var errTaken = errors.New("it's taken")

// overIsOver plays one episode to its end, if it has one that random actions find, and a step too many.
func overIsOver(ctx context.Context, e env.Env, c Config) error {
	b := env.NewBuffers(e.Spec(), 1)
	if err := e.Step(ctx, b); err == nil {
		return errors.New("a step before the first reset is taken")
	}
	b.BeginStep()
	if err := e.Reset(ctx, c.Seed, b); err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	r := env.NewRand(c.Seed)
	for range c.Steps {
		b.SampleActions(e.Spec(), &r)
		b.BeginStep()
		if err := e.Step(ctx, b); err != nil {
			return fmt.Errorf("step: %w", err)
		}
		if !b.Over() {
			continue
		}
		b.BeginStep()
		if err := e.Step(ctx, b); !errors.Is(err, env.ErrEpisodeOver) {
			return fmt.Errorf("a step after the end of the episode isn't refused with ErrEpisodeOver: %w", cmp.Or(err, errTaken))
		}
		return nil
	}
	return nil
}
