package vec

import (
	"context"

	"github.com/dsec-io/dsec/rl/env"
)

// serial steps one batch on the caller's goroutine.
type serial struct {
	*blocks
	failed error
}

// NewSerial returns a vector that does everything on its caller's goroutine.
func NewSerial(maker Maker, envs int) (Vector, error) {
	if err := (Config{Envs: envs}).Validate(); err != nil {
		return nil, err
	}
	b, err := open(maker, envs, 1)
	if err != nil {
		return nil, err
	}
	return &serial{blocks: b}, nil
}

// Reset implements [Vector].
func (s *serial) Reset(ctx context.Context, seed uint64) error {
	s.seed(seed)
	return s.run(ctx, true)
}

// Step implements [Vector].
func (s *serial) Step(ctx context.Context) error { return s.run(ctx, false) }

func (s *serial) run(ctx context.Context, reset bool) error {
	if s.failed == nil {
		s.failed = s.all[0].run(ctx, reset)
	}
	return s.failed
}

// Close implements [Vector].
func (s *serial) Close() error { return s.close() }

var (
	_ Vector         = (*serial)(nil)
	_ env.StatsTaker = (*serial)(nil)
)
