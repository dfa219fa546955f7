package vec

import (
	"context"
	"fmt"

	"github.com/dsec-io/dsec/rl/env"
)

// Maker makes a batch of so many environments. All that it makes are of the same Spec.
type Maker func(envs int) (env.Batch, error)

// Vector is many environments that step together.
type Vector interface {
	Spec() env.Spec
	// Buffers are the rows of all environments. The caller writes Choices and Numbers, and reads the rest.
	Buffers() *env.Buffers
	// Reset starts an episode in every environment; environment i gets env.SeedOf(seed, i).
	Reset(ctx context.Context, seed uint64) error
	Step(ctx context.Context) error
	Close() error
}

// Config says how environments are spread.
type Config struct {
	Envs int
	// Workers is how many goroutines step them; 0 is one. More than there are environments are not started.
	Workers int
	// Blocks is into how many blocks an Async cuts its environments; 0 is two for each worker, so that one half steps
	// while the policy works on the other.
	Blocks int
	// Batch is how many blocks a Recv of an Async waits for; 0 is half of them.
	Batch int
	// Ordered makes an Async give out blocks in their order, not in the order in which they come ready: what is
	// collected is then the same in every run.
	Ordered bool
}

// Validate reports every fault.
func (c Config) Validate() error {
	if c.Envs < 1 || c.Workers < 0 || c.Blocks < 0 || c.Batch < 0 {
		return fmt.Errorf("%d environments, %d workers, %d blocks, %d of them a batch", c.Envs, c.Workers, c.Blocks, c.Batch)
	}
	return nil
}

// Block is some environments of an Async.
type Block struct {
	Index   int
	Lo, Hi  int          // the rows that it has of the Async's buffers
	Buffers *env.Buffers // those rows
}
