package limits

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// long tells whether the long forms are asked for: as many as the cases say.
func long() bool { return os.Getenv("DSEC_TEST_LONG") != "" }

// TestCase119HealthIsNotBehindWork: with thousands of open commands (DSEC_TEST_LONG=1; else hundreds), and with a store
// that takes a second for every write, the node says at once that it is well.
func TestCase119HealthIsNotBehindWork(t *testing.T) {
	n := testbed.Start(t, testbed.Options{Pool: -1, Faults: true})
	boxes, each, probes := 4, 75, 40
	if long() {
		boxes, each, probes = 10, 500, 1000
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	ends := make(chan string, boxes*each)
	begun := time.Now()
	open := openCommands(t, n, boxes, each, ends)
	t.Logf("%d commands are open after %v", len(open), time.Since(begun).Round(time.Millisecond))

	n.Fault(t, testbed.Fault{Point: "record:write", Delay: time.Second}, testbed.Fault{Point: "events:append", Delay: time.Second}, testbed.Fault{Point: "keys:append", Delay: time.Second})
	for range 8 { // work that waits for the store all the time
		tasks.Go(func() {
			for ctx.Err() == nil {
				if sb, err := n.Client.Create(ctx, api.Spec{Image: "busybox"}); err == nil {
					_, _ = sb.Stop(ctx) // the end of the test ends what is left
				}
			}
		})
	}
	tasks.Go(func() { // and some that doesn't
		for i := 0; ctx.Err() == nil; i = (i + 1) % len(open) {
			_, _ = fmt.Fprintln(open[i], "line")
		}
	})
	// Well under the second that one write takes; a machine that is busy with other tests needs some of it.
	const bound = 2 * time.Second
	for _, path := range []string{"/healthz", "/readyz"} {
		var took []time.Duration
		for range probes {
			at := time.Now()
			status, err := probe(t.Context(), n.Endpoint+path)
			took = append(took, time.Since(at))
			if err != nil || status != http.StatusOK {
				t.Errorf("%s: %d, %v", path, status, err)
			}
		}
		slices.Sort(took)
		most := took[(probes-1)*99/100]
		t.Logf("%s: median %v, 99 of 100 within %v", path, took[len(took)/2], most)
		if most > bound {
			t.Errorf("%s: 99 of 100 within %v", path, most)
		}
	}
	cancel()
	n.Fault(t)
	for _, in := range open {
		_ = in.Close()
	}
	for range open {
		if why := <-ends; why != "" {
			t.Errorf("a command: %s", why)
		}
	}
}

// openCommands starts so many commands in each of so many sandboxes, which wait for input, and returns their inputs. Each
// says on ends how it ended; nothing: well.
func openCommands(t *testing.T, n *testbed.Node, boxes, each int, ends chan<- string) (open []io.WriteCloser) {
	t.Helper()
	for i := range boxes {
		sb := commandsBox(t, n, i, each)
		for range each {
			r, w := io.Pipe()
			open = append(open, w)
			go func() {
				res, err := sb.Exec(t.Context(), libdsec.Cmd{Argv: []string{"cat"}, Stdin: r})
				switch {
				case err != nil:
					ends <- err.Error()
				case res.ExitCode == nil || *res.ExitCode != 0:
					ends <- fmt.Sprintf("%+v", res.ExitStatus)
				default:
					ends <- ""
				}
			}()
		}
		testbed.Until(t, hang, "all commands run", func() bool {
			m, err := sb.Metrics(t.Context())
			pids, _ := m["pids"].(float64)
			return err == nil && int(pids) > each
		})
	}
	return open
}

// commandsBox makes a sandbox for so many commands; of thousands each has a project, and so a shard with its own limit of
// descriptors.
func commandsBox(t *testing.T, n *testbed.Node, i, commands int) *libdsec.Sandbox {
	t.Helper()
	c := n.Client
	if long() {
		name := fmt.Sprintf("case119-%d", i)
		if _, err := c.CreateProject(t.Context(), api.ProjectSpec{Name: name}); err != nil {
			t.Fatal(err)
		}
		c = c.InProject(name)
	}
	spec := small(2048, int64(commands)+50)
	spec.Image = "busybox"
	sb, err := c.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

func probe(ctx context.Context, url string) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, hang)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// TestCase106LeastLimits: the least limits that are taken make a sandbox that works, or one that says what it hasn't got.
func TestCase106LeastLimits(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	for what, r := range map[string]api.Resources{
		"1 MiB":         {MemoryMB: new(int64(1))},
		"2 MiB":         {MemoryMB: new(int64(2))},
		"8 MiB":         {MemoryMB: new(int64(8))},
		"3 processes":   {PIDs: new(int64(3))},
		"0.01 of a CPU": {CPU: new(0.01)},
	} {
		sb, err := n.Client.Create(t.Context(), api.Spec{Image: "busybox", Resources: r})
		if err != nil {
			if e := api.AsError(err); e.Code == api.CodeInternal {
				t.Errorf("%s: create: %v", what, err)
			}
			continue
		}
		res, err := sb.Exec(t.Context(), libdsec.Cmd{Argv: []string{"echo", "works"}})
		switch {
		case err != nil:
			if e := api.AsError(err); e.Code == api.CodeInternal {
				t.Errorf("%s: exec: %v", what, err)
			}
			t.Logf("%s: %v", what, err)
		case res.OOMKilled:
			t.Logf("%s: %+v", what, res.OOM)
		case strings.TrimSpace(string(res.Stdout)) != "works":
			t.Errorf("%s: %+v %q", what, res.ExitStatus, res.Stdout)
		}
		if _, err := sb.Stop(t.Context()); err != nil {
			t.Errorf("%s: stop: %v", what, err)
		}
	}
}

// TestCase106NoNumbers: what is no sensible number of anything is refused with the field, by create and by patch.
func TestCase106NoNumbers(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, small(64, 64))
	before := usage(t, n, sb).Limits
	for _, field := range []string{"cpu", "memory_mb", "disk_mb", "pids"} {
		for _, value := range []string{"0", "-1", "0.0001", "1e12", "1e300", "1e400", "NaN", "-0", `""`, `"1"`, "[]", "{}", "true", "9223372036854775807", "9223372036854775808", "-9223372036854775809"} {
			for _, how := range []struct{ route, body string }{
				{"POST /v1/sandboxes", `{"image":"busybox","resources":{%q:%s}}`},
				{"PATCH /v1/sandboxes/" + sb.ID(), `{"resources":{%q:%s}}`},
			} {
				body := fmt.Sprintf(how.body, field, value)
				var doc struct{ Code, Field, Hint, Detail string }
				status := send(t, n, how.route, body, &doc)
				if status != http.StatusBadRequest && status != http.StatusUnprocessableEntity || doc.Code == "" || doc.Detail == "" {
					t.Errorf("%s %s: %d %+v", how.route, body, status, doc)
				} else if !strings.Contains(doc.Field, field) && value != "NaN" { // that isn't JSON at all
					t.Errorf("%s %s: %+v doesn't name the field", how.route, body, doc)
				}
			}
		}
	}
	if after := usage(t, n, sb).Limits; *after.CPU != *before.CPU || *after.MemoryMB != *before.MemoryMB || *after.PIDs != *before.PIDs {
		t.Errorf("the limits are %+v, and were %+v", after, before)
	}
}
