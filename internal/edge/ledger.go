package edge

import (
	"sync"

	"github.com/dsec-io/dsec/api"
)

// How soon a refused create may be tried again: sandboxes of agents come and go by the second.
const retryCapacityMS = 1000

// claim is what one sandbox takes of the machine's capacity, or all of them together.
type claim struct{ sandboxes, memoryMB, milliCPU, pids int64 }

func claimOf(r api.Resources) claim {
	return claim{sandboxes: 1, memoryMB: *r.MemoryMB, milliCPU: milliCPU(*r.CPU), pids: *r.PIDs}
}

// milliCPU rounds up, so that many small shares don't add up to more than was counted.
func milliCPU(cores float64) int64 {
	m := int64(cores * 1000)
	if float64(m) < cores*1000 {
		m++
	}
	return m
}

func (c claim) plus(d claim) claim {
	return claim{c.sandboxes + d.sandboxes, c.memoryMB + d.memoryMB, c.milliCPU + d.milliCPU, c.pids + d.pids}
}

func (c claim) minus(d claim) claim {
	return claim{c.sandboxes - d.sandboxes, c.memoryMB - d.memoryMB, c.milliCPU - d.milliCPU, c.pids - d.pids}
}

func (c claim) max(d claim) claim {
	return claim{max(c.sandboxes, d.sandboxes), max(c.memoryMB, d.memoryMB), max(c.milliCPU, d.milliCPU), max(c.pids, d.pids)}
}

// ledger counts what is promised to whom. It never promises more than the total, but for what was adopted: that is
// there, whatever the total has become.
type ledger struct {
	total claim

	// mu guards used and held; used is the sum of held.
	mu   sync.Mutex
	used claim
	held map[string]claim
}

func newLedger(total claim) *ledger { return &ledger{total: total, held: map[string]claim{}} }

// reserve admits a sandbox or says what there is too little of.
func (l *ledger) reserve(id string, c claim) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.fits(claim{}, c); err != nil {
		return err
	}
	l.used, l.held[id] = l.used.plus(c), c
	return nil
}

// adopt counts a sandbox that exists already.
func (l *ledger) adopt(id string, c claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used, l.held[id] = l.used.minus(l.held[id]).plus(c), c
}

// change sets what a sandbox has, where what grows must fit. A sandbox that has nothing any more has ended.
func (l *ledger) change(id string, c claim) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	old, ok := l.held[id]
	if !ok {
		return api.Errorf(api.CodeWrongState, "sandbox %s has ended", id)
	}
	if err := l.fits(old, c); err != nil {
		return err
	}
	l.used, l.held[id] = l.used.minus(old).plus(c), c
	return nil
}

// release gives back what a sandbox has. A repeat does nothing.
func (l *ledger) release(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used = l.used.minus(l.held[id])
	delete(l.held, id)
}

func (l *ledger) inUse() claim {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used
}

// fits checks each kind that grows from old to c. The caller holds l.mu.
func (l *ledger) fits(old, c claim) error {
	for _, k := range []struct {
		what, field           string
		old, new, used, total int64
	}{
		{"sandboxes", "", old.sandboxes, c.sandboxes, l.used.sandboxes, l.total.sandboxes},
		{"MiB of memory", "resources.memory_mb", old.memoryMB, c.memoryMB, l.used.memoryMB, l.total.memoryMB},
		{"thousandths of a core", "resources.cpu", old.milliCPU, c.milliCPU, l.used.milliCPU, l.total.milliCPU},
		{"processes", "resources.pids", old.pids, c.pids, l.used.pids, l.total.pids},
	} {
		if k.new <= k.old {
			continue
		}
		if k.new > k.total {
			return api.FieldError(api.CodeImpossible, k.field, "ask for less", "%d %s are asked for; this machine has %d in all", k.new, k.what, k.total)
		}
		if free := k.total - k.used; k.new-k.old > free {
			err := api.FieldError(api.CodeNoCapacity, k.field, "try again later, or stop sandboxes",
				"%d more %s are asked for; %d of %d are free", k.new-k.old, k.what, max(free, 0), k.total)
			err.RetryMS = retryCapacityMS
			return err
		}
	}
	return nil
}
