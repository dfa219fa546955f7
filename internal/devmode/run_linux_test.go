package devmode

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/edge"
	"github.com/dsec-io/dsec/internal/leakcheck"
	"github.com/dsec-io/dsec/internal/need"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// aether builds dsec-aether once: the tests are of this tree's, whatever `make build` embedded last.
var aether = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "aether")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "a"), "github.com/dsec-io/dsec/cmd/dsec-aether")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(dir, "a"))
})

// lines is the writer that Run says ready to.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// dev is a running instance.
type dev struct {
	t     testing.TB
	dir   string
	file  ContextFile
	stop  context.CancelCauseFunc
	ended chan error
}

// start runs an instance on dir until the test ends or end is called.
func start(t testing.TB, dir string, change func(*Config)) *dev {
	t.Helper()
	need.Root(t)
	need.Image(t, "busybox")
	program, err := aether()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nothingLeft(t, dir) })
	ready := make(lines, 1) // Run writes one line
	d := &dev{t: t, dir: dir, ended: make(chan error, 1)}
	cfg := Config{
		DataDir: dir, Listen: "127.0.0.1:0", Ready: ready, aether: program,
		Logger:  slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
		OnReady: func(f ContextFile) { d.file = f },
	}
	if change != nil {
		change(&cfg)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	d.stop = cancel
	go func() { d.ended <- Run(ctx, cfg) }()
	select {
	case line := <-ready:
		if line != "ready "+d.file.Endpoint+"\n" {
			t.Errorf("said %q, want ready %s", line, d.file.Endpoint)
		}
	case err := <-d.ended:
		t.Fatalf("Run() = %v", err)
	case <-time.After(time.Minute):
		t.Fatal("not ready within a minute")
	}
	t.Cleanup(d.end)
	return d
}

// nothingLeft fails the test if the kernel still has something of the instance on dir. A kept sandbox has another run
// on the same folder to end it, which registered this before.
func nothingLeft(t testing.TB, dir string) {
	id, err := os.ReadFile(filepath.Join(dir, "instance"))
	if err != nil {
		t.Error(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	left, err := leakcheck.Wait(ctx, leakcheck.Snapshot{}, func() (leakcheck.Snapshot, error) {
		s, err := leakcheck.Take()
		return s.Only(strings.TrimSpace(string(id))), err
	})
	if err != nil {
		t.Error(err)
	}
	for _, entry := range left {
		t.Errorf("left behind: %s", entry)
	}
	socks, err := filepath.Glob(filepath.Join(dir, "run", "*.sock"))
	if err != nil || len(socks) > 0 {
		t.Errorf("sockets left: %v %v", socks, err)
	}
	if _, err := os.Stat(filepath.Join("/run/dsec", strings.TrimSpace(string(id)))); err == nil {
		t.Error("the folder of sockets is left")
	}
}

func (d *dev) end() {
	d.t.Helper()
	if d.stop == nil {
		return
	}
	http.DefaultClient.CloseIdleConnections()
	d.stop(errors.New("test ends"))
	d.stop = nil
	select {
	case err := <-d.ended:
		if err != nil {
			d.t.Errorf("Run() = %v", err)
		}
	case <-time.After(90 * time.Second):
		d.t.Fatal("Run didn't return")
	}
}

// call makes a request and decodes the answer into out.
func (d *dev) call(method, path, body string, out any) int {
	d.t.Helper()
	req, err := http.NewRequestWithContext(d.t.Context(), method, d.file.Endpoint+path, strings.NewReader(body))
	if err != nil {
		d.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+d.file.Token)
	client := http.Client{Timeout: 30 * time.Second}
	resp, err := client.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	if text, ok := out.(*string); ok {
		*text = string(raw)
	} else if out != nil {
		if err := json.Unmarshal(raw, out); err != nil {
			d.t.Fatalf("%s %s: %d %q: %v", method, path, resp.StatusCode, raw, err)
		}
	}
	if resp.StatusCode >= 500 || resp.StatusCode >= 300 && out == nil {
		d.t.Logf("%s %s: %d %s", method, path, resp.StatusCode, raw)
	}
	return resp.StatusCode
}

func (d *dev) create(spec string) string {
	d.t.Helper()
	var sb api.Sandbox
	if status := d.call("POST", "/v1/sandboxes", spec, &sb); status != 201 || sb.State != api.StateRunning {
		d.t.Fatalf("create %s: %d %+v", spec, status, sb)
	}
	return "/v1/sandboxes/" + sb.ID
}

func TestWholeLife(t *testing.T) {
	d := start(t, t.TempDir(), nil)
	box := d.create(`{"image":"busybox","env":{"A":"x y"},"command":["/bin/sh","-c","echo log; sleep 1000"]}`)

	var res api.ExecResult
	if status := d.call("POST", box+"/exec", `{"shell":"printf \"$A\\n\"; cat; exit 3","stdin":"in"}`, &res); status != 200 || res.Stdout != "x y\nin" || *res.ExitCode != 3 {
		t.Errorf("exec = %d %+v", status, res)
	}
	var problem api.Error
	if status := d.call("POST", box+"/exec", `{"argv":["/nope"]}`, &problem); status != 422 || problem.Code != api.CodeCommandNotFound || *problem.ExitCode != 127 {
		t.Errorf("missing command = %d %+v", status, problem)
	}
	var text string
	if status := d.call("GET", box+"/logs", "", &text); status != 200 || text != "log\n" {
		t.Errorf("logs = %d %q", status, text)
	}
	if status := d.call("GET", box+"/events", "", &text); status != 200 || !strings.Contains(text, `"type":"running"`) {
		t.Errorf("events = %d %q", status, text)
	}
	if status := d.call("GET", "/readyz", "", &text); status != 200 {
		t.Errorf("readyz = %d %s", status, text)
	}
	if status := d.call("GET", "/metrics", "", &text); status != 200 || !strings.Contains(text, "dsec_http_requests_total") || !strings.Contains(text, "go_goroutines") {
		t.Errorf("metrics = %d", status)
	}
	var sb api.Sandbox
	for _, already := range []bool{false, true} {
		if status := d.call("DELETE", box, "", &sb); status != 200 || sb.State != api.StateStopped || sb.Already != already {
			t.Errorf("stop = %d %+v, want already %v", status, sb, already)
		}
	}
	d.create(`{"image":"busybox"}`) // left for the end to stop
	d.end()
}

func TestProcesses(t *testing.T) {
	d := start(t, t.TempDir(), nil)
	box := d.create(`{"image":"busybox"}`)

	var p api.Process
	if status := d.call("POST", box+"/processes", `{"argv":["wc","-c"],"stdin_open":true}`, &p); status != 201 || !p.Running {
		t.Fatalf("start = %d %+v", status, p)
	}
	proc := box + "/processes/" + p.ID
	const chunks, size = 20, 10_000
	for range chunks {
		if status := d.call("POST", proc+"/stdin", strings.Repeat("x", size), nil); status != 200 {
			t.Fatalf("stdin = %d", status)
		}
	}
	if status := d.call("POST", proc+"/stdin?close=1", "end", nil); status != 200 {
		t.Errorf("close = %d", status)
	}
	var text string
	if status := d.call("GET", proc+"/attach", "", &text); status != 200 {
		t.Fatalf("attach = %d %s", status, text)
	}
	var out bytes.Buffer
	var exit *api.ExitStatus
	for line := range strings.Lines(text) {
		var ev api.StreamEvent
		if err := json.Unmarshal([]byte(line), &ev); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		out.Write(ev.Data)
		if ev.Exit != nil {
			exit = ev.Exit
		}
	}
	if out.String() != "200003\n" || exit == nil || *exit.ExitCode != 0 {
		t.Errorf("wc said %q, exit %+v", out.String(), exit)
	}
	var list []api.Process
	if status := d.call("GET", box+"/processes", "", &list); status != 200 || len(list) != 1 || list[0].ID != p.ID || list[0].Running {
		t.Errorf("processes = %d %+v", status, list)
	}
	if status := d.call("POST", box+"/processes", `{"argv":["sleep","1000"],"tag":"t"}`, &p); status != 201 {
		t.Fatalf("start = %d", status)
	}
	proc = box + "/processes/" + p.ID
	if status := d.call("DELETE", proc, "", nil); status != 204 {
		t.Errorf("kill = %d", status)
	}
	if status := d.call("GET", proc+"/attach", "", &text); status != 200 || !strings.Contains(text, "SIGKILL") {
		t.Errorf("after the kill: %d %s", status, text)
	}
	for range 2 {
		if status := d.call("DELETE", proc, "", nil); status != 204 {
			t.Errorf("kill again = %d", status)
		}
	}
}

func TestSessions(t *testing.T) {
	d := start(t, t.TempDir(), nil)
	box := d.create(`{"image":"busybox"}`)
	var se api.Session
	if status := d.call("POST", box+"/sessions", "", &se); status != 201 || se.ID == "" {
		t.Fatalf("session = %d %+v", status, se)
	}
	var res api.ExecResult
	d.call("POST", box+"/exec", `{"shell":"cd /tmp; export X=1","session":"`+se.ID+`"}`, &res)
	if status := d.call("POST", box+"/exec", `{"shell":"pwd; echo $X","session":"`+se.ID+`"}`, &res); status != 200 || res.Stdout != "/tmp\n1\n" {
		t.Errorf("exec in session = %d %+v", status, res)
	}
	var all []api.Session
	if status := d.call("GET", box+"/sessions", "", &all); status != 200 || len(all) != 1 || all[0].Cwd != "/tmp" {
		t.Errorf("sessions = %d %+v", status, all)
	}
	if status := d.call("POST", box+"/sessions/"+se.ID+"/interrupt", "", nil); status != 204 {
		t.Errorf("interrupt = %d", status)
	}
	if status := d.call("DELETE", box+"/sessions/"+se.ID, "", nil); status != 204 {
		t.Errorf("close = %d", status)
	}
	if status := d.call("DELETE", box+"/sessions/"+se.ID, "", nil); status != 404 {
		t.Errorf("close again = %d", status)
	}
}

func TestKeepAndComeBack(t *testing.T) {
	dir := t.TempDir()
	keep := func(c *Config) { c.Keep = true }
	d := start(t, dir, keep)
	box := d.create(`{"image":"busybox"}`)
	token := d.file.Token
	d.end()

	d = start(t, dir, nil)
	if d.file.Token != token {
		t.Error("the token has changed")
	}
	var res api.ExecResult
	if status := d.call("POST", box+"/exec", `{"argv":["echo","still"]}`, &res); status != 200 || res.Stdout != "still\n" {
		t.Errorf("exec after the restart = %d %+v", status, res)
	}
	for name, mode := range map[string]os.FileMode{"": 0o700 | os.ModeDir, "context.json": 0o600, "tokens.json": 0o600} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != mode {
			t.Errorf("%q: %v, mode %v, want %v", name, err, info.Mode(), mode)
		}
	}
	if raw, err := os.ReadFile(filepath.Join(dir, "tokens.json")); err != nil || bytes.Contains(raw, []byte(token)) {
		t.Errorf("tokens.json: %v, or it holds the token in clear", err)
	}
}

func TestRefusals(t *testing.T) {
	d := start(t, t.TempDir(), nil)
	program, err := aether()
	if err != nil {
		t.Fatal(err)
	}
	second := Config{DataDir: d.dir, Listen: "127.0.0.1:0", aether: program}
	if err := Run(t.Context(), second); !errors.Is(err, edge.ErrInUse) {
		t.Errorf("a second instance on the same folder: %v", err)
	}
	addr := strings.TrimPrefix(d.file.Endpoint, "http://")
	taken := Config{DataDir: t.TempDir(), Listen: addr, aether: program}
	if err := Run(t.Context(), taken); err == nil || !strings.Contains(err.Error(), "--listen") {
		t.Errorf("a port that is taken: %v", err)
	}
	if err := Run(t.Context(), Config{}); err == nil {
		t.Error("no data folder: accepted")
	}
	if err := Run(t.Context(), Config{DataDir: t.TempDir(), Listen: "nonsense"}); err == nil {
		t.Error("no address: accepted")
	}
}

func TestTwoInstances(t *testing.T) {
	a, b := start(t, t.TempDir(), nil), start(t, t.TempDir(), nil)
	inA, inB := a.create(`{"image":"busybox"}`), b.create(`{"image":"busybox"}`)
	if status := b.call("GET", inA, "", nil); status != 404 {
		t.Errorf("a's sandbox at b = %d", status)
	}
	a.end()
	var res api.ExecResult
	if status := b.call("POST", inB+"/exec", `{"argv":["echo","alive"]}`, &res); status != 200 || res.Stdout != "alive\n" {
		t.Errorf("b after a's end = %d %+v", status, res)
	}
}

func BenchmarkExecHTTP(b *testing.B) {
	d := start(b, b.TempDir(), nil)
	box := d.create(`{"image":"busybox"}`)
	for b.Loop() {
		var res api.ExecResult
		if status := d.call("POST", box+"/exec", `{"argv":["/bin/true"]}`, &res); status != 200 || *res.ExitCode != 0 {
			b.Fatalf("exec = %d %+v", status, res)
		}
	}
}

func BenchmarkForkExec(b *testing.B) {
	for b.Loop() {
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
	}
}
