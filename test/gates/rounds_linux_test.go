package gates

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// A shard is killed at a random time in the life of a command on pipes and one on a terminal, while it and others are
// busy. Each sandbox has a shard of its own, because a keeper lets one that dies too often wait.
func TestShardKilledAtRandomUnderLoad(t *testing.T) {
	b := newBed(t, testbed.Options{})
	const sandboxes, each, size = 10, 5, 1200
	pipeOut, pipeErr := printed(size, "\n")
	ttyOut := printedTTY(size)
	bystander := b.Create(t, api.Spec{})
	over := make(chan struct{})
	var bystanders []time.Duration
	var wg sync.WaitGroup
	wg.Go(func() { bystanders = load(t, bystander, over) })
	var kills, running, right, lost atomic.Int64
	// mu guards gaps.
	var mu sync.Mutex
	var gaps []time.Duration
	inParallel(4, sandboxes, func(box int) {
		sb := b.Create(t, api.Spec{Isolation: "own"})
		self := filepath.Join(b.shardOf(t, sb), "self")
		for n := range each {
			code := 10 + box*each + n
			what := fmt.Sprintf("round %d", box*each+n)
			onPipes, pipes := start(t, sb, lines(size, code), libdsec.StartOptions{})
			onTTY, tty := start(t, sb, lines(size, code+100), libdsec.StartOptions{TTY: &api.Size{Rows: 24, Cols: 80}})
			stop := make(chan struct{})
			var busy sync.WaitGroup
			busy.Go(func() { neverWrong(t, sb, stop, &right, &lost) })
			timer := time.NewTimer(rand.N(200 * time.Millisecond)) // the moment of the kill is what this test draws
			select {
			case <-timer.C:
			case <-onPipes.Done():
			}
			select {
			case <-onPipes.Done():
			default:
				running.Add(1)
			}
			began := time.Now()
			old := b.killed(t, self)
			kills.Add(1)
			answersAfter(t, sb, 1)
			mu.Lock()
			gaps = append(gaps, time.Since(began))
			mu.Unlock()
			wantCode(t, what+" on pipes", onPipes, code)
			wantCode(t, what+" on a terminal", onTTY, code+100)
			pipes.want(t, what+" on pipes", pipeOut, pipeErr)
			tty.want(t, what+" on a terminal", ttyOut, nil)
			close(stop)
			busy.Wait()
			b.successor(t, self, old)
		}
	})
	close(over)
	wg.Wait()
	slices.Sort(gaps)
	worst := time.Duration(0)
	for _, d := range bystanders {
		worst = max(worst, d)
	}
	t.Logf("%d kills, %d before the end of the command; answered again after %v (median), %v (worst); beside them %d execs right, %d lost and said so; bystander: %d execs, worst %v",
		kills.Load(), running.Load(), gaps[len(gaps)/2], gaps[len(gaps)-1], right.Load(), lost.Load(), len(bystanders), worst)
	if running.Load() < sandboxes*each/2 {
		t.Error("the shards died too late")
	}
}

// TestEndedTerminalIsFoundAgain: who holds the input of a command that ended just before its shard died learns how.
func TestEndedTerminalIsFoundAgain(t *testing.T) {
	b := newBed(t, testbed.Options{})
	sb := b.Create(t, api.Spec{})
	p, _ := start(t, sb, "exit 7", libdsec.StartOptions{TTY: &api.Size{Rows: 24, Cols: 80}})
	wantCode(t, "before", p, 7)
	b.killed(t, filepath.Join(b.shardOf(t, sb), "self"))
	answersAfter(t, sb, 1)
	again, err := sb.Attach(t.Context(), p.ID(), libdsec.AttachOptions{Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, "after", again, 7)
}

// printedTTY is what [lines] prints on a terminal, where stderr comes in between.
func printedTTY(n int) (stdout []byte) {
	for i := range n {
		stdout = fmt.Appendf(stdout, "line %d\r\n", i)
		if i%100 == 0 && i > 0 {
			stdout = fmt.Appendf(stdout, "err %d\r\n", i)
		}
	}
	return stdout
}

// neverWrong runs short commands in a sandbox whose shard is being killed: each ends right, or is said to be lost.
func neverWrong(t testing.TB, sb *libdsec.Sandbox, stop <-chan struct{}, right, lost *atomic.Int64) {
	t.Helper()
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		default:
		}
		ctx, cancel := context.WithTimeout(t.Context(), hang)
		code := n % 200
		r, err := sb.Exec(ctx, libdsec.Cmd{Shell: fmt.Sprintf("echo out %d; exit %d", n, code)})
		cancel()
		switch {
		case err == nil && r.InfraError == "" && r.ExitCode != nil && *r.ExitCode == code && string(r.Stdout) == fmt.Sprintf("out %d\n", n):
			right.Add(1)
		case err == nil && r.InfraError != "" && r.ExitCode == nil && r.Signal == "", libdsec.IsCode(err, api.CodeNotStarted):
			lost.Add(1)
		default:
			t.Errorf("short command %d: %v, %+v", n, err, r)
		}
	}
}
