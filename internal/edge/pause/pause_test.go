package pause_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsec-io/dsec/internal/edge/pause"
)

// TestDrain: a pause waits for what has just come, and for nothing else.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		took := func(v *pause.Visits) time.Duration {
			begun := time.Now()
			v.Drain(t.Context())
			return time.Since(begun)
		}
		var v pause.Visits
		if d := took(&v); d != 0 {
			t.Errorf("nothing there: %v", d)
		}
		old := v.Begin()
		<-time.After(pause.Grace)
		if d := took(&v); d != 0 {
			t.Errorf("an old one: %v", d)
		}
		young := v.Begin()
		time.AfterFunc(pause.Grace/4, young.End)
		if d := took(&v); d != pause.Grace/4 {
			t.Errorf("a young one that ends: %v", d)
		}
		stays := v.Begin()
		<-time.After(pause.Grace / 4)
		time.AfterFunc(pause.Grace/4, v.Begin().End) // another's end changes nothing
		if d := took(&v); d != pause.Grace*3/4 {
			t.Errorf("a young one that stays: %v", d)
		}
		for _, o := range []*pause.Visit{old, stays, stays, nil} {
			o.End()
		}
		v.Begin()
		ctx, cancel := context.WithTimeout(t.Context(), pause.Grace/8)
		defer cancel()
		begun := time.Now()
		if v.Drain(ctx); time.Since(begun) != pause.Grace/8 {
			t.Errorf("given up after %v", time.Since(begun))
		}
	})
}

// TestTurnIsSharedByAllWhoWait for it.
func TestTurnIsSharedByAllWhoWait(t *testing.T) {
	turn := pause.Begin(t.Context())
	want := errors.New("no")
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if err := turn.Wait(t.Context()); !errors.Is(err, want) {
				t.Errorf("it came out as %v", err)
			}
		})
	}
	gone, cancel := context.WithCancelCause(t.Context())
	cancel(context.DeadlineExceeded)
	if err := turn.Wait(gone); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("who leaves is told %v", err)
	}
	wg.Go(func() {
		<-turn.Context().Done()
		turn.End(context.Cause(turn.Context()))
	})
	turn.Cancel(want)
	wg.Wait()
	(*pause.Turn)(nil).Cancel(want)
}
