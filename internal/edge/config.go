package edge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dsec-io/dsec/internal/edge/admission"
	"github.com/dsec-io/dsec/internal/edge/disk"
	"github.com/dsec-io/dsec/internal/edge/idem"
	"github.com/dsec-io/dsec/internal/edge/images"
	"github.com/dsec-io/dsec/internal/edge/instance"
	"github.com/dsec-io/dsec/internal/edge/records"
	"github.com/dsec-io/dsec/internal/fault"
	"github.com/dsec-io/dsec/internal/linux/limits"
)

// Config is what an [Edge] is made of. Instance, Backend and Image are required.
type Config struct {
	Instance *Instance
	Backend  Backend
	// Image tells what an image says about its sandboxes; its errors reach the client, so they are *api.Error.
	Image    func(ctx context.Context, name string) (ImageConfig, error)
	Images   images.Store          // which clients may change; nil: none
	Logger   *slog.Logger          // nil: nowhere
	Metrics  prometheus.Registerer // nil: nowhere
	Home     uint32                // the edge's number, never given to another; below 2^20
	Capacity Capacity
	Limits   []limits.Limit // of the kernel, as they were found and raised at the start; told by "node.get"

	EndedKeep   time.Duration    // how long an ended sandbox's record can be read; default 1 h
	ShortWait   time.Duration    // how long a request waits for a short state to pass; default 30 s
	StopTimeout time.Duration    // how long the end of a sandbox may take before it counts as failed; default 30 s
	PauseTime   time.Duration    // how long a sandbox may take to stand still, or to go on, before that counts as failed; default 10 s
	Clock       func() time.Time // the wall clock; tests have one that is wrong; nil: the machine's
	Keys        idem.Limits      // of what is kept for idempotency keys
	Parallel    int              // adoptions and stops at one time; default 16
	Faults      *fault.Set       // what tests make go wrong; nil: nothing

	machine func() (admission.State, error) // how the machine is doing; tests have another; nil: the kernel is asked
	files   records.Files                   // where records are written; tests make it fail and die
}

// Capacity is how much an edge promises to sandboxes; see [admission.Capacity].
type Capacity = admission.Capacity

// Validate reports every fault.
func (c Config) Validate() error {
	var faults []error
	if c.Instance == nil {
		faults = append(faults, errors.New("edge: no instance"))
	}
	if c.Backend == nil {
		faults = append(faults, errors.New("edge: no backend"))
	}
	if c.Image == nil {
		faults = append(faults, errors.New("edge: no images"))
	}
	if c.Home > instance.MaxHome {
		faults = append(faults, fmt.Errorf("edge: home %d is above %d", c.Home, instance.MaxHome))
	}
	if !c.Capacity.Valid() {
		faults = append(faults, fmt.Errorf("edge: capacity %+v", c.Capacity))
	}
	if c.EndedKeep < 0 || c.ShortWait < 0 || c.StopTimeout < 0 || c.PauseTime < 0 || c.Parallel < 0 {
		faults = append(faults, errors.New("edge: negative time or count"))
	}
	return errors.Join(faults...)
}

func (c Config) withDefaults() (Config, error) {
	if err := c.Validate(); err != nil {
		return c, err
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = prometheus.NewRegistry()
	}
	c.EndedKeep = cmp.Or(c.EndedKeep, time.Hour)
	c.ShortWait = cmp.Or(c.ShortWait, 30*time.Second)
	c.StopTimeout = cmp.Or(c.StopTimeout, 30*time.Second)
	c.PauseTime = cmp.Or(c.PauseTime, 10*time.Second)
	c.Parallel = cmp.Or(c.Parallel, 16)
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.files == nil {
		c.files = disk.Files{Faults: c.Faults}
	}
	return c, nil
}
