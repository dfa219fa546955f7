package lifecycle

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestCase47RetriedCreatesMakeOneSandboxEach loses 30 % of the answers on the way to clients that ask again.
func TestCase47RetriedCreatesMakeOneSandboxEach(t *testing.T) {
	n := testbed.Shared(t)
	p := startProxy(t, n)
	p.cut.Store(30)
	const creates = 500
	made := make(chan string, creates)
	var wg sync.WaitGroup
	todo := make(chan struct{}, creates)
	for range creates {
		todo <- struct{}{}
	}
	close(todo)
	for range 8 {
		c := p.client(t, n)
		wg.Go(func() {
			for range todo {
				sb, err := c.Create(t.Context(), labelled("case47"))
				if err != nil {
					t.Errorf("create: %v", err)
					continue
				}
				made <- sb.ID()
			}
		})
	}
	wg.Wait()
	close(made)
	told := map[string]bool{}
	for id := range made {
		told[id] = true
	}
	there := living(t, n, "case47")
	if len(told) != creates || len(there) != creates || p.cuts.Load() < creates/10 {
		t.Errorf("%d answers, %d sandboxes for %d creates with %d answers cut off", len(told), len(there), creates, p.cuts.Load())
	}
	for id := range there {
		if !told[id] {
			t.Errorf("nobody was told of %s", id)
		}
	}
	stopAll(t, n, there)
}

// post sends a request under a key and returns the whole answer.
func post(t *testing.T, n *testbed.Node, path, key, body string) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.Endpoint+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+n.Token)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, raw
}

// TestCase47KeysOverREST: the same answer for the same request, whatever it was; another one under its key is refused.
func TestCase47KeysOverREST(t *testing.T) {
	n := testbed.Shared(t)
	sb := n.Create(t, labelled("rest"))
	at := "/v1/sandboxes/" + sb.ID()
	for name, tc := range map[string]struct {
		path, body string
		status     int
	}{
		"exec":    {at + "/exec", `{"shell":"echo out; echo err >&2; echo $$ >> /tmp/runs; head -c 8 /dev/urandom; exit 3"}`, 200},
		"input":   {at + "/exec", `{"argv":["cat"],"stdin":"YWJj"}`, 200},
		"process": {at + "/processes", `{"shell":"echo $$ >> /tmp/starts","tag":"x"}`, 201},
		"session": {at + "/sessions", ``, 201},
		"mkdir":   {at + "/files?path=/tmp/made&op=mkdir", ``, 200},
	} {
		t.Run(name, func(t *testing.T) {
			first, raw := post(t, n, tc.path, "rest-"+name, tc.body)
			if first.StatusCode != tc.status || first.Header.Get("Idempotency-Replayed") != "" {
				t.Fatalf("first: %d %v %s", first.StatusCode, first.Header, raw)
			}
			for range 3 {
				again, same := post(t, n, tc.path, "rest-"+name, tc.body)
				if again.StatusCode != tc.status || again.Header.Get("Idempotency-Replayed") != "true" || !bytes.Equal(raw, same) ||
					again.Header.Get("Location") != first.Header.Get("Location") {
					t.Errorf("again: %d %v\n%s, first\n%s", again.StatusCode, again.Header, same, raw)
				}
			}
			if other, raw := post(t, n, at+"/exec", "rest-"+name, `{"argv":["true"]}`); other.StatusCode != 409 || !bytes.Contains(raw, []byte(api.CodeKeyReused)) {
				t.Errorf("another request: %d %s", other.StatusCode, raw)
			}
		})
	}
	if got := testbed.Output(t, sb, "wc -l < /tmp/runs; wc -l < /tmp/starts"); got != "1\n1" {
		t.Errorf("runs and starts: %q", got)
	}
	for _, path := range []string{"/v1/images?name=x", at + "/processes/p1/stdin", at + "/nosuchroute", "/v1/tokens"} {
		if resp, raw := post(t, n, path, "k", "{}"); resp.StatusCode < 400 {
			t.Errorf("%s takes a key: %d %s", path, resp.StatusCode, raw)
		}
	}
	if resp, raw := post(t, n, "/v1/sandboxes", strings.Repeat("k", 256), "{}"); resp.StatusCode != 400 || !bytes.Contains(raw, []byte("Idempotency-Key")) {
		t.Errorf("long key: %d %s", resp.StatusCode, raw)
	}
}

// made is a create that was answered.
type made struct{ key, id string }

// TestCase47NodeKilledUnderLoad kills the node at random moments while clients create and run commands under keys and
// ask again: each key has one sandbox, no sandbox is nobody's, no command ran twice.
func TestCase47NodeKilledUnderLoad(t *testing.T) {
	n := testbed.Start(t, testbed.Options{})
	p := startProxy(t, n)
	counter := n.Create(t, labelled("counter")).ID()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	const each, workers = 50, 8
	got := make(chan made, each*workers)
	ran := make(chan string, each*workers)
	var wg sync.WaitGroup
	for w := range workers {
		c := p.client(t, n)
		wg.Go(func() {
			for i := range each {
				key := fmt.Sprintf("w%d-%d", w, i)
				sb, err := c.CreateOnce(ctx, key, labelled("killed"))
				if err != nil {
					t.Errorf("create %s: %v", key, err)
					return
				}
				got <- made{key, sb.ID()}
				_, err = c.Sandbox(counter).Exec(ctx, libdsec.Cmd{Shell: "echo " + key + " >> /tmp/ran", Key: key + "-exec"})
				switch {
				case err == nil:
					ran <- key
				case !libdsec.IsCode(err, api.CodeResultGone):
					t.Errorf("exec %s: %v", key, err)
				}
			}
		})
	}
	stop := make(chan struct{})
	go func() { wg.Wait(); close(stop) }()
	kills := 0
	for done := false; !done; {
		select {
		case <-stop:
			done = true
		case <-time.After(time.Duration(300+rand.IntN(700)) * time.Millisecond):
			if kills < 6 {
				kills++
				n.Kill(t)
				n.Restart(t)
				p.aim(n)
			}
		}
	}
	close(got)
	close(ran)
	there := living(t, n, "killed")
	ids := checkMade(t, n, there, got)
	for id, key := range ids { // asked once more, after all that
		sb, err := n.Client.CreateOnce(ctx, key, labelled("killed"))
		if err != nil || sb.ID() != id {
			t.Errorf("%s: %v, want %s", key, err, id)
		}
	}
	answered, commands := checkRan(t, n.Client.Sandbox(counter), ran)
	t.Logf("%d kills, %d sandboxes, %d commands ran, %d answered", kills, len(there), commands, answered)
	if kills == 0 || len(ids) != each*workers {
		t.Errorf("%d kills, %d sandboxes", kills, len(ids))
	}
	stopAll(t, n, there)
}

// checkMade compares the sandboxes that clients were told of with those that are there.
func checkMade(t *testing.T, n *testbed.Node, there map[string]bool, got <-chan made) map[string]string {
	t.Helper()
	ids := map[string]string{}
	for m := range got {
		if other, twice := ids[m.id]; twice {
			t.Errorf("%s answers %s and %s", m.id, m.key, other)
		}
		if ids[m.id] = m.key; !there[m.id] {
			info, err := n.Client.Sandbox(m.id).Refresh(t.Context())
			t.Errorf("the sandbox of %s isn't there: %s is %s (%s), made %v, ended %v, %v", m.key, m.id, info.State, info.Reason, info.StartedAt, info.EndedAt, err)
		}
	}
	for id := range there {
		if ids[id] == "" {
			t.Errorf("%s is nobody's", id)
		}
	}
	return ids
}

// checkRan compares the commands that were answered with what they have written.
func checkRan(t *testing.T, counter *libdsec.Sandbox, ran <-chan string) (answered, commands int) {
	t.Helper()
	lines := map[string]int{}
	for line := range strings.Lines(testbed.Output(t, counter, "cat /tmp/ran") + "\n") {
		lines[strings.TrimSpace(line)]++
	}
	for key := range ran {
		answered++
		if lines[key] != 1 {
			t.Errorf("%s was answered and ran %d times", key, lines[key])
		}
	}
	for key, times := range lines {
		if times > 1 {
			t.Errorf("%s ran %d times", key, times)
		}
	}
	return answered, len(lines)
}

// TestCase46AbortedCreatesLeaveNothing ends creates at random moments, with and without a key that a repeat would need.
func TestCase46AbortedCreatesLeaveNothing(t *testing.T) {
	n := testbed.Start(t, testbed.Options{})
	const creates = 1000
	// Those that were answered, and those whose answer was written before their caller left, end by their time.
	spec := labelled("case46")
	spec.TTL.RunningS = new(int64(20))
	body := `{"image":"busybox","labels":{"test":"case46"},"resources":{"memory_mb":64,"pids":64},"ttl":{"running_s":20}}`
	begun := time.Now()
	for range 8 {
		if err := plainCreate(t.Context(), n, body); err != nil {
			t.Fatal(err)
		}
	}
	most := 4 * time.Since(begun) / 8 // of four at a time
	counts := map[string]int{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	todo := make(chan int, creates)
	for i := range creates {
		todo <- i
	}
	close(todo)
	for range 4 {
		wg.Go(func() {
			for i := range todo {
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(2*most))
				how := "keyed "
				var err error
				if i%4 == 0 {
					_, err = n.Client.Create(ctx, spec)
				} else {
					how = "plain "
					err = plainCreate(ctx, n, body)
				}
				cancel()
				mu.Lock()
				counts[how+strconv.FormatBool(err == nil)]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Logf("answered: %v; at once after: %d sandboxes", counts, len(living(t, n, "case46")))
	if counts["plain false"] == 0 || counts["plain true"] == 0 {
		t.Errorf("%v: nothing was aborted, or everything", counts)
	}
	testbed.Until(t, hang, "what is left ends", func() bool { return len(living(t, n, "case46")) == 0 })
	// An abandoned create that nobody was told of may still be on its way out. What the kernel holds is looked at when the
	// node has ended.
	testbed.Until(t, hang, "nothing is promised to anybody", func() bool {
		for _, v := range promised(t, n) {
			if v != 0 {
				return false
			}
		}
		return true
	})
}

func plainCreate(ctx context.Context, n *testbed.Node, body string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.Endpoint+"/v1/sandboxes", strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+n.Token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}
