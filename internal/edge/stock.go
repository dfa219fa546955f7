package edge

import (
	"context"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/edge/spec"
)

// pick returns the id of the sandbox that will be made: of one that the backend has ready, or a new one. The create
// that follows uses it; else drop gives it back.
func (e *Edge) pick(ctx context.Context, project string, want api.Spec) string {
	if stock, ok := e.cfg.Backend.(Stocker); ok && project != "" {
		if img, err := e.cfg.Image(ctx, want.Image); err == nil {
			if want, err = spec.Effective(want, img); err == nil { // create says what is wrong with it
				if id, ok := stock.Take(ctx, project, want); ok {
					return id
				}
			}
		}
	}
	return NewID(e.cfg.Home)
}

// drop gives back what pick has reserved, if anything.
func (e *Edge) drop(id string) {
	if stock, ok := e.cfg.Backend.(Stocker); ok {
		stock.PutBack(id)
	}
}
