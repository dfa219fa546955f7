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

// ended waits for a sandbox's end and returns how it ended and when, by the node's clock.
func ended(t *testing.T, sb *libdsec.Sandbox) (api.Sandbox, time.Time) {
	t.Helper()
	var info api.Sandbox
	testbed.Until(t, hang, "the sandbox's end", func() bool {
		var err error
		if info, err = sb.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		return info.State.Ended()
	})
	return info, *info.EndedAt
}

// TestCase59IdleTimeIsThatOfTheSandbox: what is busy lives on, however quiet it is towards us, and what is idle ends.
func TestCase59IdleTimeIsThatOfTheSandbox(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	const idle = 3
	spec := api.Spec{TTL: api.TTL{IdleS: new(int64(idle))}}
	for name, busy := range map[string]func(sb *libdsec.Sandbox) error{
		"a-quiet-command": func(sb *libdsec.Sandbox) error {
			_, err := sb.Exec(t.Context(), libdsec.Cmd{Argv: []string{"sleep", "9"}})
			return err
		},
		"a-process-nobody-is-connected-to": func(sb *libdsec.Sandbox) error {
			_, err := sb.Start(t.Context(), libdsec.Cmd{Argv: []string{"sleep", "9"}}, libdsec.StartOptions{Detach: true})
			return err
		},
		"the-processor": func(sb *libdsec.Sandbox) error {
			_, err := sb.Exec(t.Context(), libdsec.Cmd{Shell: "timeout 9 sh -c 'while :; do :; done' > /dev/null 2>&1 &"})
			return err
		},
		"an-open-stream": func(sb *libdsec.Sandbox) error {
			r, err := sb.Start(t.Context(), libdsec.Cmd{Argv: []string{"cat"}}, libdsec.StartOptions{StdinPipe: true})
			if err == nil {
				time.AfterFunc(9*time.Second, func() { _ = r.Stdin().Close() })
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sb := n.Create(t, spec)
			begun := time.Now()
			if err := busy(sb); err != nil {
				t.Fatal(err)
			}
			info, at := ended(t, sb)
			if lived := at.Sub(begun); lived < (9+idle-1)*time.Second || info.State != api.StateStopped || !strings.Contains(info.Reason, "ttl.idle_s") {
				t.Errorf("it ended after %v as %s: %s", lived, info.State, info.Reason)
			}
		})
	}
	t.Run("nothing", func(t *testing.T) {
		t.Parallel()
		spec.Command = []string{"sleep", "1000"} // a start process that waits is nothing
		sb := n.Create(t, spec)
		testbed.Until(t, hang, "looking at it wakes nothing", func() bool {
			info, err := sb.Refresh(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return info.State.Ended()
		})
	})
}

// TestCase60TimesOfZeroOrBelowAreRefused on create and extend.
func TestCase60TimesOfZeroOrBelowAreRefused(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{})
	for _, bad := range []string{"0", "-1", "1e18", "0.5", `""`, "9223372036854775808", "NaN", `"1"`, "[]"} {
		for _, field := range []string{"idle_s", "running_s", "max_s"} {
			resp, raw := post(t, n, "/v1/sandboxes", "", fmt.Sprintf(`{"image":"busybox","ttl":{%q:%s}}`, field, bad))
			if resp.StatusCode != 400 {
				t.Errorf("create with %s %s: %d %s", field, bad, resp.StatusCode, raw)
			}
		}
		if resp, raw := post(t, n, "/v1/sandboxes/"+sb.ID()+"/extend", "", `{"running_s":`+bad+`}`); resp.StatusCode != 400 {
			t.Errorf("extend by %s: %d %s", bad, resp.StatusCode, raw)
		}
	}
	for _, body := range []string{``, `{}`, `{"running_s":null}`, `{"seconds":1}`} {
		if resp, raw := post(t, n, "/v1/sandboxes/"+sb.ID()+"/extend", "", body); resp.StatusCode != 400 {
			t.Errorf("extend %q: %d %s", body, resp.StatusCode, raw)
		}
	}
}

// TestCase61ExtendNeverShortens, counts from now, and stops at the limit that its creator has set.
func TestCase61ExtendNeverShortens(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{TTL: api.TTL{RunningS: new(int64(3600)), MaxS: new(int64(7200))}})
	first := *sb.Info().ExpiresAt
	if d := time.Until(first); d < 59*time.Minute || d > time.Hour {
		t.Errorf("expires in %v", d)
	}
	info, err := sb.Extend(t.Context(), 5*time.Second)
	if err != nil || !info.ExpiresAt.Equal(first) {
		t.Errorf("extended by less: %v, %v", info.ExpiresAt, err)
	}
	info, err = sb.Extend(t.Context(), 90*time.Minute)
	if d := time.Until(*info.ExpiresAt); err != nil || d < 89*time.Minute || d > 91*time.Minute {
		t.Errorf("extended by 90 minutes: %v, %v", d, err)
	}
	if _, err := sb.Extend(t.Context(), 3*time.Hour); !libdsec.IsCode(err, api.CodeImpossible) {
		t.Errorf("beyond ttl.max_s: %v", err)
	}
	free := n.Create(t, api.Spec{})
	if info, err := free.Extend(t.Context(), time.Minute); err != nil || info.ExpiresAt != nil {
		t.Errorf("without a limit: %v, %v", info.ExpiresAt, err)
	}
	if _, err := free.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := free.Extend(t.Context(), time.Minute); !libdsec.IsCode(err, api.CodeWrongState) {
		t.Errorf("after its end: %v", err)
	}

	short := n.Create(t, api.Spec{TTL: api.TTL{RunningS: new(int64(5))}})
	begun := time.Now()
	if _, err := short.Extend(t.Context(), 9*time.Second); err != nil {
		t.Fatal(err)
	}
	if info, at := ended(t, short); at.Sub(begun) < 8*time.Second || !strings.Contains(info.Reason, "ttl.running_s") {
		t.Errorf("ended after %v: %s", at.Sub(begun), info.Reason)
	}
}

// TestCase64TimesHoldOverRestartsAndWrongClocks: the node dies and comes back with its clock hours off, more than once;
// nothing ends early, what was due meanwhile ends, what was extended is remembered.
func TestCase64TimesHoldOverRestartsAndWrongClocks(t *testing.T) {
	t.Parallel()
	n := testbed.Start(t, testbed.Options{})
	long := n.Create(t, api.Spec{TTL: api.TTL{RunningS: new(int64(3600)), MaxS: new(int64(7200)), IdleS: new(int64(1800))}})
	due := n.Create(t, api.Spec{TTL: api.TTL{RunningS: new(int64(1))}})
	extended := n.Create(t, api.Spec{TTL: api.TTL{RunningS: new(int64(20))}})
	if _, err := extended.Extend(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	short := n.Create(t, api.Spec{TTL: api.TTL{MaxS: new(int64(25))}})
	begun := time.Now()
	for _, shift := range []string{"10h", "-10h", "0s"} {
		n.Kill(t)
		n.SetEnv(testbed.ClockEnv + "=" + shift)
		n.Restart(t)
		for name, sb := range map[string]*libdsec.Sandbox{"long": long, "extended": extended} {
			info, err := n.Client.Sandbox(sb.ID()).Refresh(t.Context())
			if err != nil || info.State != api.StateRunning {
				t.Errorf("clock off by %s: %s is %s (%s), %v", shift, name, info.State, info.Reason, err)
			}
			if got := testbed.Output(t, n.Client.Sandbox(sb.ID()), "echo alive"); got != "alive" {
				t.Errorf("%s: %q", name, got)
			}
		}
		if info, _ := ended(t, n.Client.Sandbox(due.ID())); !strings.Contains(info.Reason, "ttl.running_s") {
			t.Errorf("what was due ended as %s: %s", info.State, info.Reason)
		}
	}
	if _, _ = ended(t, n.Client.Sandbox(short.ID())); time.Since(begun) < 20*time.Second {
		t.Errorf("ttl.max_s of 25 s ended it after %v", time.Since(begun))
	}
	if info, err := n.Client.Sandbox(extended.ID()).Refresh(t.Context()); err != nil || info.State != api.StateRunning {
		t.Errorf("what was extended is %s (%s) after 25 s, %v", info.State, info.Reason, err)
	}
}
