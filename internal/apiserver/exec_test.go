package apiserver

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/apiserver/encode"
)

const box = "/v1/sandboxes/" + ourBox

func (r *rig) exec(req api.ExecRequest) (api.ExecResult, response) {
	r.t.Helper()
	body, err := json.Marshal(req)
	if err != nil {
		r.t.Fatal(err)
	}
	resp := r.do(request{method: "POST", path: box + "/exec", body: string(body)})
	var res api.ExecResult
	if resp.status == 200 {
		if err := json.Unmarshal([]byte(resp.body), &res); err != nil {
			r.t.Fatalf("answer %q: %v", resp.body, err)
		}
	}
	return res, resp
}

func decoded(t testing.TB, text string, enc api.Encoding) []byte {
	t.Helper()
	if enc == api.EncodingUTF8 {
		return []byte(text)
	}
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestExecBytesAreExact(t *testing.T) {
	r := newRig(t)
	for _, want := range []string{"", "a\n\n\r\nb", "é😀", "\x00\x1f\"\\</script>\u2028", "tail\xf0\x9f", "\x7f\t"} {
		res, _ := r.exec(api.ExecRequest{Argv: []string{"cat"}, Stdin: []byte(want)})
		got := decoded(t, res.Stdout, res.StdoutEncoding)
		if string(got) != want || (res.StdoutEncoding == api.EncodingUTF8) != utf8.ValidString(want) {
			t.Errorf("cat %q = %q %s", want, got, res.StdoutEncoding)
		}
	}
}

func TestExecLargeInput(t *testing.T) {
	r := newRig(t)
	want := make([]byte, 8<<20)
	src := rand.NewChaCha8([32]byte{1})
	_, _ = src.Read(want)
	res, resp := r.exec(api.ExecRequest{Argv: []string{"cat"}, Stdin: want, MaxOutputBytes: new(int64(16 << 20))})
	if resp.status != 200 || !bytes.Equal(decoded(t, res.Stdout, res.StdoutEncoding), want) {
		t.Errorf("8 MiB through cat came back as %d bytes, status %d", len(res.Stdout), resp.status)
	}
}

func TestExecNoInputMeansNone(t *testing.T) {
	r := newRig(t)
	r.exec(api.ExecRequest{Argv: []string{"exit"}})
	var m aether.ExecStart
	if err := m.Unmarshal(r.edge.last(t, "exec").Body); err != nil {
		t.Fatal(err)
	}
	if m.Stdin || m.Keep || m.MaxOutput != api.DefaultMaxOutput {
		t.Errorf("exec start = %+v", m)
	}
	if res, _ := r.exec(api.ExecRequest{Argv: []string{"cat"}, StdinText: new("")}); res.ExitCode == nil || *res.ExitCode != 0 {
		t.Errorf("empty stdin: %+v", res)
	}
}

func TestExecStartCarriesEverything(t *testing.T) {
	r := newRig(t)
	r.exec(api.ExecRequest{
		Argv: []string{"exit", "a b", "é"}, Env: map[string]string{"B": "x=y\n", "A": ""}, Cwd: "/tmp", User: "app",
		TimeoutMS: new(int64(1500)), MaxOutputBytes: new(int64(9)), Session: "s1",
	})
	var got aether.ExecStart
	if err := got.Unmarshal(r.edge.last(t, "exec").Body); err != nil {
		t.Fatal(err)
	}
	want := aether.ExecStart{
		Argv: [][]byte{[]byte("exit"), []byte("a b"), []byte("é")}, Env: [][]byte{[]byte("A="), []byte("B=x=y\n")},
		Cwd: []byte("/tmp"), User: "app", TimeoutMS: 1500, MaxOutput: 9, Session: "s1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("exec start (-want +got):\n%s", diff)
	}
}

func TestExecOutcomes(t *testing.T) {
	r := newRig(t)
	t.Run("exit-code", func(t *testing.T) {
		res, _ := r.exec(api.ExecRequest{Argv: []string{"exit"}, TimeoutMS: new(int64(5))})
		if res.ExitCode == nil || *res.ExitCode != 3 || res.DurationMS != 1.5 || res.TimeoutMS == nil || *res.TimeoutMS != 5 || res.StartedAt.IsZero() {
			t.Errorf("result = %+v", res)
		}
	})
	t.Run("signal", func(t *testing.T) {
		res, _ := r.exec(api.ExecRequest{Argv: []string{"kill"}})
		if res.ExitCode != nil || res.Signal != "SIGKILL" || !res.OOMKilled || res.InfraError != "bad ? byte" {
			t.Errorf("result = %+v", res)
		}
	})
	t.Run("not-found", func(t *testing.T) {
		_, resp := r.exec(api.ExecRequest{Argv: []string{"nope"}})
		if resp.status != 422 || resp.problem.Code != api.CodeCommandNotFound || resp.problem.ExitCode == nil || *resp.problem.ExitCode != 127 {
			t.Errorf("answer = %d %s", resp.status, resp.body)
		}
	})
	t.Run("lost-after-start", func(t *testing.T) {
		res, resp := r.exec(api.ExecRequest{Argv: []string{"lost"}})
		if resp.status != 200 || !strings.Contains(res.InfraError, "sandbox died") || res.ExitCode != nil || !res.Truncated || strings.Contains(res.InfraError, "isn't known") {
			t.Errorf("answer = %d %s", resp.status, resp.body)
		}
	})
	t.Run("lost-before-start", func(t *testing.T) {
		res, resp := r.exec(api.ExecRequest{Argv: []string{"vanish"}})
		if resp.status != 200 || !strings.Contains(res.InfraError, "isn't known whether it started") || res.StartedAt.IsZero() {
			t.Errorf("answer = %d %s", resp.status, resp.body)
		}
	})
	t.Run("more-than-allowed", func(t *testing.T) {
		res, _ := r.exec(api.ExecRequest{Argv: []string{"flood"}, MaxOutputBytes: new(int64(100_000))})
		if len(res.Stdout) != 100_000 || !res.Truncated || res.StdoutTotal != 300_000 {
			t.Errorf("%d bytes, truncated %v, total %d", len(res.Stdout), res.Truncated, res.StdoutTotal)
		}
	})
}

// within waits for a condition that another goroutine brings about.
func within(t testing.TB, d time.Duration, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(d)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: not within %s", what, d)
		}
	}
}

func TestExecClientLeaving(t *testing.T) {
	r := newRig(t)
	for _, body := range []string{`{"argv":["hang"]}`, `{"argv":["hang"],"stdin":""}`} {
		ctx, cancel := context.WithCancelCause(t.Context())
		before := r.edge.cancels()
		failed := make(chan error, 1)
		go func() {
			_, err := r.send(ctx, request{method: "POST", path: box + "/exec", body: body})
			failed <- err
		}()
		within(t, time.Minute, "command started", func() bool {
			r.edge.mu.Lock()
			defer r.edge.mu.Unlock()
			return len(r.edge.seen) > 0
		})
		cancel(errors.New("client leaves"))
		if err := <-failed; err == nil {
			t.Fatal("the request was answered")
		}
		if strings.Contains(body, "stdin") {
			continue // it may have left before it was heard
		}
		within(t, time.Minute, "command cancelled", func() bool { return r.edge.cancels() > before })
	}
}

func (e *fakeEdge) cancels() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cancelled
}

func TestExecBodyLimits(t *testing.T) {
	r := newRig(t)
	big := `{"shell":"` + strings.Repeat("x", largeBody) + `"}`
	resp := r.do(request{method: "POST", path: box + "/exec", body: big})
	if resp.status != 413 || resp.problem.Code != api.CodeTooLarge || !strings.Contains(resp.problem.Detail, "16777216") {
		t.Errorf("answer = %d %s", resp.status, resp.body)
	}
	script := `{"shell":"` + strings.Repeat("x", 1<<20) + `"}`
	if resp := r.do(request{method: "POST", path: box + "/exec", body: script}); resp.status != 200 {
		t.Errorf("a script of 1 MiB: %d %.200s", resp.status, resp.body)
	}
	resp = r.do(request{method: "PATCH", path: box, body: `{"env":{"A":"` + strings.Repeat("x", smallBody) + `"}}`})
	if resp.status != 413 {
		t.Errorf("patch of 1 MiB: %d", resp.status)
	}
}

func TestEdgeDownAndBack(t *testing.T) {
	e := &fakeEdge{socket: t.TempDir() + "/edge.sock"}
	r := serveRig(t, e)
	resp := r.do(request{method: "POST", path: box + "/exec", body: `{"argv":["exit"]}`})
	if resp.status != 503 || resp.problem.Code != api.CodeUnavailable || resp.problem.RetryMS <= 0 || resp.header.Get("Retry-After") == "" {
		t.Errorf("edge down: %d %v %s", resp.status, resp.header, resp.body)
	}
	if resp := r.do(request{method: "GET", path: "/readyz", anonymous: true}); resp.status != 503 {
		t.Errorf("readyz with the edge down = %d", resp.status)
	}
	if resp := r.do(request{method: "GET", path: "/healthz", anonymous: true}); resp.status != 200 {
		t.Errorf("healthz with the edge down = %d", resp.status)
	}
	for range 2 {
		stop := e.serve(t)
		within(t, time.Minute, "edge is found again", func() bool {
			return r.do(request{method: "POST", path: box + "/exec", body: `{"argv":["exit"]}`}).status == 200
		})
		stop()
	}
	if resp := r.do(request{method: "GET", path: box}); resp.status != 503 || resp.problem.RetryMS <= 0 {
		t.Errorf("edge down again: %d %s", resp.status, resp.body)
	}
}

func TestAppendResultIsTheSameAsEncodingJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := api.ExecResult{ExitStatus: api.ExitStatus{
			Signal: rapid.SampledFrom([]string{"", "SIGKILL"}).Draw(t, "signal"), TimedOut: rapid.Bool().Draw(t, "timed"),
			OOMKilled: rapid.Bool().Draw(t, "oom"), Cancelled: rapid.Bool().Draw(t, "cancelled"), InfraError: rapid.String().Draw(t, "infra"),
			StdinClosedEarly: rapid.Bool().Draw(t, "closed"), StdoutTotal: rapid.Int64().Draw(t, "out"), StderrTotal: rapid.Int64().Draw(t, "err"),
			Truncated: rapid.Bool().Draw(t, "truncated"), LeftProcesses: rapid.Bool().Draw(t, "left"),
			StartedAt:  time.Unix(0, rapid.Int64Range(0, 4e18).Draw(t, "at")).UTC(),
			DurationMS: float64(rapid.Int64Range(0, 1e15).Draw(t, "ns")) / 1e6,
		}}
		if rapid.Bool().Draw(t, "has oom") {
			want.OOM = &api.OOM{LimitBytes: rapid.Int64().Draw(t, "limit"), PeakBytes: rapid.Int64().Draw(t, "peak")}
		}
		if rapid.Bool().Draw(t, "has code") {
			want.ExitCode = new(rapid.Int().Draw(t, "code"))
		}
		if rapid.Bool().Draw(t, "has timeout") {
			want.TimeoutMS = new(rapid.Int64().Draw(t, "timeout"))
		}
		bytesOrText := rapid.OneOf(rapid.SliceOf(rapid.Byte()), rapid.Map(rapid.String(), func(s string) []byte { return []byte(s) }))
		stdout, stderr := bytesOrText.Draw(t, "stdout"), bytesOrText.Draw(t, "stderr")

		line := encode.AppendResult(nil, &want.ExitStatus, stdout, stderr)
		got, err := api.Decode[api.ExecResult](line)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		for _, o := range []struct {
			text string
			enc  api.Encoding
			want []byte
		}{{got.Stdout, got.StdoutEncoding, stdout}, {got.Stderr, got.StderrEncoding, stderr}} {
			b := []byte(o.text)
			if o.enc == api.EncodingBase64 {
				if b, err = base64.StdEncoding.DecodeString(o.text); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(b, o.want) {
				t.Fatalf("output %q became %q", o.want, b)
			}
		}
		if diff := cmp.Diff(want.ExitStatus, got.ExitStatus); diff != "" {
			t.Fatalf("status (-want +got):\n%s", diff)
		}
	})
}
