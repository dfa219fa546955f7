package edge

import (
	"context"
	"sync"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/edge/records"
)

// plans are the plans of sandboxes whose ids have been picked before their creation.
type plans struct {
	mu   sync.Mutex
	byID map[string]*records.Record
}

func (p *plans) put(rec *records.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byID == nil {
		p.byID = map[string]*records.Record{}
	}
	p.byID[rec.ID] = rec
}

// take returns the plan for an id, nil if there is none, once.
func (p *plans) take(id string) *records.Record {
	p.mu.Lock()
	defer p.mu.Unlock()
	rec := p.byID[id]
	delete(p.byID, id)
	return rec
}

// pick returns the id of the sandbox that will be made: of one that the backend has ready, or a new one. The create
// that follows uses it; else drop gives it back.
func (e *Edge) pick(ctx context.Context, project string, want api.Spec) string {
	rec, err := e.plan(ctx, project, want)
	if err != nil {
		return NewID(e.cfg.Home) // create says what is wrong with it
	}
	e.plans.put(rec)
	return rec.ID
}

// idFor is the id of the sandbox that is made by a plan: of one that the backend has ready, where it has.
func (e *Edge) idFor(rec *records.Record, digest string) string {
	if stock, ok := e.cfg.Backend.(Stocker); ok && rec.Project != "" {
		if id, ok := stock.Take(rec.Project, rec.Spec, digest); ok {
			return id
		}
	}
	return NewID(e.cfg.Home)
}

// drop gives back what pick has reserved, if anything.
func (e *Edge) drop(id string) {
	e.plans.take(id)
	if stock, ok := e.cfg.Backend.(Stocker); ok {
		stock.PutBack(id)
	}
}
