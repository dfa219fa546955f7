package registry

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image"
	"github.com/dsec-io/dsec/internal/image/importer"
	"github.com/dsec-io/dsec/internal/image/reference"
)

const (
	parallelBlobs = 3  // layers of an image that are fetched at a time
	parallelAsks  = 16 // pulls and pushes that find out at a time what there is to do
)

// Config is what a [Remote] is made of. The importer is required.
type Config struct {
	Importer *importer.Importer // makes and exports images
	Allow    []string           // hosts, with the port where one is needed, that may be talked to; empty: any
	Stall    time.Duration      // after which a connection that brings nothing is given up; default 30 s
	Patience time.Duration      // how long one pull waits in all for a registry that is busy; default 2 min
}

// Remote pulls and pushes images.
type Remote struct {
	cfg  Config
	asks chan struct{} // one for each that asks

	mu      sync.Mutex // guards flights, and who is in them
	flights map[[sha256.Size]byte]*flight
}

// New makes a Remote.
func New(cfg Config) (*Remote, error) {
	if cfg.Importer == nil {
		return nil, errors.New("registry: no importer")
	}
	cfg.Stall, cfg.Patience = cmp.Or(cfg.Stall, 30*time.Second), cmp.Or(cfg.Patience, 2*time.Minute)
	return &Remote{cfg: cfg, asks: make(chan struct{}, parallelAsks), flights: map[[sha256.Size]byte]*flight{}}, nil
}

// flight is a pull that several may wait for.
type flight struct {
	cancel context.CancelCauseFunc
	done   chan struct{}

	// Guarded by Remote.mu.
	waiting int
	tell    map[chan<- api.ImageEvent]bool

	// Constant once done is closed.
	event api.ImageEvent
	err   error
}

// Pull fetches an image, and tells what came of it (an event of type "done"). Who asks for the same at the same time, with
// the same credentials, waits for the same pull, which goes on while anybody does. progress is called now and then, never
// after the return.
func (m *Remote) Pull(ctx context.Context, o api.ImagePull, progress func(api.ImageEvent)) (api.ImageEvent, error) {
	ref, err := reference.Parse(o.Reference)
	if err != nil {
		return api.ImageEvent{}, err
	}
	platform, err := reference.ParsePlatform(o.Platform)
	if err != nil {
		return api.ImageEvent{}, err
	}
	o.Name = cmp.Or(o.Name, ref.ImageName())
	if err := image.CheckName(o.Name); err != nil {
		return api.ImageEvent{}, api.FieldError(api.CodeInvalid, "name", api.AsError(err).Hint, "%s", api.AsError(err).Detail)
	}
	p := pull{m: m, o: o, ref: ref, platform: platform}
	raw, err := json.Marshal(o)
	if err != nil {
		return api.ImageEvent{}, err
	}
	// One slot is enough: what is told of progress is only worth its newest; a warning that is lost was mended.
	events := make(chan api.ImageEvent, 16)
	key := sha256.Sum256(raw)
	f := m.join(ctx, key, events, p.run)
	defer m.leave(key, f, events)
	for {
		select {
		case ev := <-events:
			if progress != nil {
				progress(ev)
			}
		case <-f.done:
			return f.event, f.err
		case <-ctx.Done():
			return api.ImageEvent{}, context.Cause(ctx)
		}
	}
}

// join joins the flight under a key, or begins it.
func (m *Remote) join(ctx context.Context, key [sha256.Size]byte, events chan<- api.ImageEvent, run func(context.Context, func(api.ImageEvent)) (api.ImageEvent, error)) *flight {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.flights[key]
	if f == nil {
		f = &flight{done: make(chan struct{}), tell: map[chan<- api.ImageEvent]bool{}}
		// It ends with the last who waits for it, and not with the first.
		var own context.Context
		own, f.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
		m.flights[key] = f
		go func() { // waited for by leave
			defer close(f.done)
			f.event, f.err = run(own, func(ev api.ImageEvent) { m.tell(f, ev) })
		}()
	}
	f.waiting++
	f.tell[events] = true
	return f
}

// leave is for who waits no longer. The last ends the flight, and waits for its end, so that nothing is left of it then.
func (m *Remote) leave(key [sha256.Size]byte, f *flight, events chan<- api.ImageEvent) {
	m.mu.Lock()
	f.waiting--
	delete(f.tell, events)
	last := f.waiting == 0
	if last {
		delete(m.flights, key)
	}
	m.mu.Unlock()
	if last {
		f.cancel(errNobody)
		<-f.done
	}
}

// errNobody is why a pull ends that nobody waits for.
var errNobody = errors.New("nobody waits for the pull any more")

// tell tells all who wait, but for those who are slow to hear.
func (m *Remote) tell(f *flight, ev api.ImageEvent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := range f.tell {
		select {
		case c <- ev:
		default:
		}
	}
}
