package edge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dsec-io/dsec/internal/edge/idem"
	"github.com/dsec-io/dsec/internal/edge/images"
	"github.com/dsec-io/dsec/internal/edge/instance"
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

	EndedKeep   time.Duration    // how long an ended sandbox's record can be read; default 1 h
	ShortWait   time.Duration    // how long a request waits for a short state to pass; default 30 s
	StopTimeout time.Duration    // how long the end of a sandbox may take before it counts as failed; default 30 s
	Clock       func() time.Time // the wall clock; tests have one that is wrong; nil: the machine's
	Keys        idem.Limits      // of what is kept for idempotency keys
	Parallel    int              // adoptions and stops at one time; default 16

	machine func() (machineState, error) // how the machine is doing; tests have another
	files   files                        // where records are written; tests make it fail and die
}

// Capacity is how much an edge promises to sandboxes. Zero means the default.
//
// The limits of all sandboxes may add up to many times the machine: a sandbox of an agent waits most of the time and
// stays far below its limits. What the machine really has left decides the rest: a create is refused while little memory
// or few process numbers are free.
type Capacity struct {
	Sandboxes   int     // default 10,000
	MemoryRatio float64 // memory promised per memory of the machine; default 25
	MemoryMB    int64   // memory promised in all, instead of the ratio
	ReserveMB   int64   // memory that stays available: creates are refused below it; default 5 % of the machine's, at least 256
	CPURatio    float64 // cores promised per core of the machine; default 1,000: cores are shared by weight, whatever is promised
	PIDRatio    float64 // processes promised per process that the machine can number (kernel.pid_max); default 20
	PIDs        int64   // processes promised in all, instead of the ratio
}

func (k Capacity) valid() bool {
	for _, ratio := range []float64{k.MemoryRatio, k.CPURatio, k.PIDRatio} {
		if ratio < 0 || math.IsNaN(ratio) || ratio > maxRatio {
			return false
		}
	}
	return k.Sandboxes >= 0 && k.MemoryMB >= 0 && k.ReserveMB >= 0 && k.PIDs >= 0
}

// maxRatio keeps what is promised within the numbers that count it.
const maxRatio = 1e6

// on returns k with its defaults for a machine.
func (k Capacity) on(m machineState) Capacity {
	k.Sandboxes = cmp.Or(k.Sandboxes, 10_000)
	k.CPURatio = cmp.Or(k.CPURatio, 1000)
	k.MemoryRatio = cmp.Or(k.MemoryRatio, 25)
	k.PIDRatio = cmp.Or(k.PIDRatio, 20)
	k.MemoryMB = cmp.Or(k.MemoryMB, int64(float64(m.memoryMB)*k.MemoryRatio))
	k.PIDs = cmp.Or(k.PIDs, int64(float64(m.pids)*k.PIDRatio))
	k.ReserveMB = cmp.Or(k.ReserveMB, max(m.memoryMB/20, 256))
	return k
}

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
	if !c.Capacity.valid() {
		faults = append(faults, fmt.Errorf("edge: capacity %+v", c.Capacity))
	}
	if c.EndedKeep < 0 || c.ShortWait < 0 || c.StopTimeout < 0 || c.Parallel < 0 {
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
	c.Parallel = cmp.Or(c.Parallel, 16)
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.files == nil {
		c.files = osFiles{}
	}
	if c.machine == nil {
		c.machine = readMachine
	}
	now, err := c.machine()
	if err != nil {
		return c, err
	}
	c.Capacity = c.Capacity.on(now)
	return c, nil
}

func (k Capacity) total() claim {
	return claim{sandboxes: int64(k.Sandboxes), memoryMB: k.MemoryMB, milliCPU: int64(k.CPURatio * float64(runtime.NumCPU()) * 1000), pids: k.PIDs}
}
