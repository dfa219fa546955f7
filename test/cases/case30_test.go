package cases

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestCase30RunningMeansReady makes 300 sandboxes, in a long run 2,000, and runs a command in each at once, while
// another sandbox keeps all processors busy.
func TestCase30RunningMeansReady(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	busy := n.Create(t, api.Spec{Resources: api.Resources{CPU: new(2.0)}})
	for range 4 {
		if _, err := busy.Start(t.Context(), libdsec.Cmd{Shell: "while :; do :; done"}, libdsec.StartOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	const workers = 3
	rounds := sized(300, 2000)
	for w := range workers {
		wg.Go(func() {
			for i := w; i < rounds && !t.Failed(); i += workers {
				createAndExec(t, n, i)
			}
		})
	}
	wg.Wait()
}

func createAndExec(t *testing.T, n *testbed.Node, round int) {
	sb, err := n.Client.Create(t.Context(), api.Spec{Image: "busybox"})
	if err != nil {
		t.Errorf("create %d: %v", round, err)
		return
	}
	if state := sb.Info().State; state != api.StateRunning {
		t.Errorf("create %d answers a sandbox that is %s", round, state)
	}
	const script = "echo once >> /count; cat /count"
	// The client that doesn't repeat takes turns with the one that might.
	if round%2 == 0 {
		res, problem := postExec(t, n, sb.ID(), api.ExecRequest{Shell: script})
		if problem != nil || !exitsWith(res.ExitStatus, 0) || res.Stdout != "once\n" {
			t.Errorf("exec %d: %+v, %+v", round, res, problem)
		}
	} else if r, err := sb.Exec(t.Context(), libdsec.Cmd{Shell: script}); err != nil || !exitsWith(r.ExitStatus, 0) || string(r.Stdout) != "once\n" {
		t.Errorf("exec %d: %+v, %v", round, r, err)
	}
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Errorf("stop %d: %v", round, err)
	}
}

// kill signals the processes, which are ours, and fails the test if one isn't there.
func kill(t testing.TB, sig syscall.Signal, all ...hostProcess) {
	t.Helper()
	for _, p := range all {
		if err := syscall.Kill(int(p), sig); err != nil {
			t.Fatalf("signal %v to %d: %v", sig, p, err)
		}
	}
}

// TestCase30CreateWaitsForTheAether stops the aether for a while: a sandbox isn't running before it answers. For one that
// was made ahead it has answered before.
func TestCase30CreateWaitsForTheAether(t *testing.T) {
	t.Parallel()
	n := nodeView{testbed.Start(t, testbed.Options{Pool: -1})}
	n.Create(t, api.Spec{}) // the first one starts the aether
	shard := n.shard(t)
	kill(t, syscall.SIGSTOP, shard)
	type answer struct {
		sb  *libdsec.Sandbox
		err error
	}
	made := make(chan answer, 1) // one answer
	go func() {
		sb, err := n.Client.Create(t.Context(), api.Spec{Image: "busybox"})
		made <- answer{sb, err}
	}()
	select {
	case a := <-made:
		kill(t, syscall.SIGCONT, shard)
		t.Fatalf("create answered %+v while nothing could answer commands", a)
	case <-time.After(time.Second):
	}
	kill(t, syscall.SIGCONT, shard)
	a := <-made
	if a.err != nil {
		t.Fatal(a.err)
	}
	if got := testbed.Output(t, a.sb, "echo ready"); got != "ready" {
		t.Errorf("it printed %q", got)
	}
}

// TestCase30NotStartedIsSafeToRepeat delays the aether's return after its death: an answer says that nothing was
// started, the SDK repeats the command, and a counter shows that it ran once.
func TestCase30NotStartedIsSafeToRepeat(t *testing.T) {
	t.Parallel()
	n := nodeView{testbed.Start(t, testbed.Options{})}
	sb := n.Create(t, api.Spec{})
	testbed.Output(t, sb, "true")
	keepers := n.members(t, "keeper")
	kill(t, syscall.SIGSTOP, keepers...) // it can't bring the aether back now
	awake := sync.OnceFunc(func() { kill(t, syscall.SIGCONT, keepers...) })
	defer awake()
	lost := n.shard(t)
	kill(t, syscall.SIGKILL, lost)
	testbed.Until(t, time.Minute, "the edge to see that the aether is gone", func() bool {
		for e, err := range sb.Events(t.Context(), libdsec.WatchOptions{}) {
			if err == nil && e.Type == "aether_lost" {
				return true
			}
		}
		return false
	})
	ended := n.figures(t)
	var requests sync.WaitGroup
	defer requests.Wait()
	for range 3 { // clients that don't repeat
		requests.Go(func() {
			res, problem := postExec(t, n.Node, sb.ID(), api.ExecRequest{Shell: "echo refused >> /count"})
			if problem == nil || problem.Code != api.CodeNotStarted || problem.HTTP != 503 || problem.RetryMS <= 0 {
				t.Errorf("without an aether: %+v, %+v; want not_started, and when to try again", res, problem)
			}
		})
	}
	requests.Go(func() { // the SDK does
		r, err := sb.Exec(t.Context(), libdsec.Cmd{Shell: "echo once >> /count; cat /count"})
		if err != nil || !exitsWith(r.ExitStatus, 0) || string(r.Stdout) != "once\n" {
			t.Errorf("by the SDK: %+v, %v; want the command to have run once", r, err)
		}
	})
	testbed.Until(t, time.Minute, "all first tries to be refused", func() bool {
		const figure = `dsec_execs_total{kind="quick",result="not_started"}`
		return n.figures(t)[figure]-ended[figure] >= 4
	})
	awake()
	requests.Wait()
	if got := testbed.Output(t, sb, "cat /count"); got != "once" {
		t.Errorf("the counter holds %q", got)
	}
}

// TestCase30NeverRunTwice kills the aether at the moment at which a command is sent, again and again. What a caller is
// told must fit what happened, and nothing ever happens twice.
func TestCase30NeverRunTwice(t *testing.T) {
	t.Parallel()
	n := nodeView{testbed.Start(t, testbed.Options{})}
	sb := n.Create(t, api.Spec{})
	told := make(map[string]int)
	for round := range sized(6, 60) {
		var shards []hostProcess
		testbed.Until(t, time.Minute, "an aether", func() bool { shards = n.shards(t); return len(shards) == 1 })
		testbed.Output(t, sb, "true") // it's connected
		counter := fmt.Sprintf("/count-%d", round)
		shards = n.shards(t)
		var wg sync.WaitGroup
		wg.Go(func() {
			for end := time.Now().Add(time.Duration(round%12) * 150 * time.Microsecond); time.Now().Before(end); {
				continue // a little later each time
			}
			_ = syscall.Kill(int(shards[0]), syscall.SIGKILL)
		})
		r, err := sb.Exec(t.Context(), libdsec.Cmd{Shell: "echo once >> " + counter})
		wg.Wait()
		lines := -1
		testbed.Until(t, time.Minute, "the count", func() bool { // the aether may die under this command, too
			c, err := sb.Exec(t.Context(), libdsec.Cmd{Shell: "cat " + counter + " 2>/dev/null || true"})
			if err == nil && c.InfraError == "" {
				lines = len(strings.Fields(string(c.Stdout)))
			}
			return lines >= 0
		})
		outcome := "unknown"
		switch {
		case err == nil && exitsWith(r.ExitStatus, 0):
			outcome = "ran"
		case libdsec.IsCode(err, api.CodeNotStarted):
			outcome = "not started"
		}
		told[fmt.Sprintf("told %s, ran %d times", outcome, lines)]++
		if lines > 1 || outcome == "ran" && lines != 1 || outcome == "not started" && lines != 0 {
			t.Errorf("round %d: it ran %d times, and the caller is told: %+v, %v", round, lines, r, err)
		}
	}
	t.Log(told)
}
