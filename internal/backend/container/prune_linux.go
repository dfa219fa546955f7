package container

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/dsec-io/dsec/internal/aether"
)

// prune has a shard forget the sandboxes that are no more. One that ended while its shard was down, or while no edge was
// there to tell the shard, would otherwise be kept by shard and keeper, with its descriptors, for as long as they live.
func (sh *shard) prune(ctx context.Context, conn *aether.Conn) error {
	known, err := knownBoxes(ctx, conn)
	if err != nil {
		return fmt.Errorf("ask %s for its sandboxes: %w", sh.name, err)
	}
	// Asked after the shard: what it knows of was registered before it was told.
	sh.mu.Lock()
	for id := range sh.boxes {
		delete(known, id)
	}
	sh.mu.Unlock()
	// One with a group may live, and be nobody's business but a later edge's.
	groups, err := sh.b.cfg.Cgroups.List()
	if err != nil {
		return err
	}
	for _, g := range groups {
		for _, id := range g.Boxes {
			delete(known, id)
		}
	}
	for id := range known {
		if _, err := aether.Unary(ctx, conn, aether.Open{Method: "remove", Sandbox: id, Project: sh.project}); err != nil {
			return fmt.Errorf("have %s forget %s: %w", sh.name, id, err)
		}
	}
	return nil
}

// pruneSoon prunes a shard once it can be reached.
func (sh *shard) pruneSoon() {
	sh.b.goTask(func(ctx context.Context) {
		for ctx.Err() == nil {
			conn, err := sh.connection(ctx)
			if err == nil {
				err = sh.prune(ctx, conn)
			}
			if errors.Is(err, aether.ErrConnLost) {
				continue
			}
			if err != nil && !errors.Is(err, errShardEnded) && ctx.Err() == nil {
				sh.b.log.Warn("shard may know sandboxes that are no more", slog.String("shard", sh.name), slog.Any("err", err))
			}
			return
		}
	})
}
