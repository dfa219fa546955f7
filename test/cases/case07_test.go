package cases

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// outcome is what a caller can tell an end by.
type outcome struct {
	code                             int // -1: none
	signal                           string
	timedOut, oom, cancelled, failed bool
}

func outcomeOf(st api.ExitStatus, err error) outcome {
	o := outcome{code: -1, signal: st.Signal, timedOut: st.TimedOut, oom: st.OOMKilled, cancelled: st.Cancelled}
	if st.ExitCode != nil {
		o.code = *st.ExitCode
	}
	o.failed = st.InfraError != "" || api.IsCode(err, api.CodeSandboxDied)
	return o
}

func TestCase07TimeoutSignalAndFailureCantBeToldApart(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{Resources: api.Resources{MemoryMB: new(int64(64))}})
	doomed := n.Create(t, api.Spec{})
	for _, way := range []string{"exec", "started", "http"} {
		call := func(sb *libdsec.Sandbox, cmd libdsec.Cmd) outcome {
			switch way {
			case "http":
				req := api.ExecRequest{Shell: cmd.Shell}
				if cmd.Timeout > 0 {
					req.TimeoutMS = new(cmd.Timeout.Milliseconds())
				}
				return outcomeOf(execREST(t, n, sb, req).ExitStatus, nil)
			case "started":
				p, err := sb.Start(within(t, hang), cmd, libdsec.StartOptions{})
				if err != nil {
					t.Fatal(err)
				}
				return outcomeOf(p.Wait(t.Context()))
			}
			r, err := sb.Exec(within(t, hang), cmd)
			if r == nil {
				t.Fatalf("exec %q: %v", cmd.Shell, err)
			}
			return outcomeOf(r.ExitStatus, err)
		}
		got := map[string]outcome{
			"exit 0":   call(sb, libdsec.Cmd{Shell: "exit 0"}),
			"exit 1":   call(sb, libdsec.Cmd{Shell: "exit 1"}),
			"exit 255": call(sb, libdsec.Cmd{Shell: "exit 255"}),
			"signal":   call(sb, libdsec.Cmd{Shell: "kill -9 $$"}),
			"time-out": call(sb, libdsec.Cmd{Shell: "sleep 999", Timeout: 300 * time.Millisecond}),
			"memory":   call(sb, libdsec.Cmd{Shell: "exec tail /dev/zero"}),
		}
		want := map[string]outcome{
			"exit 0":   {},
			"exit 1":   {code: 1},
			"exit 255": {code: 255},
			"signal":   {code: -1, signal: "SIGKILL"},
			"time-out": {code: -1, signal: "SIGKILL", timedOut: true},
			"memory":   {code: -1, signal: "SIGKILL", oom: true},
		}
		for name, o := range want {
			if got[name] != o {
				t.Errorf("%s, %s: %+v, want %+v", way, name, got[name], o)
			}
		}
	}
	// What the kernel kills may be a child, and the leader end by itself, with a code that says little.
	r := run(t, sb, hang, libdsec.Cmd{Shell: "tail /dev/zero; exit 3"})
	if got, want := outcomeOf(r.ExitStatus, nil), (outcome{code: 3, oom: true}); got != want {
		t.Errorf("child out of memory: %+v, want %+v", got, want)
	}
	sandboxDeath(t, n, doomed)
}

// sandboxDeath kills a sandbox's init while commands run in it: no end of one may look like an end of its own.
func sandboxDeath(t *testing.T, n *testbed.Node, sb *libdsec.Sandbox) {
	type end struct {
		o   outcome
		err error
	}
	ends := make(chan end, 2) // one of each command
	p, err := sb.Start(t.Context(), libdsec.Cmd{Shell: "sleep 7771"}, libdsec.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		st, err := p.Wait(within(t, hang))
		ends <- end{outcomeOf(st, err), err}
	}()
	go func() {
		r, err := sb.Exec(within(t, hang), libdsec.Cmd{Shell: "sleep 7772"})
		if r == nil {
			r = new(libdsec.Result)
		}
		ends <- end{outcomeOf(r.ExitStatus, err), err}
	}()
	testbed.Until(t, hang, "both run", func() bool { return inside(t, sb, "sleep 777") == 2 })
	init := 0
	for group, pids := range groups(t, n) {
		if strings.HasSuffix(group, "/"+sb.ID()) && len(pids) == 1 {
			init = pids[0]
		}
	}
	if init == 0 {
		t.Fatalf("init of %s not found in %v", sb.ID(), groups(t, n))
	}
	if err := syscall.Kill(init, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		e := <-ends
		if !e.o.failed || e.o.code == 0 && e.err == nil || e.o.timedOut || e.o.oom || e.o.cancelled {
			t.Errorf("death of the sandbox: %+v, %v; want infra_error or sandbox_died", e.o, e.err)
		}
	}
}
