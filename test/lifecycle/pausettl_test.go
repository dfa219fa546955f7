package lifecycle

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

func until(t *testing.T, sb *libdsec.Sandbox, want api.State) api.Sandbox {
	t.Helper()
	var info api.Sandbox
	testbed.Until(t, hang, "it is "+string(want), func() bool {
		var err error
		if info, err = sb.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		return info.State == want
	})
	return info
}

// TestCase60TimesOfAResume that can't be are refused, and it stays paused.
func TestCase60TimesOfAResume(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{TTL: api.TTL{RunningS: new(int64(600)), MaxS: new(int64(3600))}})
	pause(t, sb)
	path := "/v1/sandboxes/" + sb.ID()
	for _, bad := range []string{"0", "-1", "1e18", "0.5", `""`, "9223372036854775808", "NaN", `"1"`, "[]"} {
		if resp, raw := post(t, n, path+"/resume", "", `{"running_s":`+bad+`}`); resp.StatusCode != 400 {
			t.Errorf("resume for %s: %d %s", bad, resp.StatusCode, raw)
		}
		if resp, raw := post(t, n, "/v1/sandboxes", "", fmt.Sprintf(`{"image":"busybox","ttl":{"paused_s":%s}}`, bad)); resp.StatusCode != 400 {
			t.Errorf("create with paused_s %s: %d %s", bad, resp.StatusCode, raw)
		}
	}
	for body, status := range map[string]int{`{"seconds":1}`: 400, `[]`: 400, `{"running_s":7200}`: 422} {
		if resp, raw := post(t, n, path+"/resume", "", body); resp.StatusCode != status {
			t.Errorf("resume %q: %d %s", body, resp.StatusCode, raw)
		}
	}
	if resp, raw := post(t, n, path+"/pause", "", `{"now":true}`); resp.StatusCode != 400 {
		t.Errorf("pause: %d %s", resp.StatusCode, raw)
	}
	if now := state(t, sb); now != api.StatePaused {
		t.Errorf("it is %s", now)
	}
	for _, body := range []string{"", "{}"} {
		if resp, raw := post(t, n, path+"/resume", "", body); resp.StatusCode != 200 {
			t.Errorf("resume %q: %d %s", body, resp.StatusCode, raw)
		}
	}
}

// TestCase62PausedTimeDoesntCount as running or idle time, but as paused time, and as all of its time.
func TestCase62PausedTimeDoesntCount(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	t.Run("running", func(t *testing.T) {
		t.Parallel()
		sb := n.Create(t, api.Spec{TTL: api.TTL{RunningS: new(int64(5))}})
		begun := time.Now()
		if info := pause(t, sb); info.ExpiresAt != nil {
			t.Errorf("it ends at %v", info.ExpiresAt)
		}
		<-time.After(6 * time.Second) // the pause is the point
		info, err := sb.Resume(t.Context())
		if err != nil || info.PausedAt != nil || info.ExpiresAt == nil {
			t.Fatalf("%+v, %v", info, err)
		}
		testbed.Output(t, sb, "true")
		if info, at := ended(t, sb); at.Sub(begun) < 10*time.Second || !strings.Contains(info.Reason, "ttl.running_s") {
			t.Errorf("it ended after %v: %s", at.Sub(begun), info.Reason)
		}
	})
	t.Run("idle", func(t *testing.T) {
		t.Parallel()
		sb := n.Create(t, api.Spec{TTL: api.TTL{IdleS: new(int64(2))}})
		pause(t, sb)
		<-time.After(4 * time.Second) // as above
		if now := state(t, sb); now != api.StatePaused {
			t.Errorf("it is %s", now)
		}
	})
	for name, ttl := range map[string]api.TTL{"paused_s": {PausedS: new(int64(2)), RunningS: new(int64(600))}, "max_s": {PausedS: new(int64(600)), MaxS: new(int64(2))}} {
		t.Run(strings.TrimSuffix(name, "_s"), func(t *testing.T) {
			t.Parallel()
			sb := n.Create(t, api.Spec{TTL: ttl})
			info := pause(t, sb)
			if info.ExpiresAt == nil || time.Until(*info.ExpiresAt) > 3*time.Second {
				t.Errorf("it ends at %v", info.ExpiresAt)
			}
			if info, _ := ended(t, sb); info.State != api.StateStopped || !strings.Contains(info.Reason, "ttl."+name) || info.PausedAt != nil {
				t.Errorf("%s: %s", info.State, info.Reason)
			}
		})
	}
}

// TestPauseInsteadOfTheEnd: idle and running time that is over pauses, where that was asked for, and the next request
// finds the sandbox as it was, with time anew.
func TestPauseInsteadOfTheEnd(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	t.Run("idle", func(t *testing.T) {
		t.Parallel()
		sb := n.Create(t, api.Spec{TTL: api.TTL{IdleS: new(int64(1))}, OnIdle: api.ThenPause})
		testbed.Output(t, sb, "echo kept > /tmp/f")
		for range 2 {
			if info := until(t, sb, api.StatePaused); !strings.Contains(info.Reason, "ttl.idle_s") || !frozen(t, n, sb.ID()) {
				t.Errorf("paused: %s", info.Reason)
			}
			if got := testbed.Output(t, sb, "cat /tmp/f"); got != "kept" {
				t.Errorf("%q", got)
			}
		}
	})
	t.Run("running", func(t *testing.T) {
		t.Parallel()
		sb := n.Create(t, api.Spec{TTL: api.TTL{RunningS: new(int64(3)), MaxS: new(int64(3600))}, OnExpire: api.ThenPause})
		info := until(t, sb, api.StatePaused)
		if !strings.Contains(info.Reason, "ttl.running_s") || time.Until(*info.ExpiresAt) < 50*time.Minute {
			t.Errorf("paused: %s, until %v", info.Reason, info.ExpiresAt)
		}
		testbed.Output(t, sb, "true") // gets all of its time anew
		woken, err := sb.Refresh(t.Context())
		if d := time.Until(*woken.ExpiresAt); err != nil || woken.State != api.StateRunning && woken.State != api.StatePaused || woken.State == api.StateRunning && d > 3*time.Second {
			t.Errorf("%s until %v, %v", woken.State, woken.ExpiresAt, err)
		}
		until(t, sb, api.StatePaused)
		asked := time.Now() // for less than it gets anyway
		if info, err = sb.ResumeFor(t.Context(), time.Second); err != nil || info.ExpiresAt.Sub(asked) < 2*time.Second {
			t.Errorf("resumed for a second at %v: until %v, %v", asked, info.ExpiresAt, err)
		}
		until(t, sb, api.StatePaused)
		info, err = sb.ResumeFor(t.Context(), time.Hour/2)
		if d := time.Until(*info.ExpiresAt); err != nil || info.State != api.StateRunning || d < 29*time.Minute || d > 31*time.Minute {
			t.Errorf("resumed for half an hour: %s until %v, %v", info.State, info.ExpiresAt, err)
		}
		// Extending a paused one leaves it paused; what was there is never shortened.
		pause(t, sb)
		for _, d := range []time.Duration{time.Minute, 40 * time.Minute} {
			if info, err = sb.Extend(t.Context(), d); err != nil || info.State != api.StatePaused {
				t.Errorf("extended: %s, %v", info.State, err)
			}
		}
		info, err = sb.Resume(t.Context())
		if d := time.Until(*info.ExpiresAt); err != nil || d < 39*time.Minute || d > 41*time.Minute {
			t.Errorf("resumed: %s until %v, %v", info.State, info.ExpiresAt, err)
		}
	})
}

// TestCase64OldDeadlines: an end that was due before a pause isn't due after it, over restarts with wrong clocks too; what
// is due while no node runs is.
func TestCase64OldDeadlines(t *testing.T) {
	t.Parallel()
	n := testbed.Start(t, testbed.Options{})
	create := func(s api.Spec) *libdsec.Sandbox { return n.Create(t, s) }
	again := create(api.Spec{TTL: api.TTL{RunningS: new(int64(10))}})
	rests := create(api.Spec{TTL: api.TTL{RunningS: new(int64(10)), PausedS: new(int64(3600))}})
	over := create(api.Spec{TTL: api.TTL{PausedS: new(int64(1))}})
	begun := time.Now()
	for _, sb := range []*libdsec.Sandbox{again, rests, over} {
		pause(t, sb)
	}
	for _, shift := range []string{"10h", "-10h", "0s"} {
		n.Kill(t)
		n.SetEnv(testbed.ClockEnv + "=" + shift)
		n.Restart(t)
		for name, sb := range map[string]*libdsec.Sandbox{"again": again, "rests": rests} {
			if now := state(t, n.Client.Sandbox(sb.ID())); now != api.StatePaused || !frozen(t, n, sb.ID()) {
				t.Errorf("clock off by %s: %s is %s", shift, name, now)
			}
		}
		if info, _ := ended(t, n.Client.Sandbox(over.ID())); !strings.Contains(info.Reason, "ttl.paused_s") {
			t.Errorf("what was due ended as %s: %s", info.State, info.Reason)
		}
	}
	testbed.Until(t, hang, "the old deadline", func() bool { return time.Since(begun) > 11*time.Second })
	sb := n.Client.Sandbox(again.ID())
	info, err := sb.Resume(t.Context())
	resumed := time.Now()
	if err != nil || info.State != api.StateRunning {
		t.Fatalf("%s (%s), %v", info.State, info.Reason, err)
	}
	testbed.Output(t, sb, "true")
	if info, _ := ended(t, sb); time.Since(resumed) < 5*time.Second || !strings.Contains(info.Reason, "ttl.running_s") {
		t.Errorf("it ended %v after its resume: %s", time.Since(resumed), info.Reason)
	}
	testbed.Output(t, n.Client.Sandbox(rests.ID()), "true")
}
