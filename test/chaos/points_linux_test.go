package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/fault"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// small is what all sandboxes here ask for.
func small(label string) api.Spec {
	return api.Spec{
		Image: "busybox", Labels: map[string]string{"chaos": label}, Command: []string{"sleep", "100000"},
		Resources: api.Resources{CPU: new(0.1), MemoryMB: new(int64(32)), PIDs: new(int64(32))},
	}
}

// post sends a request that is sent once, whatever becomes of it.
func post(ctx context.Context, n *testbed.Node, path, key string, body any) (status int, answer []byte, err error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return 0, nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.Endpoint+path, bytes.NewReader(raw))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+n.Token)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
}

// life is a sandbox's whole life in one request after another: every point of the edge that isn't a start's is met.
func life(ctx context.Context, n *testbed.Node, label string) error {
	spec := small(label)
	if strings.HasPrefix(label, "shard:") {
		spec.Isolation = "own"
	}
	status, raw, err := post(ctx, n, "/v1/sandboxes", libdsec.NewKey(), spec)
	if err != nil {
		return err
	}
	if status != http.StatusCreated {
		return refusal(raw)
	}
	var made api.Sandbox
	if err := json.Unmarshal(raw, &made); err != nil {
		return err
	}
	at := "/v1/sandboxes/" + made.ID
	status, raw, err = post(ctx, n, at+"/exec", libdsec.NewKey(), map[string]any{"shell": "echo hello"})
	if err == nil && status != http.StatusOK {
		err = refusal(raw)
	}
	sb := n.Client.Sandbox(made.ID)
	if err == nil {
		_, err = sb.Patch(ctx, api.Patch{Resources: &api.Resources{MemoryMB: new(int64(48))}})
	}
	if err == nil {
		_, err = sb.Pause(ctx)
	}
	if err == nil {
		_, err = sb.Resume(ctx)
	}
	_, serr := sb.Stop(ctx)
	return errors.Join(err, serr)
}

// refusal is the error in a problem document, which must be a whole one.
func refusal(raw []byte) error {
	var e api.Error
	if err := json.Unmarshal(raw, &e); err != nil || e.Code == "" || e.Detail == "" {
		return fmt.Errorf("no problem document: %q", raw)
	}
	return &e
}

// living lists the sandboxes with a label that haven't ended.
func living(t testing.TB, n *testbed.Node, label string) []*libdsec.Sandbox {
	t.Helper()
	var all []*libdsec.Sandbox
	for sb, err := range n.Client.List(t.Context(), libdsec.ListOptions{Labels: map[string]string{"chaos": label}}) {
		if err != nil {
			t.Fatal(err)
		}
		if !sb.Info().State.Ended() {
			all = append(all, sb)
		}
	}
	return all
}

// atStart tells which points are met only while a node starts.
func atStart(point string) bool {
	return strings.HasPrefix(point, "adopt:") || point == "orphan:remove"
}

// behind tells which points may be met only after a sandbox's end was told.
func behind(point string) bool { return point == "end:files" }

// rare are points that one life doesn't meet: what is made ahead is the backend's tests'; files are written anew or removed
// after an hour, or thousands of entries.
func rare() []string {
	return []string{
		"create:name", "ready:hand", "events:write", "events:rename", "keys:remove", "keys:result-remove", "orphan:remove",
		"log:remove", "log:remove-tmp", "events:remove-tmp", "clean:groups", "events:remove", "record:remove", "record:remove-tmp", "record:rename",
	}
}

// TestCase48EveryStepFails lets every point fail in turn while a sandbox goes through its life. What its client is told
// is an error that can be read; nothing of it stays.
func TestCase48EveryStepFails(t *testing.T) {
	n := testbed.Start(t, testbed.Options{Faults: true, Pool: -1})
	n.Create(t, small("kept"))
	if err := life(t.Context(), n, "whole"); err != nil {
		t.Fatal(err)
	}
	before := steady(t, n)
	told := map[string]int{}
	for _, point := range fault.Points() {
		if atStart(point) {
			continue
		}
		for i := range 4 {
			n.Fault(t, testbed.Fault{Point: point, Times: 1, Errno: []syscall.Errno{syscall.ENOSPC, syscall.EIO}[i%2], Part: 50 * (i / 2)})
			err := life(t.Context(), n, point)
			if !slices.Contains(rare(), point) {
				testbed.Until(t, hang, point+" to be met by a sandbox's life", func() bool { return n.Met(t).Hit[point] > 0 })
			}
			n.Fault(t)
			if err != nil {
				readable(t, point, i%2 == 0, err, told)
			}
			for _, sb := range living(t, n, point) {
				if _, err := sb.Stop(t.Context()); err != nil {
					t.Errorf("%s: stop what is left: %v", point, err)
				}
			}
		}
		// Shards of one sandbox, and files, go in the background.
		sameAgain(t, n, before, point)
	}
	t.Logf("told: %v", told)
}

// readable judges an error that a client was told.
func readable(t *testing.T, point string, full bool, err error, told map[string]int) {
	t.Helper()
	e, ok := errors.AsType[*api.Error](err)
	switch {
	case !ok:
		t.Errorf("%s: not a typed error: %v", point, err)
		return
	case strings.HasPrefix(point, "keys:") && e.Code == api.CodeUnavailable: // nothing was begun: it can be asked for again
	case full && e.Code != api.CodeDiskFull, !full && e.Code != api.CodeUnavailable && e.Code != api.CodePauseFailed && e.Code != api.CodeResumeFailed:
		t.Errorf("%s: %s: %s", point, e.Code, e.Detail)
	}
	told[string(e.Code)]++
}

// TestCase48DiesAtEveryStep kills the node with -9 at every point in turn. The next one has what was told and nothing
// else.
func TestCase48DiesAtEveryStep(t *testing.T) {
	n := testbed.Start(t, testbed.Options{Faults: true, Pool: -1})
	kept := n.Create(t, small("kept"))
	if err := life(t.Context(), n, "whole"); err != nil {
		t.Fatal(err)
	}
	n.Kill(t)
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	before := steady(t, n)
	for _, point := range fault.Points() {
		if slices.Contains(rare(), point) {
			continue
		}
		if atStart(point) {
			n.Kill(t)
			if err := n.Start(testbed.Fault{Point: point, Die: true}); err == nil {
				t.Errorf("%s isn't met by a start", point)
				continue
			}
		} else {
			n.Fault(t, testbed.Fault{Point: point, Die: true, Part: 50})
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			err := life(ctx, n, point)
			cancel()
			if err == nil && !behind(point) {
				t.Errorf("%s isn't met by a sandbox's life", point)
				continue
			}
			n.Died(t)
		}
		if err := n.Start(); err != nil {
			t.Fatalf("%s: the next node: %v", point, err)
		}
		left := living(t, n, point)
		for _, sb := range left {
			if st := sb.Info().State; st != api.StateRunning && st != api.StatePaused {
				t.Errorf("%s: %s is %s", point, sb.ID(), st)
			}
			if got := testbed.Output(t, sb, "echo here"); got != "here" {
				t.Errorf("%s: %s says %q", point, sb.ID(), got)
			}
			if _, err := sb.Stop(t.Context()); err != nil {
				t.Errorf("%s: %v", point, err)
			}
		}
		if len(left) > 1 {
			t.Errorf("%s: %d sandboxes of one create", point, len(left))
		}
		sameAgain(t, n, before, point)
	}
	if got := testbed.Output(t, n.Client.Sandbox(kept.ID()), "echo here"); got != "here" {
		t.Errorf("the one that had nothing to do with it says %q", got)
	}
}
