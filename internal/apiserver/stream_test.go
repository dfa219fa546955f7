package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

const proc = box + "/processes/p1"

// parseEvents decodes an NDJSON answer.
func parseEvents(t testing.TB, body string) []api.StreamEvent {
	t.Helper()
	var all []api.StreamEvent
	for line := range strings.Lines(body) {
		ev, err := api.Decode[api.StreamEvent]([]byte(line))
		if err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		all = append(all, ev)
	}
	return all
}

func TestStartAnswersTheProcess(t *testing.T) {
	r := newRig(t)
	resp := r.do(request{method: "POST", path: box + "/processes", body: `{"argv":["exit"],"tag":"t","tty":{"rows":5,"cols":9}}`})
	var p api.Process
	if err := json.Unmarshal([]byte(resp.body), &p); err != nil {
		t.Fatal(err)
	}
	if resp.status != 201 || p.ID != "p1" || p.PID != 7 || !p.Running || !p.TTY || p.Tag != "t" || p.StartedAt.IsZero() ||
		resp.header.Get("Location") != proc {
		t.Errorf("answer = %d %v %s", resp.status, resp.header, resp.body)
	}
	var m aether.ExecStart
	if err := m.Unmarshal(r.edge.last(t, "exec").Body); err != nil {
		t.Fatal(err)
	}
	if !m.Keep || !m.TTY || m.Rows != 5 || m.Cols != 9 || m.Stdin {
		t.Errorf("exec start = %+v", m)
	}
	resp = r.do(request{method: "POST", path: box + "/processes", body: `{"argv":["nope"]}`})
	if resp.status != 422 || resp.problem.Code != api.CodeCommandNotFound {
		t.Errorf("missing command = %d %s", resp.status, resp.body)
	}
}

func TestStartStreams(t *testing.T) {
	r := newRig(t)
	for name, q := range map[string]request{
		"query":  {path: box + "/processes?stream=1"},
		"accept": {path: box + "/processes", header: http.Header{"Accept": {"application/json;q=0.1, application/x-ndjson"}}},
	} {
		t.Run(name, func(t *testing.T) {
			q.method, q.body = "POST", `{"argv":["cat"],"stdin":"in\u0000put"}`
			resp := r.do(q)
			got := parseEvents(t, resp.body)
			if len(got) != 3 || resp.header.Get("Content-Type") != mediaNDJSON {
				t.Fatalf("answer = %v %s", resp.header, resp.body)
			}
			got[2].Exit = nil
			want := []api.StreamEvent{{Type: "started", ID: "p1"}, {Type: "stdout", Data: []byte("in\x00put")}, {Type: "exit"}}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
	resp := r.do(request{method: "POST", path: box + "/processes?stream=1", body: `{"argv":["nope"]}`})
	if resp.status != 422 {
		t.Errorf("missing command = %d %s", resp.status, resp.body)
	}
	resp = r.do(request{method: "POST", path: box + "/processes?stream=1", body: `{"argv":["lost"]}`})
	got := parseEvents(t, resp.body)
	if last := got[len(got)-1]; got[0].Type != "started" || last.Type != "error" || last.Error.Code != api.CodeSandboxDied || last.Error.RequestID == "" {
		t.Errorf("a sandbox that died = %+v", last)
	}
}

func TestAttachReplaysFromOffset(t *testing.T) {
	r := newRig(t)
	for _, tc := range []struct {
		query string
		want  []api.StreamEvent
	}{
		{"", []api.StreamEvent{{Type: "gap", Stream: "stdout", Length: 2}, {Type: "stdout", Offset: 2, Data: []byte("23456789")}}},
		{"?stdout_offset=7&stderr_offset=1", []api.StreamEvent{{Type: "stdout", Offset: 7, Data: []byte("789")}}},
		{"?stdout_offset=10", nil},
	} {
		resp := r.do(request{method: "GET", path: proc + "/attach" + tc.query})
		got := parseEvents(t, resp.body)
		if resp.status != 200 || len(got) < 2 || got[0].Type != "started" || got[len(got)-1].Type != "exit" {
			t.Fatalf("attach%s = %d %s", tc.query, resp.status, resp.body)
		}
		if diff := cmp.Diff(tc.want, append([]api.StreamEvent(nil), got[1:len(got)-1]...)); diff != "" {
			t.Errorf("attach%s (-want +got):\n%s", tc.query, diff)
		}
	}
	if resp := r.do(request{method: "GET", path: box + "/processes/p2/attach"}); resp.status != 404 || resp.problem.Code != api.CodeNoSuchProcess {
		t.Errorf("unknown process = %d %s", resp.status, resp.body)
	}
	if resp := r.do(request{method: "GET", path: proc + "/attach?stdout_offset=-1"}); resp.status != 400 || resp.problem.Field != "stdout_offset" {
		t.Errorf("negative offset = %d %s", resp.status, resp.body)
	}
}

func TestStdinIsOrderedAndAcknowledged(t *testing.T) {
	r := newRig(t)
	var want strings.Builder
	for i := range 20 {
		part := strings.Repeat(string(rune('a'+i)), 10_000)
		want.WriteString(part)
		path := proc + "/stdin"
		if i == 19 {
			path += "?close=1"
		}
		if resp := r.do(request{method: "POST", path: path, body: part}); resp.status != 200 || !strings.Contains(resp.body, `"written":10000`) {
			t.Fatalf("stdin = %d %s", resp.status, resp.body)
		}
	}
	r.edge.mu.Lock()
	defer r.edge.mu.Unlock()
	if string(r.edge.input) != want.String() || !r.edge.closed {
		t.Errorf("the process got %d bytes, closed %v", len(r.edge.input), r.edge.closed)
	}
}

func TestStdinThatIsNotTakenIsRefused(t *testing.T) {
	r := newRig(t)
	if resp := r.do(request{method: "POST", path: proc + "/stdin?close=1", body: "in"}); resp.status != 200 {
		t.Fatalf("stdin = %d %s", resp.status, resp.body)
	}
	if resp := r.do(request{method: "POST", path: proc + "/stdin", body: "late"}); resp.status != 409 || resp.problem.Code != api.CodeWrongState {
		t.Errorf("stdin after its end = %d %s", resp.status, resp.body)
	}
}

// TestStdinHoldsBackTheClient: a process that doesn't read makes the client wait, not the server collect.
func TestStdinHoldsBackTheClient(t *testing.T) {
	r := newRig(t)
	unread := make(chan struct{})
	r.edge.mu.Lock()
	r.edge.unread = unread
	r.edge.mu.Unlock()
	const size = 64 << 20
	sent := make(chan int64, 1)
	body, w := io.Pipe()
	go func() {
		var n int64
		chunk := make([]byte, 1<<20)
		for n < size {
			k, err := w.Write(chunk)
			n += int64(k)
			if err != nil {
				break
			}
		}
		_ = w.Close()
		sent <- n
	}()
	req, err := http.NewRequestWithContext(t.Context(), "POST", r.url+proc+"/stdin", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+r.token)
	answered := make(chan int, 1)
	go func() {
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			answered <- -1
			return
		}
		defer resp.Body.Close()
		answered <- resp.StatusCode
	}()
	select {
	case n := <-sent:
		t.Fatalf("%d bytes were taken for a process that reads nothing", n)
	case <-time.After(300 * time.Millisecond): // far longer than loopback needs for 64 MiB without holding back
	}
	close(unread)
	if n, status := <-sent, <-answered; n != size || status != 200 {
		t.Errorf("sent %d of %d, status %d", n, size, status)
	}
}

func TestSignalsAndKill(t *testing.T) {
	r := newRig(t)
	for _, tc := range []struct {
		method, path, body string
		status             int
		want               aether.Signal
	}{
		{"POST", proc + "/signal", `{"signal":"SIGTERM"}`, 204, aether.Signal{ID: "p1", Signal: 15}},
		{"POST", proc + "/signal", `{"signal":"INT","tree":true}`, 204, aether.Signal{ID: "p1", Signal: 2, Tree: true}},
		{"DELETE", proc, "", 204, aether.Signal{ID: "p1", Signal: 9, Tree: true}},
		{"POST", proc + "/signal", `{"signal":"SIGNOPE"}`, 400, aether.Signal{}},
		{"POST", box + "/processes/p2/signal", `{"signal":"SIGTERM"}`, 404, aether.Signal{}},
	} {
		resp := r.do(request{method: tc.method, path: tc.path, body: tc.body})
		if resp.status != tc.status {
			t.Errorf("%s %s %s = %d %s, want %d", tc.method, tc.path, tc.body, resp.status, resp.body, tc.status)
			continue
		}
		var m aether.Signal
		if tc.status == 204 {
			if err := m.Unmarshal(r.edge.last(t, "signal").Body); err != nil || m != tc.want {
				t.Errorf("signal %+v %v, want %+v", m, err, tc.want)
			}
		}
	}
	if resp := r.do(request{method: "POST", path: proc + "/resize", body: `{"rows":0,"cols":5}`}); resp.status != 400 || resp.problem.Field != "rows" {
		t.Errorf("resize to no rows = %d %s", resp.status, resp.body)
	}
	if resp := r.do(request{method: "POST", path: proc + "/resize", body: `{"rows":5,"cols":5}`}); resp.status != 204 {
		t.Errorf("resize = %d %s", resp.status, resp.body)
	}
}

func TestLogsAndEvents(t *testing.T) {
	r := newRig(t)
	if resp := r.do(request{method: "GET", path: box + "/logs"}); resp.body != "a\nb\r\n" {
		t.Errorf("logs = %q", resp.body)
	}
	resp := r.do(request{method: "GET", path: box + "/logs?since=5&follow=1", header: http.Header{"Accept": {mediaNDJSON}}})
	want := []api.StreamEvent{{Type: "stdout", Offset: 5, Data: []byte("a\n")}, {Type: "stderr", Data: []byte("b\r\n")}}
	if diff := cmp.Diff(want, parseEvents(t, resp.body)); diff != "" {
		t.Errorf("logs as events (-want +got):\n%s", diff)
	}
	if got := string(r.edge.last(t, "sandbox.logs").Body); got != `{"follow":true,"since_offset":5,"since_stderr_offset":0}` {
		t.Errorf("the edge was asked %s", got)
	}
	lines := `{"seq":1,"type":"created"}` + "\n" + `{"seq":2,"type":"running"}` + "\n"
	if resp := r.do(request{method: "GET", path: box + "/events"}); resp.body != lines {
		t.Errorf("events = %q", resp.body)
	}
	resp = r.do(request{method: "GET", path: box + "/events?follow", header: http.Header{"Accept": {mediaSSE}, "Last-Event-Id": {"7"}}})
	sse := "id: 1\nevent: created\ndata: {\"seq\":1,\"type\":\"created\"}\n\nid: 2\nevent: running\ndata: {\"seq\":2,\"type\":\"running\"}\n\n"
	if resp.body != sse {
		t.Errorf("server-sent events = %q", resp.body)
	}
	if got := string(r.edge.last(t, "sandbox.events").Body); got != `{"follow":true,"since":7}` {
		t.Errorf("the edge was asked %s", got)
	}
	if resp := r.do(request{method: "GET", path: "/v1/sandboxes/" + foreignBox + "/events"}); resp.status != 404 {
		t.Errorf("a foreign sandbox's events = %d", resp.status)
	}
}

// dial opens a WebSocket.
func (r *rig) dial(path string) (*websocket.Conn, *http.Response, error) {
	return websocket.Dial(r.t.Context(), r.url+path, &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + r.token}}})
}

func TestWebSocketAttach(t *testing.T) {
	r := newRig(t)
	ws, _, err := r.dial(proc + "/attach?stdout_offset=7")
	if err != nil {
		t.Fatal(err)
	}
	var types []string
	for {
		kind, data, err := ws.Read(t.Context())
		if websocket.CloseStatus(err) == websocket.StatusNormalClosure {
			break
		}
		if err != nil || kind != websocket.MessageText {
			t.Fatal(kind, err)
		}
		ev, err := api.Decode[api.StreamEvent](data)
		if err != nil {
			t.Fatal(err)
		}
		types = append(types, ev.Type+string(ev.Data))
	}
	if diff := cmp.Diff([]string{"started", "stdout789", "exit"}, types); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if _, resp, err := r.dial(box + "/processes/p2/attach"); err == nil || resp.StatusCode != 404 {
		t.Errorf("an unknown process was attached to: %v", err)
	}
}

func TestWebSocketInput(t *testing.T) {
	r := newRig(t)
	r.edge.mu.Lock()
	r.edge.stay = true
	r.edge.mu.Unlock()
	ws, _, err := r.dial(proc + "/attach?stdout_offset=10")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	next := func() api.StreamEvent {
		t.Helper()
		_, data, err := ws.Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		ev, err := api.Decode[api.StreamEvent](data)
		if err != nil {
			t.Fatal(err)
		}
		return ev
	}
	if ev := next(); ev.Type != "started" {
		t.Fatalf("first event %+v", ev)
	}
	for _, msg := range []string{
		`{"type":"stdin","data":"YWI="}`, `{"type":"stdin","data":"Y2Q="}`, `{"type":"stdin_close"}`,
		`{"type":"signal","signal":"SIGINT"}`, `{"type":"resize","rows":3,"cols":4}`,
	} {
		if err := ws.Write(ctx, websocket.MessageText, []byte(msg)); err != nil {
			t.Fatal(err)
		}
	}
	for _, msg := range []string{`{"type":"dance"}`, `{"type":"stdin","date":""}`, `nonsense`, `{"type":"resize"}`, `{"type":"signal"}`} {
		if err := ws.Write(ctx, websocket.MessageText, []byte(msg)); err != nil {
			t.Fatal(err)
		}
		if ev := next(); ev.Type != "error" || ev.Error.Code.Status() != 400 {
			t.Errorf("after %s: %+v", msg, ev)
		}
	}
	within(t, time.Minute, "input arrived", func() bool {
		r.edge.mu.Lock()
		defer r.edge.mu.Unlock()
		return string(r.edge.input) == "abcd" && r.edge.closed
	})
	var size aether.Resize
	if err := size.Unmarshal(r.edge.last(t, "resize").Body); err != nil || size != (aether.Resize{ID: "p1", Rows: 3, Cols: 4}) {
		t.Errorf("resize %+v %v", size, err)
	}
	if err := ws.Close(websocket.StatusNormalClosure, ""); err != nil && !errors.Is(err, io.EOF) {
		t.Errorf("close: %v", err)
	}
}

func TestStreamsEndWhenTheServerDoes(t *testing.T) {
	r := newRig(t)
	r.edge.mu.Lock()
	r.edge.stay = true
	r.edge.mu.Unlock()
	ws, _, err := r.dial(proc + "/attach")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ws.CloseNow() })
	go func() { _, _ = r.send(context.Background(), request{method: "GET", path: proc + "/attach"}) }()
	within(t, time.Minute, "both attached", func() bool {
		r.edge.mu.Lock()
		defer r.edge.mu.Unlock()
		return r.edge.attached == 2
	})
	// The rig's own end waits for Serve to return, and for no goroutine to be left.
}
