package container

import (
	"context"
	"errors"
	"fmt"

	"github.com/dsec-io/dsec/internal/edge"
)

// Pause freezes every process of the sandbox and returns when all stand still.
func (x *box) Pause(ctx context.Context) error {
	err := x.groups.Freeze(ctx)
	if err == nil {
		return nil
	}
	if frozen, ferr := x.groups.Frozen(); frozen || ferr != nil {
		return errors.Join(fmt.Errorf("pause %s: %w: %w", x.id, edge.ErrStuck, err), ferr)
	}
	return fmt.Errorf("pause %s: %w", x.id, err)
}

// Resume thaws what Pause froze.
func (x *box) Resume(ctx context.Context) error {
	if err := x.groups.Thaw(ctx); err != nil {
		return fmt.Errorf("resume %s: %w", x.id, err)
	}
	return nil
}

// Paused tells whether the sandbox is frozen or about to be.
func (x *box) Paused() (bool, error) { return x.groups.Frozen() }
