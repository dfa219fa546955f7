package edge

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/edge/spec"
)

// ErrGone is what [Backend.Adopt] answers for a sandbox whose init isn't alive any more.
var ErrGone = errors.New("sandbox is gone")

// GoneError is an [ErrGone] whose reason is known: its aether ended it while no edge was there.
type GoneError struct{ Reason string }

func (e *GoneError) Error() string { return e.Reason }

// Unwrap is [ErrGone].
func (e *GoneError) Unwrap() error { return ErrGone }

// ErrStuck is in the error of a [Box.Pause] that failed and couldn't be undone: some of the sandbox may stand still.
var ErrStuck = errors.New("sandbox may stand still")

// Backend makes sandboxes of one kind.
//
// Life: the edge first calls Adopt (alive when it was last seen) or Clean (half-made or dead) for everything it has a
// record of, then Warm where the backend is a [Warmer], then Start at will. All methods may run concurrently, for
// different ids; for one id the edge calls one method at a time.
type Backend interface {
	Name() string
	// Start makes a sandbox and returns when an exec in it would be answered. When it fails, or ctx ends first, the
	// edge calls Clean with what was last persisted.
	Start(ctx context.Context, p BoxParams) (Box, error)
	// Adopt takes over a living sandbox from the state that was last persisted, or answers ErrGone.
	Adopt(ctx context.Context, id string, state json.RawMessage) (Box, error)
	// Clean ends and removes whatever is left of a sandbox; nothing being left is success. The state may be nil.
	Clean(ctx context.Context, id string, state json.RawMessage) error
	// Close gives back what the backend holds in this process. Sandboxes go on.
	Close(ctx context.Context) error
}

// Warmer is a Backend that makes things ahead. The edge calls Warm once, after all adoptions, so that nothing that an
// adopted sandbox holds (its id range) is given out before.
type Warmer interface{ Warm() }

// Stocker is a Backend that may have sandboxes ready whose ids are fixed. Take reserves one that does for the project, the
// effective spec and the digest of its image; the edge then calls Start with its id, or PutBack, which does nothing for any other id.
type Stocker interface {
	Take(project string, s api.Spec, digest string) (id string, ok bool)
	PutBack(id string)
}

// Lister is a Backend that can tell which sandboxes exist, those that the edge doesn't know of too. The edge calls List
// once, after all adoptions and before Warm, and has Clean remove what has no record.
type Lister interface {
	List() ([]string, error)
}

// BoxParams says what to make.
type BoxParams struct {
	ID      string
	Project string
	Spec    api.Spec // effective and valid
	Env     []string // "K=V": the image's and the spec's
	// Persist stores the backend's state in the sandbox's record. Call it with what was reserved before anything exists
	// in the kernel, and with the process's identity before Start returns. A sandbox that was ready (see Stocker) needs none:
	// it has no record until Start has returned, and what has no record is removed at the next start.
	Persist func(state json.RawMessage) error
}

// Box is a living sandbox.
type Box interface {
	State() json.RawMessage
	Done() <-chan struct{} // closed when its init has died
	// Open opens a stream to the sandbox's aether. An error means that nothing was sent.
	Open(ctx context.Context, o aether.Open) (*aether.Stream, error)
	// Stop kills all of it, waits, and removes what it had in the kernel and on disk. A repeat is success.
	Stop(ctx context.Context) error
	Governed
}

// Governed is the part of a [Box] that limits, measures and holds it.
type Governed interface {
	SetLimits(ctx context.Context, r api.Resources) error
	Usage() (Usage, error)
	// Pause makes all of the sandbox stand still, and returns when it does. When that fails, or ctx ends first, all of it
	// goes on, or the error has ErrStuck. A repeat is success.
	Pause(ctx context.Context) error
	// Resume lets it go on. After an error some of it may still stand still, and Resume can be called again. A repeat is
	// success.
	Resume(ctx context.Context) error
	// Paused is what the kernel says: whether it stands still, or is about to.
	Paused() (bool, error)
}

// Usage is what a sandbox uses now, and has used.
type Usage struct {
	MemoryBytes    int64 // without the cache
	CacheBytes     int64 // of files that the kernel keeps as long as nobody needs the memory
	PeakBytes      int64 // of both together; 0: not known
	CPUNanos       int64
	ThrottledNanos int64 // how long its limit held it back
	PIDs           int64
	PIDsRefused    int64
	OOMKills       int64
}

// ImageConfig is what an image says about its sandboxes.
type ImageConfig = spec.Image
