package admission

import (
	"math"

	"github.com/dsec-io/dsec/api"
)

// Claim is what one sandbox takes of the machine's capacity, or all of them together.
type Claim struct{ Sandboxes, MemoryMB, MilliCPU, PIDs int64 }

// ClaimOf is the claim of a sandbox with these limits, all of which are set.
func ClaimOf(r api.Resources) Claim {
	return Claim{Sandboxes: 1, MemoryMB: *r.MemoryMB, MilliCPU: milliCPU(*r.CPU), PIDs: *r.PIDs}
}

// milliCPU rounds up, so that many small shares don't add up to more than was counted.
func milliCPU(cores float64) int64 { return int64(math.Ceil(cores * 1000)) }

// Plus adds two claims.
func (c Claim) Plus(d Claim) Claim {
	return Claim{c.Sandboxes + d.Sandboxes, c.MemoryMB + d.MemoryMB, c.MilliCPU + d.MilliCPU, c.PIDs + d.PIDs}
}

// minus takes d away from c.
func (c Claim) minus(d Claim) Claim {
	return Claim{c.Sandboxes - d.Sandboxes, c.MemoryMB - d.MemoryMB, c.MilliCPU - d.MilliCPU, c.PIDs - d.PIDs}
}

// Max is the larger of two claims, kind by kind.
func (c Claim) Max(d Claim) Claim {
	return Claim{max(c.Sandboxes, d.Sandboxes), max(c.MemoryMB, d.MemoryMB), max(c.MilliCPU, d.MilliCPU), max(c.PIDs, d.PIDs)}
}
