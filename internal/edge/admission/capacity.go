package admission

import (
	"cmp"
	"math"
	"runtime"

	"github.com/dsec-io/dsec/api"
)

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

// maxRatio keeps what is promised within the numbers that count it.
const maxRatio = 1e6

// Valid tells whether no number is negative, or beyond what can be counted.
func (k Capacity) Valid() bool {
	for _, ratio := range []float64{k.MemoryRatio, k.CPURatio, k.PIDRatio} {
		if ratio < 0 || math.IsNaN(ratio) || ratio > maxRatio {
			return false
		}
	}
	return k.Sandboxes >= 0 && k.MemoryMB >= 0 && k.ReserveMB >= 0 && k.PIDs >= 0
}

// On returns k with its defaults for a machine.
func (k Capacity) On(m State) Capacity {
	k.Sandboxes = cmp.Or(k.Sandboxes, 10_000)
	k.CPURatio = cmp.Or(k.CPURatio, 1000)
	k.MemoryRatio = cmp.Or(k.MemoryRatio, 25)
	k.PIDRatio = cmp.Or(k.PIDRatio, 20)
	k.MemoryMB = cmp.Or(k.MemoryMB, int64(float64(m.MemoryMB)*k.MemoryRatio))
	k.PIDs = cmp.Or(k.PIDs, int64(float64(m.PIDs)*k.PIDRatio))
	k.ReserveMB = cmp.Or(k.ReserveMB, max(m.MemoryMB/20, 256))
	return k
}

// Spare tells whether the machine has memory for what may never be wanted: twice what stays available for sandboxes that
// are, so that what is made ahead is never why one is refused.
func (k Capacity) Spare(m State) bool { return m.AvailableMB >= 2*k.On(m).ReserveMB }

// ReadMemory is [Read] of the memory alone.
func ReadMemory() (s State, err error) {
	err = s.readMemory(procFolder)
	return s, err
}

func (k Capacity) total() Claim {
	return Claim{Sandboxes: int64(k.Sandboxes), MemoryMB: k.MemoryMB, MilliCPU: int64(k.CPURatio * float64(runtime.NumCPU()) * 1000), PIDs: k.PIDs}
}

// Possible refuses what no moment could give: a limit above the machine's cores would promise what isn't there.
func Possible(r api.Resources) error {
	if n := runtime.NumCPU(); r.CPU != nil && *r.CPU > float64(n) {
		return api.FieldError(api.CodeImpossible, "resources.cpu", "ask for less", "%v cores are asked for; this machine has %d", *r.CPU, n)
	}
	return nil
}
