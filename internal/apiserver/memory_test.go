package apiserver

import (
	"bytes"
	"encoding/json"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/apiserver/encode"
	"github.com/dsec-io/dsec/internal/budget"
	"github.com/dsec-io/dsec/internal/iam"
)

// sink is a response writer that keeps nothing, or everything.
type sink struct {
	keep   bool
	header http.Header
	body   bytes.Buffer
}

func (s *sink) Header() http.Header { return s.header }
func (s *sink) WriteHeader(int)     {}
func (s *sink) Write(p []byte) (int, error) {
	if s.keep {
		return s.body.Write(p)
	}
	return len(p), nil
}

// TestLargeResultIsNeverWholeInMemory: as JSON a command's output can be six times as large as it is. Three requests for
// such a result took 9 GiB once.
func TestLargeResultIsNeverWholeInMemory(t *testing.T) {
	s := newRig(t).srv
	data := bytes.Repeat([]byte{1}, 16<<20)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c := &call{server: s, ResponseWriter: &sink{header: http.Header{}}}
	if err := c.result(&api.ExitStatus{}, data, data); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 8<<20 {
		t.Errorf("to send 32 MiB of output took %d bytes", got)
	}
}

// TestResultInPieces compares large results with what encoding/json reads.
func TestResultInPieces(t *testing.T) {
	s := newRig(t).srv
	for _, want := range []string{
		strings.Repeat("é😀\n\x01\"", 30_000), strings.Repeat("\xff\x00", encode.Piece+1), strings.Repeat("x", 2*encode.Piece),
		strings.Repeat("x", encode.Piece-1) + "é" + strings.Repeat("y", encode.Piece),
	} {
		for _, outs := range [][2]string{{want, ""}, {"", want}, {want, want}} {
			w := &sink{keep: true, header: http.Header{}}
			c := &call{server: s, ResponseWriter: w}
			if err := c.result(&api.ExitStatus{StdoutTotal: 7}, []byte(outs[0]), []byte(outs[1])); err != nil {
				t.Fatal(err)
			}
			var res api.ExecResult
			if err := json.Unmarshal(w.body.Bytes(), &res); err != nil {
				t.Fatal(err)
			}
			if string(decoded(t, res.Stdout, res.StdoutEncoding)) != outs[0] || string(decoded(t, res.Stderr, res.StderrEncoding)) != outs[1] || res.StdoutTotal != 7 {
				t.Errorf("%d and %d bytes came back as %d and %d", len(outs[0]), len(outs[1]), len(res.Stdout), len(res.Stderr))
			}
		}
	}
}

// TestMemoryHasALimit: what the large bodies and outputs of all requests take together is bounded, for each project, and
// given back.
func TestMemoryHasALimit(t *testing.T) {
	r := newRig(t)
	r.srv.memory = budget.New(4<<20, 2<<20)
	all := r.srv.memory.Open("another")
	small := strings.Repeat("x", 100_000)
	large := strings.Repeat("x", 3<<20)

	if _, resp := r.exec(api.ExecRequest{Argv: []string{"cat"}, Stdin: []byte(large)}); resp.problem.Code != api.CodeTooMany || resp.problem.RetryMS == 0 {
		t.Errorf("a body of 4 MiB: %d %.200s", resp.status, resp.body)
	}
	m := aether.ExecStart{Argv: [][]byte{[]byte("cat")}, Env: [][]byte{[]byte(large)}}
	if _, err := aether.Unary(t.Context(), r.upgrade(), aether.Open{Method: "exec", Sandbox: ourBox, Body: m.AppendTo(nil)}); !api.IsCode(err, api.CodeTooMany) {
		t.Errorf("an opening body of 3 MiB: %v", err)
	}
	res, _ := r.exec(api.ExecRequest{Argv: []string{"cat"}, Stdin: []byte(small)})
	if res.Stdout != small || res.Truncated {
		t.Errorf("a small one came back as %d bytes", len(res.Stdout))
	}

	if !all.Grow(2<<20) || !r.srv.memory.Open("a third").Grow(2<<20) {
		t.Fatal("something wasn't given back")
	}
	many := strings.Repeat("0123456789", 30_000)
	c := &call{server: r.srv, principal: iam.Principal{Project: "x"}}
	out := &output{c: c, limit: 1 << 20, stdout: r.srv.buffer(), stderr: r.srv.buffer()}
	for part := range 30 {
		out.keep(out.stdout, []byte(many[part*10_000:][:10_000]))
	}
	out.keep(out.stdout, []byte("more"))
	if n := len(*out.stdout); !out.dropped || n < 100_000 || string(*out.stdout) != many[:n] {
		t.Errorf("%d bytes were kept, dropped: %v", n, out.dropped)
	}
}

// TestInputOfAProcessHoldsMemory: what was sent for a process that doesn't read waits here after the request, and counts.
func TestInputOfAProcessHoldsMemory(t *testing.T) {
	r := newRig(t)
	r.srv.memory = budget.New(6<<20, 6<<20)
	r.edge.mu.Lock()
	r.edge.unread = make(chan struct{})
	r.edge.mu.Unlock()
	body, err := json.Marshal(api.StartRequest{ExecRequest: api.ExecRequest{Argv: []string{"deaf"}, Stdin: []byte(strings.Repeat("x", 2<<20))}})
	if err != nil {
		t.Fatal(err)
	}
	start := func() response {
		return r.do(request{method: "POST", path: box + "/processes", body: string(body)})
	}
	if resp := start(); resp.status != http.StatusCreated {
		t.Fatalf("the first: %d %.200s", resp.status, resp.body)
	}
	if resp := start(); resp.problem.Code != api.CodeTooMany {
		t.Errorf("the second: %d %.200s", resp.status, resp.body)
	}
	close(r.edge.unread)
	within(t, time.Minute, "the memory given back", func() bool { return start().status == http.StatusCreated })
}

// TestConnectionsOfAProject: one project can't take all the aether connections that the server has.
func TestConnectionsOfAProject(t *testing.T) {
	r := newRig(t)
	r.srv.upgrades = budget.New(2, 1)
	first := r.upgrade()
	h := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"aether"}}
	if resp := r.do(request{method: "GET", path: "/v1/aether", header: h}); resp.problem.Code != api.CodeTooMany {
		t.Errorf("the second = %d %s", resp.status, resp.body)
	}
	if !r.srv.upgrades.Open("another").Grow(1) {
		t.Error("another project has no connection")
	}
	_ = first.Close()
	within(t, time.Minute, "the connection given back", func() bool {
		place := r.srv.upgrades.Open(api.DefaultProject)
		defer place.Close()
		return place.Grow(1)
	})
}

// TestPlacesOfAProject: one project can't take all the requests and streams that the server and its edge can have open.
func TestPlacesOfAProject(t *testing.T) {
	r := newRig(t)
	r.srv.places = budget.New(4, 2)
	conn := r.upgrade() // one
	m := aether.ExecStart{Argv: [][]byte{[]byte("hang")}}
	hang := aether.Open{Method: "exec", Sandbox: ourBox, Body: m.AppendTo(nil)}
	st, err := conn.Open(t.Context(), hang) // two
	if err != nil {
		t.Fatal(err)
	}
	if f, err := st.Recv(t.Context()); err != nil {
		t.Fatal(err)
	} else {
		f.Release()
	}
	if _, err := aether.Unary(t.Context(), conn, hang); !api.IsCode(err, api.CodeTooMany) {
		t.Errorf("the third, a stream: %v", err)
	}
	if resp := r.do(request{method: "GET", path: box}); resp.problem.Code != api.CodeTooMany || resp.problem.RetryMS == 0 {
		t.Errorf("the third, a request: %d %s", resp.status, resp.body)
	}
	if resp := r.do(request{method: "GET", path: "/healthz", anonymous: true}); resp.status != http.StatusOK {
		t.Errorf("/healthz = %d %s", resp.status, resp.body)
	}
	if !r.srv.places.Open("another").Grow(2) {
		t.Error("another project has no place")
	}
	st.Reset(nil)
	within(t, time.Minute, "the place given back", func() bool {
		return r.do(request{method: "GET", path: box}).status == http.StatusOK
	})
}
