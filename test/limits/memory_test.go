package limits

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestCase100OOMIsReportedAsOOM: a command that dies of too little memory is told so, with limit and peak, by whichever
// way it was started, in a child or in the command itself; what dies in the background is an event; the sandbox is of
// use afterwards.
func TestCase100OOMIsReportedAsOOM(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	const limit = 64 * mib
	sb := n.Create(t, small(limit/mib, 64))
	typed := func(how string, st api.ExitStatus) {
		t.Helper()
		if !st.OOMKilled || st.OOM == nil || st.TimedOut || st.Cancelled || st.InfraError != "" {
			t.Fatalf("%s: %+v", how, st)
		}
		// The kernel may charge some pages above the limit for what can't fail.
		if o := *st.OOM; o.LimitBytes != limit || o.PeakBytes < limit/2 || o.PeakBytes > limit+mib {
			t.Errorf("%s: limit and peak are %+v", how, o)
		}
	}
	for how, script := range map[string]string{"leader": "exec tail /dev/zero", "child": "tail /dev/zero; exit 3"} {
		typed(how, testbed.Shell(t, sb, script).ExitStatus)
		var res api.ExecResult
		send(t, n, "POST /v1/sandboxes/"+sb.ID()+"/exec", `{"shell":"`+script+`"}`, &res)
		typed(how+" over HTTP", res.ExitStatus)
		p, err := sb.Start(t.Context(), libdsec.Cmd{Shell: script}, libdsec.StartOptions{Detach: true})
		if err != nil {
			t.Fatal(err)
		}
		var listed api.Process
		testbed.Until(t, hang, "its end", func() bool {
			get(t, n, "/v1/sandboxes/"+sb.ID()+"/processes/"+p.ID(), &listed)
			return !listed.Running && listed.Exit != nil
		})
		typed(how+" in the list", *listed.Exit)
	}
	if e := event(t, sb, "oom"); number(e, "kills") < 1 || number(e, "limit_bytes") != limit || number(e, "peak_bytes") < limit/2 {
		t.Errorf("event of commands: %+v", e)
	}

	// In the background of a command that is over. Another that ends well at the time has nothing to do with it.
	quiet := n.Create(t, small(limit/mib, 64))
	if got := testbed.Output(t, quiet, "(sleep 0.2; tail /dev/zero) >/dev/null 2>&1 & echo over"); got != "over" {
		t.Errorf("the command says %q", got)
	}
	if e := event(t, quiet, "oom"); number(e, "kills") != 1 || number(e, "total") != 1 || number(e, "limit_bytes") != limit {
		t.Errorf("event of the background: %+v", e)
	}
	if r := testbed.Shell(t, quiet, "exit 7"); r.OOMKilled || r.OOM != nil || *r.ExitCode != 7 {
		t.Errorf("a later command: %+v", r.ExitStatus)
	}
	for _, sb := range []*libdsec.Sandbox{sb, quiet} {
		if u := usage(t, n, sb); u.OOMKills < 1 || u.PeakBytes < limit/2 {
			t.Errorf("metrics: %+v", u)
		}
		if got := testbed.Output(t, sb, "echo usable > /tmp/f; cat /tmp/f"); got != "usable" {
			t.Errorf("afterwards it says %q", got)
		}
		if info, err := sb.Refresh(t.Context()); err != nil || info.State != api.StateRunning {
			t.Errorf("afterwards it is %s, %v", info.State, err)
		}
	}
}

// TestCase101NothingRestartsBlank: a sandbox whose init is killed is lost for good. What is asked of it afterwards says
// so, and nothing takes its place.
func TestCase101NothingRestartsBlank(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	for how, kill := range map[string]func(sb *libdsec.Sandbox){
		// From inside PID 1 can't be killed, so as the kernel or an operator would.
		"init": func(sb *libdsec.Sandbox) { killInit(t, n, sb) },
	} {
		sb := n.Create(t, small(64, 64))
		testbed.Output(t, sb, "echo precious > /root/state")
		kill(sb)
		testbed.Until(t, hang, "its end is known", func() bool {
			info, err := sb.Refresh(t.Context())
			return err == nil && info.State == api.StateFailed
		})
		for range 3 {
			r, err := sb.Exec(t.Context(), libdsec.Cmd{Shell: "cat /root/state || echo blank"})
			if err == nil {
				t.Fatalf("%s: a command ran in what was lost: %+v %s", how, r.ExitStatus, r.Stdout)
			}
			if e := api.AsError(err); e.Code != api.CodeWrongState || !strings.Contains(e.Detail, "failed") || !strings.Contains(e.Detail, "init process died") {
				t.Errorf("%s: %v (%s)", how, err, e.Code)
			}
		}
		if _, err := sb.Files().Stat(t.Context(), "/root/state"); !api.IsCode(err, api.CodeWrongState) {
			t.Errorf("%s: its files: %v", how, err)
		}
		if _, err := sb.Extend(t.Context(), time.Hour); !api.IsCode(err, api.CodeWrongState) {
			t.Errorf("%s: extended: %v", how, err)
		}
		if e := event(t, sb, "failed"); !strings.Contains(e.Message, "init process died") {
			t.Errorf("%s: %+v", how, e)
		}
		if info, err := sb.Stop(t.Context()); err != nil || !info.Already || info.State != api.StateFailed {
			t.Errorf("%s: stopped: %+v, %v", how, info, err)
		}
	}
}

// TestCase105MetricsAreTheSandboxs: what a sandbox reads of files is cache and told apart; processor time and its limit
// are told so that a share of the limit can be made of them; nothing is the machine's.
func TestCase105MetricsAreTheSandboxs(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	const fileMB = 1024 // of zeros that take no place on the disk, but in the cache
	spec := small(256, 64)
	spec.Resources.CPU = new(0.5)
	sb := n.Create(t, spec)
	before := usage(t, n, sb)
	testbed.Output(t, sb, "dd if=/dev/zero of=/big bs=1M count=0 seek="+strconv.Itoa(fileMB)+" 2>/dev/null; cat /big > /dev/null")
	after := usage(t, n, sb)
	if after.MemoryBytes > before.MemoryBytes+32*mib || after.CacheBytes < 32*mib || after.CacheBytes+after.MemoryBytes > 257*mib {
		t.Errorf("a file of %d MiB was read in 256: %d KiB are used and %d KiB are cache; before it was %d and %d",
			fileMB, after.MemoryBytes>>10, after.CacheBytes>>10, before.MemoryBytes>>10, before.CacheBytes>>10)
	}
	if after.OOMKills != 0 || *after.Limits.MemoryMB != 256 || *after.Limits.CPU != 0.5 {
		t.Errorf("%+v", after)
	}
	// Memory that is used is no cache.
	p, err := sb.Start(t.Context(), libdsec.Cmd{Shell: "x=$(head -c 64000000 /dev/zero | tr '\\0' x); echo ready; read y"}, libdsec.StartOptions{StdinPipe: true})
	if err != nil {
		t.Fatal(err)
	}
	testbed.Until(t, hang, "64 MB are in use", func() bool { return usage(t, n, sb).MemoryBytes > 60*mib })
	_ = p.Stdin().Close()
	if _, err := p.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	// More than the limit can't be used, however busy it is, and it is told that it was held back. The limit is one that is
	// met on a busy machine, too.
	if _, err := sb.Patch(t.Context(), api.Patch{Resources: &api.Resources{CPU: new(0.05)}}); err != nil {
		t.Fatal(err)
	}
	begun, busy := time.Now(), usage(t, n, sb)
	testbed.Output(t, sb, "for i in 1 2; do timeout 1 sh -c 'while :; do :; done' & done; wait")
	done := usage(t, n, sb)
	share := float64(done.CPUNanos-busy.CPUNanos) / float64(time.Since(begun)) / *done.Limits.CPU
	if share <= 0.01 || share > 2 || done.ThrottledNanos <= busy.ThrottledNanos {
		t.Errorf("two busy processes used %.0f %% of the limit, %v held back", 100*share, time.Duration(done.ThrottledNanos-busy.ThrottledNanos))
	}
	if done.PIDs < 1 || done.PIDs > 10 {
		t.Errorf("%d processes", done.PIDs)
	}
}
