package edge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// maxHome is the highest home number that fits into an id.
const maxHome = 1<<20 - 1

// Config is what an [Edge] is made of. Instance, Backend and Image are required.
type Config struct {
	Instance *Instance
	Backend  Backend
	// Image tells what an image says about its sandboxes; its errors reach the client, so they are *api.Error.
	Image    func(ctx context.Context, name string) (ImageConfig, error)
	Logger   *slog.Logger          // nil: nowhere
	Metrics  prometheus.Registerer // nil: nowhere
	Home     uint32                // the edge's number, never given to another; below 2^20
	Capacity Capacity

	EndedKeep   time.Duration // how long an ended sandbox's record can be read; default 1 h
	ShortWait   time.Duration // how long a request waits for a short state to pass; default 30 s
	StopTimeout time.Duration // how long the end of a sandbox may take before it counts as failed; default 30 s
	Parallel    int           // adoptions and stops at one time; default 16

	files files // where records are written; tests make it fail and die
}

// Capacity is what an edge promises to sandboxes in all. Zero means the default.
type Capacity struct {
	Sandboxes int     // default 10,000
	MemoryMB  int64   // default 80 % of the machine's memory
	CPURatio  float64 // cores promised per core of the machine; default 50: most sandboxes of agents wait
	PIDs      int64   // default 4,194,304, the most that Linux can number
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
	if c.Home > maxHome {
		faults = append(faults, fmt.Errorf("edge: home %d is above %d", c.Home, maxHome))
	}
	k := c.Capacity
	if k.Sandboxes < 0 || k.MemoryMB < 0 || k.PIDs < 0 || k.CPURatio < 0 || math.IsNaN(k.CPURatio) || math.IsInf(k.CPURatio, 0) {
		faults = append(faults, fmt.Errorf("edge: capacity %+v", k))
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
	c.Capacity.Sandboxes = cmp.Or(c.Capacity.Sandboxes, 10_000)
	c.Capacity.CPURatio = cmp.Or(c.Capacity.CPURatio, 50)
	c.Capacity.PIDs = cmp.Or(c.Capacity.PIDs, 4_194_304)
	if c.files == nil {
		c.files = osFiles{}
	}
	if c.Capacity.MemoryMB == 0 {
		mb, err := machineMemoryMB()
		if err != nil {
			return c, err
		}
		c.Capacity.MemoryMB = mb * 8 / 10
	}
	return c, nil
}

func machineMemoryMB() (int64, error) {
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("memory of the machine: %w", err)
	}
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "MemTotal:" {
			kb, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("memory of the machine: %w", err)
			}
			return kb / 1024, nil
		}
	}
	return 0, errors.New("memory of the machine: no MemTotal in /proc/meminfo")
}

func (k Capacity) total() claim {
	return claim{sandboxes: int64(k.Sandboxes), memoryMB: k.MemoryMB, milliCPU: int64(k.CPURatio * float64(runtime.NumCPU()) * 1000), pids: k.PIDs}
}
