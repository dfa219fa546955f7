package container

import (
	"context"
	"time"
)

// Rest is what the filler does now and then.
func (b *Backend) Rest(ctx context.Context, now time.Time) { b.rest(ctx, now) }
