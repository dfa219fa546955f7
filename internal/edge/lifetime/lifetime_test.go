package lifetime

import (
	"errors"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"pgregory.net/rapid"
)

const s = time.Second

func TestDue(t *testing.T) {
	r := Record{Created: 100 * s, Started: 101 * s}
	for name, tc := range map[string]struct {
		ttl  api.TTL
		want time.Duration
		why  string
	}{
		"none":    {api.TTL{}, 0, ""},
		"running": {api.TTL{RunningS: new(int64(10))}, 111 * s, "ttl.running_s (10) is over"},
		"max":     {api.TTL{MaxS: new(int64(10))}, 110 * s, "ttl.max_s (10) is over"},
		"sooner":  {api.TTL{MaxS: new(int64(50)), RunningS: new(int64(10))}, 111 * s, "ttl.running_s (10) is over"},
		"later":   {api.TTL{MaxS: new(int64(10)), RunningS: new(int64(50))}, 110 * s, "ttl.max_s (10) is over"},
	} {
		t.Run(name, func(t *testing.T) {
			if due, why := r.Due(tc.ttl); due != tc.want || why != tc.why {
				t.Errorf("Due = %v, %q", due, why)
			}
		})
	}
}

// TestExtendNeverShortens: whatever is asked for, the end moves later or stays, and never beyond ttl.max_s.
func TestExtendNeverShortens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		secs := func(name string) int64 { return rapid.Int64Range(1, 1000).Draw(t, name) }
		r := Record{Created: 5 * s, Started: 6 * s}
		ttl := api.TTL{RunningS: new(secs("running"))}
		if rapid.Bool().Draw(t, "bounded") {
			ttl.MaxS = new(secs("max"))
		}
		now := 6 * s
		for range rapid.IntRange(1, 10).Draw(t, "extensions") {
			now += time.Duration(secs("later")) * s / 10
			by := time.Duration(secs("by")) * s
			before, _ := r.Due(ttl)
			err := r.Extend(ttl, now, by)
			after, _ := r.Due(ttl)
			switch {
			case after < before:
				t.Fatalf("from %v to %v", before, after)
			case err == nil && after < now+by:
				t.Fatalf("extended by %v at %v, it ends at %v", by, now, after)
			case err != nil && (after != before || ttl.MaxS == nil || now+by <= r.Created+time.Duration(*ttl.MaxS)*s):
				t.Fatalf("refused: %v; from %v to %v", err, before, after)
			}
		}
	})
}

func TestIdle(t *testing.T) {
	const limit = 40 * s
	var cpu int64
	used := func() (int64, error) { return cpu, nil }
	now := 1000 * s
	clock := func() time.Duration { return now }
	var a Activity
	a.Touch(now)
	idle := func() bool {
		t.Helper()
		is, again := a.Idle(now, limit, used)
		if again > limit/samples || again < shortest {
			t.Errorf("asked again after %v", again)
		}
		return is
	}
	pass := func(d time.Duration) bool {
		t.Helper()
		is := false
		for end := now + d; now < end && !is; {
			now += 5 * s
			is = idle()
		}
		return is
	}
	if pass(35 * s) {
		t.Error("idle too soon")
	}
	if !pass(5 * s) {
		t.Error("not idle after its time")
	}
	end := a.Begin(clock)
	if pass(10 * limit) {
		t.Error("idle while something goes on")
	}
	end()
	if pass(35*s) || !pass(5*s) {
		t.Error("idle at another time than a limit after the end")
	}
	a.Touch(now)
	for range 50 { // 2 % of a core
		now += 5 * s
		cpu += int64(100 * time.Millisecond)
		if idle() {
			t.Fatal("idle while the processor is used")
		}
	}
	for range 7 { // 0.2 %: what any process that waits uses
		now += 5 * s
		cpu += int64(10 * time.Millisecond)
		if idle() {
			t.Fatal("idle too soon after")
		}
	}
	now += 5 * s
	if !idle() {
		t.Error("the little that a waiting process uses counts")
	}
	a.Touch(now)
	if is, _ := a.Idle(now+limit, limit, func() (int64, error) { return 0, errors.New("unreadable") }); !is {
		t.Error("what can't be read keeps a sandbox alive")
	}
}

func TestRestored(t *testing.T) {
	wall := time.Now()
	r := Restored(500*s, wall, wall.Add(-100*s), wall.Add(-90*s))
	if r.Created != 400*s || r.Started != 410*s {
		t.Errorf("%+v", r)
	}
}
