package admission

import (
	"fmt"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
)

// How soon a refused create may be tried again: sandboxes of agents come and go by the second.
const retryMS = 1000

// Room is what a machine has for sandboxes, and who has what of it. It never promises more than the capacity, but for
// what was adopted: that is there, whatever the capacity has become.
type Room struct {
	capacity Capacity
	total    Claim
	read     func() (State, error)

	// mu guards what follows. It is held while the machine is looked at, so that nobody is refused for the sake of one
	// who is refused in turn.
	mu     sync.Mutex
	used   Claim // the sum of held
	held   map[string]Claim
	making map[string]bool // reserved, and not known to be made yet
	seen   time.Time       // when the machine was looked at last
	state  State           // as it was then
	since  int64           // made since then
}

// New looks at the machine and makes the room of a capacity on it. A nil read asks the kernel.
func New(k Capacity, read func() (State, error)) (*Room, error) {
	if read == nil {
		read = Read
	}
	now, err := read()
	if err != nil {
		return nil, err
	}
	k = k.On(now)
	return &Room{capacity: k, total: k.total(), read: read, held: map[string]Claim{}, making: map[string]bool{}}, nil
}

// Reserve admits a sandbox, or says what there is too little of. It counts as being made until [Room.Made] or
// [Room.Release].
func (r *Room) Reserve(id string, c Claim) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.fits(Claim{}, c); err != nil {
		return err
	}
	if err := r.bears(int64(len(r.making)) + 1); err != nil {
		return err
	}
	r.used, r.held[id] = r.used.Plus(c), c
	r.making[id] = true
	return nil
}

// Made says that all that a sandbox takes at first has been taken: it shows when the machine is looked at.
func (r *Room) Made(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.madeLocked(id)
}

func (r *Room) madeLocked(id string) {
	if r.making[id] {
		delete(r.making, id)
		r.since++
	}
}

// Adopt counts a sandbox that exists already.
func (r *Room) Adopt(id string, c Claim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used, r.held[id] = r.used.minus(r.held[id]).Plus(c), c
}

// Change sets what a sandbox has, where what grows must fit. A sandbox that has nothing any more has ended.
func (r *Room) Change(id string, c Claim) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	old, ok := r.held[id]
	if !ok {
		return api.Errorf(api.CodeWrongState, "sandbox %s has ended", id)
	}
	if err := r.fits(old, c); err != nil {
		return err
	}
	if c.MemoryMB > old.MemoryMB || c.PIDs > old.PIDs {
		if err := r.bears(int64(len(r.making)) + 1); err != nil {
			return err
		}
	}
	r.used, r.held[id] = r.used.minus(old).Plus(c), c
	return nil
}

// Release gives back what a sandbox has. A repeat does nothing.
func (r *Room) Release(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.madeLocked(id)
	r.used = r.used.minus(r.held[id])
	delete(r.held, id)
}

// Total is the capacity as a claim.
func (r *Room) Total() Claim { return r.total }

// Used is what all sandboxes have together.
func (r *Room) Used() Claim {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.used
}

// Holds tells whether a sandbox has anything.
func (r *Room) Holds(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.held[id]
	return ok
}

// fits checks each kind that grows from old to c. The caller holds r.mu.
func (r *Room) fits(old, c Claim) error {
	for _, k := range []struct {
		what, field           string
		old, new, used, total int64
	}{
		{"sandboxes", "", old.Sandboxes, c.Sandboxes, r.used.Sandboxes, r.total.Sandboxes},
		{"MiB of memory", "resources.memory_mb", old.MemoryMB, c.MemoryMB, r.used.MemoryMB, r.total.MemoryMB},
		{"thousandths of a core", "resources.cpu", old.MilliCPU, c.MilliCPU, r.used.MilliCPU, r.total.MilliCPU},
		{"processes", "resources.pids", old.PIDs, c.PIDs, r.used.PIDs, r.total.PIDs},
	} {
		if k.new <= k.old {
			continue
		}
		if k.new > k.total {
			return api.FieldError(api.CodeImpossible, k.field, "ask for less", "%d %s are asked for; this machine has %d in all", k.new, k.what, k.total)
		}
		if free := k.total - k.used; k.new-k.old > free {
			return full(k.field, fmt.Sprintf("%d more %s are asked for; %d of %d are free", k.new-k.old, k.what, max(free, 0), k.total))
		}
	}
	return nil
}

// full is the refusal of what could be had at another time.
func full(field, detail string) *api.Error {
	err := api.FieldError(api.CodeNoCapacity, field, "try again later, or stop sandboxes", "%s", detail)
	err.RetryMS = retryMS
	return err
}
