package edge

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
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

// rivals compete for a node.
type rivals struct {
	*account
	n *node

	counts                                     sync.Mutex
	created, refused, patched, unpatched, left int
}

func (v *rivals) count(c *int) {
	v.counts.Lock()
	defer v.counts.Unlock()
	*c++
}

func randomSize(r *rand.Rand) (admission.Claim, string) {
	c := admission.Claim{Sandboxes: 1, MemoryMB: 1 + r.Int64N(900), MilliCPU: 10 * (1 + r.Int64N(90)), PIDs: 3 + r.Int64N(400)}
	return c, fmt.Sprintf(`{"resources":{"memory_mb":%d,"cpu":%v,"pids":%d}}`, c.MemoryMB, float64(c.MilliCPU)/1000, c.PIDs)
}

// live makes a sandbox, changes it some times and stops it; one in ten leaves before it is answered.
func (v *rivals) live(all context.Context, r *rand.Rand) {
	ctx, cancel := context.WithCancel(all)
	defer cancel()
	want, body := randomSize(r)
	from := v.change(admission.Claim{}, want)
	if r.IntN(10) == 0 { // whatever was reserved is given back, some time
		time.AfterFunc(time.Duration(r.IntN(2000))*time.Microsecond, cancel)
	}
	var sb api.Sandbox
	err := v.n.call(ctx, as("p", "sandbox.create", "", []byte(`{"image":"busybox",`+body[1:])), &sb)
	switch {
	case ctx.Err() != nil:
		v.count(&v.left)
		return
	case err != nil:
		v.count(&v.refused)
		v.judge("create", from, err, want)
		v.change(admission.Claim{}, negative(want))
		return
	}
	v.count(&v.created)
	v.change(want, admission.Claim{})
	have := want
	for range r.IntN(4) {
		have = v.patch(all, sb.ID, have, r)
	}
	v.change(negative(have), admission.Claim{})
	v.n.must("sandbox.stop", sb.ID, nil, nil)
	v.change(admission.Claim{}, negative(have))
}

// patch changes a sandbox's limits, or doesn't, and returns what it has then.
func (v *rivals) patch(ctx context.Context, id string, have admission.Claim, r *rand.Rand) admission.Claim {
	next, body := randomSize(r)
	rise, least := next.Max(have).Plus(negative(have)), have.Plus(next).Plus(negative(next.Max(have)))
	from := v.change(least.Plus(negative(have)), rise)
	err := v.n.call(ctx, as("p", "sandbox.patch", id, []byte(body)), nil)
	if err == nil {
		v.count(&v.patched)
		v.change(next.Plus(negative(least)), next.Plus(negative(have)).Plus(negative(rise)))
		return next
	}
	v.count(&v.unpatched)
	v.judge("patch", from, err, rise)
	v.change(have.Plus(negative(least)), negative(rise))
	return have
}

// judge demands that a refusal is one for want of room, and true.
func (v *rivals) judge(what string, from int, err error, asked admission.Claim) {
	e := api.AsError(err)
	if e.Code == api.CodeNoCapacity {
		err = v.explains(from, e, asked)
	}
	if err != nil {
		v.n.t.Errorf("%s: %v", what, err)
	}
}

// TestRoomUnderContention has hundreds of creates, patches and stops of all sizes compete for a small node.
func TestRoomUnderContention(t *testing.T) {
	n := startNode(t, func(c *Config) {
		c.Capacity = Capacity{Sandboxes: 12, MemoryMB: 3000, PIDs: 1200, CPURatio: 3}
	})
	v := &rivals{account: &account{total: n.edge.room.Total()}, n: n}
	const workers, each = 40, 25
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), uint64(time.Now().UnixNano())))
			for range each {
				v.live(t.Context(), r)
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
	if most.Max(v.total) != v.total {
		t.Errorf("%+v was promised of %+v", most, v.total)
	}
	if len(v.over) > 0 {
		t.Errorf("%+v was held of %+v", v.over[0], v.total)
	}
	until(t, "what nobody waits for any more is taken back", func() bool {
		return !slices.ContainsFunc(n.edge.all(), func(sb *sandbox) bool { return sb.view().State == api.StateCreating })
	})
	// Some were told of theirs in the moment in which they left.
	if told := len(n.fake.living()); told > v.left {
		t.Errorf("%d live, of %d whose callers have left", told, v.left)
	}
	if err := n.edge.StopAll(t.Context(), nil); err != nil {
		t.Error(err)
	}
	until(t, "nothing is held any more", func() bool { return n.edge.room.Used() == (admission.Claim{}) && len(n.fake.living()) == 0 })
	// All of it can be had again.
	whole := n.create(fmt.Sprintf(`{"image":"busybox","resources":{"memory_mb":%d,"pids":%d}}`, v.total.MemoryMB, v.total.PIDs))
	wantCode(t, n.call(t.Context(), as("p", "sandbox.create", "", []byte(plain)), nil), api.CodeNoCapacity)
	n.must("sandbox.stop", whole.ID, nil, nil)
	t.Logf("%d created, %d refused, %d left by their callers; %d changed, %d not", v.created, v.refused, v.left, v.patched, v.unpatched)
	if v.created == 0 || v.refused == 0 || v.patched == 0 || v.unpatched == 0 {
		t.Error("nothing of some kind")
	}
}
