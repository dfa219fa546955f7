package pause_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dsec-io/dsec/internal/chronus/pause"
)

// group is a sandbox that says what is done to it.
type group struct {
	frozen atomic.Bool
	stuck  atomic.Bool  // it doesn't come to a standstill
	inside atomic.Int64 // who is at work in it
	kept   atomic.Pointer[pause.Kept]
	t      *testing.T
}

func (g *group) Freeze(ctx context.Context) error {
	if n := g.inside.Load(); n != 0 {
		g.t.Errorf("frozen with %d inside", n)
	}
	if g.stuck.Load() {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	g.frozen.Store(true)
	return nil
}

func (g *group) Thaw(context.Context) error {
	g.frozen.Store(false)
	return nil
}

func (g *group) Frozen() (bool, error) { return g.frozen.Load(), nil }

func (g *group) Keep(k pause.Kept) { g.kept.Store(&k) }

// Nobody is inside when the sandbox is frozen, nobody gets in while it is, and whoever is refused did nothing.
func TestNobodyIsInsideAFrozenSandbox(t *testing.T) {
	var gate pause.Gate
	gr := &group{t: t}
	stop := make(chan struct{})
	var entered, refused atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := gate.Enter(nil, nil); err != nil {
					if !errors.Is(err, pause.ErrPaused) {
						t.Error(err)
					}
					refused.Add(1)
					continue
				}
				gr.inside.Add(1)
				if gr.frozen.Load() {
					t.Error("inside a frozen sandbox")
				}
				entered.Add(1)
				runtime.Gosched()
				gr.inside.Add(-1)
				gate.Leave()
			}
		})
	}
	for range 300 {
		for n := entered.Load(); entered.Load() == n; {
			runtime.Gosched()
		}
		if err := gate.Pause(t.Context(), gr); err != nil {
			t.Fatal(err)
		}
		if !gate.Paused() {
			t.Error("not paused after a pause")
		}
		if err := gate.Resume(t.Context(), gr); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
	t.Logf("%d entered, %d were refused", entered.Load(), refused.Load())
}

// A pause whose caller has gone, or that finds somebody inside for too long, is taken back, and who waited goes on.
func TestPauseIsTakenBackWhole(t *testing.T) {
	for name, busy := range map[string]bool{"busy": true, "stuck": false} {
		t.Run(name, func(t *testing.T) {
			var gate pause.Gate
			gr := &group{t: t}
			gr.stuck.Store(true)
			if busy {
				if err := gate.Enter(nil, nil); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			failed := make(chan error)
			go func() { failed <- gate.Pause(ctx, gr) }()
			gone := make(chan struct{})
			close(gone)
			for gate.Enter(gone, nil) == nil { // until it meets the pause
				gate.Leave()
				runtime.Gosched()
			}
			waits := make(chan error)
			go func() { waits <- gate.Enter(nil, nil) }()
			cancel()
			err := <-failed
			if _, ok := errors.AsType[*pause.BusyError](err); err == nil || ok && !busy {
				t.Errorf("Pause() = %v", err)
			}
			if err := <-waits; err != nil {
				t.Errorf("who waited: %v", err)
			}
			if gate.Paused() {
				t.Error("paused after a pause that failed")
			}
		})
	}
}

// A sandbox's time is what it could run, and its timers go by that, in another process, too.
func TestTimeStandsStill(t *testing.T) {
	var gate pause.Gate
	gr := &group{t: t}
	fired := make(chan time.Duration, 1)
	const after = 50 * time.Millisecond
	if err := gate.Pause(t.Context(), gr); err != nil {
		t.Fatal(err)
	}
	at := gate.Now()
	gate.AfterFunc(after, func() { fired <- gate.Now() })
	stopped := gate.AfterFunc(after, func() { t.Error("a stopped timer fired") })
	stopped.Stop()
	<-time.After(3 * after)
	if now := gate.Now(); now != at {
		t.Errorf("its time went from %v to %v while paused", at, now)
	}
	var next pause.Gate
	next.Restore(*gr.kept.Load(), true)
	if now := next.Now(); now != at {
		t.Errorf("another process has %v instead of %v", now, at)
	}
	late := make(chan struct{})
	next.AfterFunc(0, func() { close(late) })
	select {
	case <-fired:
		t.Error("a timer fired while paused")
	case <-late:
		t.Error("a timer of the other process fired while paused")
	case <-time.After(after):
	}
	if err := gate.Resume(t.Context(), gr); err != nil {
		t.Fatal(err)
	}
	if d := <-fired - at; d < after {
		t.Errorf("fired after %v", d)
	}
	next.Heal(gr) // which sees that it isn't frozen
	<-late
}
