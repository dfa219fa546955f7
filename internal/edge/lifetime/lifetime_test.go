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
	runs := Record{Created: 100 * s, Started: 101 * s}
	rests, went := runs, runs
	rests.Pause(105 * s)
	went.Pause(105 * s)
	went.Resume(api.TTL{}, 125*s, true)
	sec := func(n int64) *int64 { return &n }
	for name, tc := range map[string]struct {
		r    Record
		ttl  api.TTL
		want time.Duration
		by   Limit
	}{
		"none":           {runs, api.TTL{PausedS: sec(1), IdleS: sec(1)}, 0, ""},
		"running":        {runs, api.TTL{RunningS: sec(10)}, 111 * s, Running},
		"max":            {runs, api.TTL{MaxS: sec(10)}, 110 * s, Max},
		"sooner":         {runs, api.TTL{MaxS: sec(50), RunningS: sec(10)}, 111 * s, Running},
		"later":          {runs, api.TTL{MaxS: sec(10), RunningS: sec(50)}, 110 * s, Max},
		"paused":         {rests, api.TTL{PausedS: sec(7)}, 112 * s, Paused},
		"stands-still":   {rests, api.TTL{RunningS: sec(10)}, 0, ""},
		"max-goes-on":    {rests, api.TTL{RunningS: sec(10), MaxS: sec(30)}, 130 * s, Max},
		"paused-or-max":  {rests, api.TTL{PausedS: sec(20), MaxS: sec(30)}, 125 * s, Paused},
		"was-paused":     {went, api.TTL{RunningS: sec(10), PausedS: sec(1)}, 131 * s, Running},
		"was-paused-max": {went, api.TTL{RunningS: sec(10), MaxS: sec(30)}, 130 * s, Max},
	} {
		t.Run(name, func(t *testing.T) {
			if due, by := tc.r.Due(tc.ttl); due != tc.want || by != tc.by {
				t.Errorf("Due = %v, %q", due, by)
			}
		})
	}
	if why := Running.Over(api.TTL{RunningS: sec(10)}); why != "ttl.running_s (10) is over" {
		t.Error(why)
	}
}

// TestTimeOfPauses: what a sandbox has run when ttl.running_s is over is what was set and asked for, however often and
// long it was paused; and one that is paused for want of time gets all of it anew.
func TestTimeOfPauses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		secs := func(name string) time.Duration { return time.Duration(rapid.Int64Range(1, 100).Draw(t, name)) * s }
		ttl := api.TTL{RunningS: new(rapid.Int64Range(1, 1000).Draw(t, "running_s"))}
		r := Record{Created: 5 * s, Started: 6 * s}
		now, left, paused := r.Started, time.Duration(*ttl.RunningS)*s, false
		t.Repeat(map[string]func(*rapid.T){
			"time": func(t *rapid.T) {
				d := secs("d")
				now += d
				if !paused {
					left -= d
				}
			},
			"pause": func(*rapid.T) { r.Pause(now); paused = true },
			"resume": func(t *rapid.T) {
				fresh := rapid.Bool().Draw(t, "fresh")
				if r.Resume(ttl, now, fresh); paused && fresh && left <= 0 {
					left = time.Duration(*ttl.RunningS) * s
				}
				paused = false
			},
			"extend": func(t *rapid.T) {
				by := secs("by")
				if err := r.Extend(ttl, now, by); err != nil {
					t.Fatal(err)
				}
				left = max(left, by)
			},
			"renew": func(*rapid.T) {
				if r.Renew(ttl, now); paused && left <= 0 {
					left = time.Duration(*ttl.RunningS) * s
				}
			},
			"": func(t *rapid.T) {
				switch due, by := r.Due(ttl); {
				case paused != (by == ""):
					t.Fatalf("paused: %v, due by %q", paused, by)
				case !paused && due-now != left:
					t.Fatalf("%v left, want %v", due-now, left)
				case r.Expired(ttl, now) != (left <= 0):
					t.Fatalf("expired with %v left", left)
				}
			},
		})
	})
}

// TestEnds: what people read is what is decided by, on another clock.
func TestEnds(t *testing.T) {
	sec := func(n int64) *int64 { return &n }
	at := func(d time.Duration) time.Time { return time.Unix(1000, 0).Add(d) }
	r := Record{Created: 100 * s, Started: 101 * s}
	w := Wall{Created: at(100 * s), Started: new(at(101 * s))}
	ttl := api.TTL{RunningS: sec(10), PausedS: sec(20), MaxS: sec(60)}
	want := func(d time.Duration) {
		t.Helper()
		if got := r.Ends(ttl, w); got == nil || !got.Equal(at(d)) {
			t.Errorf("ends at %v, want %v", got, at(d))
		}
	}
	want(111 * s)
	r.Pause(105 * s)
	w.Paused = new(at(105 * s))
	want(125 * s)
	if got := r.Ends(api.TTL{RunningS: sec(10)}, w); got != nil {
		t.Errorf("nothing ends it, but %v", got)
	}
	r.Resume(ttl, 135*s, false)
	w.Paused = nil
	want(141 * s)
	if err := r.Extend(ttl, 136*s, 24*s); err != nil {
		t.Fatal(err)
	}
	want(160 * s)
	ttl.RunningS = sec(100)
	want(160 * s)
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
