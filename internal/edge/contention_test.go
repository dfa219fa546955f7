package edge

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/edge/admission"
)

// account is what a test knows of who may have what, without asking the edge: what is certainly held never exceeds the
// capacity, and what is possibly held has filled it whenever somebody was refused.
type account struct {
	mu       sync.Mutex
	total    admission.Claim
	certain  admission.Claim
	possible admission.Claim
	past     []admission.Claim // possible, after each change
	over     []admission.Claim // certain, where it was above the total
}

func (a *account) change(certain, possible admission.Claim) (at int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.certain, a.possible = a.certain.Plus(certain), a.possible.Plus(possible)
	if c, t := a.certain, a.total; c.Sandboxes > t.Sandboxes || c.MemoryMB > t.MemoryMB || c.MilliCPU > t.MilliCPU || c.PIDs > t.PIDs {
		a.over = append(a.over, c)
	}
	a.past = append(a.past, a.possible)
	return len(a.past) - 1
}

func negative(c admission.Claim) admission.Claim {
	return admission.Claim{Sandboxes: -c.Sandboxes, MemoryMB: -c.MemoryMB, MilliCPU: -c.MilliCPU, PIDs: -c.PIDs}
}

// explains tells whether there was a moment since from, the refused change left out, in which asked didn't fit.
func (a *account) explains(from int, e *api.Error, refused admission.Claim) error {
	var asked, free, total int64
	what := map[string]func(admission.Claim) int64{
		"":                    func(c admission.Claim) int64 { return c.Sandboxes },
		"resources.memory_mb": func(c admission.Claim) int64 { return c.MemoryMB },
		"resources.cpu":       func(c admission.Claim) int64 { return c.MilliCPU },
		"resources.pids":      func(c admission.Claim) int64 { return c.PIDs },
	}[e.Field]
	unit := map[string]string{"": "sandboxes", "resources.memory_mb": "MiB of memory", "resources.cpu": "thousandths of a core", "resources.pids": "processes"}[e.Field]
	if _, err := fmt.Sscanf(e.Detail, "%d more "+unit+" are asked for; %d of %d are free", &asked, &free, &total); err != nil {
		return fmt.Errorf("%q: %w", e.Detail, err)
	}
	if asked <= free || total != what(a.total) || e.RetryMS <= 0 || e.HTTP != 503 {
		return fmt.Errorf("%d more are asked for of %d free, in all %d, retry after %d ms, status %d", asked, free, total, e.RetryMS, e.HTTP)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.past[from:] {
		if what(p)-what(refused)+asked > total {
			return nil
		}
	}
	return fmt.Errorf("refused %d with %d free of %d though no moment was so full: %+v", asked, free, total, a.past[from:])
}

// TestRoomUnderContention has hundreds of creates, patches and stops of all sizes compete for a small node.
func TestRoomUnderContention(t *testing.T) {
	n := startNode(t, func(c *Config) {
		c.Capacity = Capacity{Sandboxes: 12, MemoryMB: 3000, PIDs: 1200, CPURatio: 3}
	})
	a := &account{total: n.edge.room.Total()}
	const workers, each = 40, 25
	var counts struct {
		sync.Mutex
		created, refused, patched, unpatched, left int
	}
	count := func(c *int) { counts.Lock(); *c++; counts.Unlock() }
	size := func(r *rand.Rand) (admission.Claim, string) {
		c := admission.Claim{Sandboxes: 1, MemoryMB: 1 + r.Int64N(900), MilliCPU: 10 * (1 + r.Int64N(90)), PIDs: 3 + r.Int64N(400)}
		return c, fmt.Sprintf(`{"memory_mb":%d,"cpu":%v,"pids":%d}`, c.MemoryMB, float64(c.MilliCPU)/1000, c.PIDs)
	}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), uint64(time.Now().UnixNano())))
			for range each {
				ctx, cancel := context.WithCancel(t.Context())
				want, body := size(r)
				from := a.change(admission.Claim{}, want)
				if r.IntN(10) == 0 { // its caller leaves: whatever was reserved is given back, some time
					time.AfterFunc(time.Duration(r.IntN(2000))*time.Microsecond, cancel)
				}
				var sb api.Sandbox
				err := n.call(ctx, as("p", "sandbox.create", "", []byte(`{"image":"busybox","resources":`+body+`}`)), &sb)
				if ctx.Err() != nil {
					count(&counts.left)
					cancel()
					continue
				}
				cancel()
				if err != nil {
					count(&counts.refused)
					if e := api.AsError(err); e.Code != api.CodeNoCapacity {
						t.Errorf("create: %v", err)
					} else if err := a.explains(from, e, want); err != nil {
						t.Errorf("create: %v", err)
					}
					a.change(admission.Claim{}, negative(want))
					continue
				}
				count(&counts.created)
				a.change(want, admission.Claim{})
				have := want
				for range r.IntN(4) {
					next, body := size(r)
					rise, least := next.Max(have).Plus(negative(have)), have.Plus(next).Plus(negative(next.Max(have)))
					from := a.change(least.Plus(negative(have)), rise)
					err := n.call(t.Context(), as("p", "sandbox.patch", sb.ID, []byte(`{"resources":`+body+`}`)), nil)
					if err == nil {
						count(&counts.patched)
						a.change(next.Plus(negative(least)), next.Plus(negative(have)).Plus(negative(rise)))
						have = next
						continue
					}
					count(&counts.unpatched)
					if e := api.AsError(err); e.Code != api.CodeNoCapacity {
						t.Errorf("patch: %v", err)
					} else if err := a.explains(from, e, rise); err != nil {
						t.Errorf("patch: %v", err)
					}
					a.change(have.Plus(negative(least)), negative(rise))
				}
				a.change(negative(have), admission.Claim{})
				n.must("sandbox.stop", sb.ID, nil, nil)
				a.change(admission.Claim{}, negative(have))
			}
		})
	}
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	most := n.edge.room.Used()
	for watching := true; watching; {
		select {
		case <-ended:
			watching = false
		default:
			most = most.Max(n.edge.room.Used())
			runtime.Gosched()
		}
	}
	if most.Max(a.total) != a.total {
		t.Errorf("%+v was promised of %+v", most, a.total)
	}
	if len(a.over) > 0 {
		t.Errorf("%+v was held of %+v", a.over[0], a.total)
	}
	// Some were told of theirs in the moment in which they left.
	if told := len(n.fake.living()); told > counts.left {
		t.Errorf("%d live, of %d whose callers have left", told, counts.left)
	}
	if err := n.edge.StopAll(t.Context(), nil); err != nil {
		t.Error(err)
	}
	until(t, "nothing is held any more", func() bool { return n.edge.room.Used() == (admission.Claim{}) && len(n.fake.living()) == 0 })
	// All of it can be had again.
	whole := n.create(fmt.Sprintf(`{"image":"busybox","resources":{"memory_mb":%d,"pids":%d}}`, a.total.MemoryMB, a.total.PIDs))
	wantCode(t, n.call(t.Context(), as("p", "sandbox.create", "", []byte(plain)), nil), api.CodeNoCapacity)
	n.must("sandbox.stop", whole.ID, nil, nil)
	t.Logf("%d created, %d refused, %d left by their callers; %d changed, %d not", counts.created, counts.refused, counts.left, counts.patched, counts.unpatched)
	if counts.created == 0 || counts.refused == 0 || counts.patched == 0 || counts.unpatched == 0 {
		t.Error("nothing of some kind")
	}
}
