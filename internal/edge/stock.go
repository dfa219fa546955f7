package edge

import (
	"context"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/edge/spec"
)

// pick returns the id of the sandbox that will be made: of one that the backend has ready, or a new one. The create
// that follows uses it; else drop gives it back.
func (e *Edge) pick(ctx context.Context, project string, want api.Spec) string {
	if id, ok := e.take(ctx, project, want); ok {
		return id
	}
	return NewID(e.cfg.Home)
}

// take asks the backend for a sandbox that it has ready.
func (e *Edge) take(ctx context.Context, project string, want api.Spec) (id string, ok bool) {
	stock, ok := e.cfg.Backend.(Stocker)
	if !ok || project == "" {
		return "", false
	}
	img, err := e.cfg.Image(ctx, want.Image)
	if err == nil {
		want, err = spec.Effective(want, img)
	}
	if err != nil {
		return "", false // create says what is wrong with it
	}
	return stock.Take(project, want, img.Digest)
}

// drop gives back what pick has reserved, if anything.
func (e *Edge) drop(id string) {
	if stock, ok := e.cfg.Backend.(Stocker); ok {
		stock.PutBack(id)
	}
}
