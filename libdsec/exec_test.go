package libdsec_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/libdsec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testContext ends well before the test runner would.
func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute) // also good in cleanups
	t.Cleanup(cancel)
	return ctx
}

func argv(words ...string) libdsec.Cmd { return libdsec.Cmd{Argv: words} }

func (s *server) usual() {
	s.programs["printf"] = func(p *proc) int32 {
		p.print(0, p.start.Argv[1])
		return 0
	}
	s.programs["both"] = func(p *proc) int32 {
		p.print(0, []byte("out\n\n\r\nx"))
		p.print(1, []byte{0, 0xff, 'e'})
		return 3
	}
	s.programs["sum"] = func(p *proc) int32 {
		h := sha256.New()
		if _, err := io.Copy(h, p.stdin); err != nil {
			return 1
		}
		p.print(0, []byte(hex.EncodeToString(h.Sum(nil))))
		return 0
	}
	s.programs["cat"] = func(p *proc) int32 {
		b, err := io.ReadAll(p.stdin)
		if err != nil {
			return 1
		}
		p.print(0, b)
		return 0
	}
	s.programs["sleep"] = func(p *proc) int32 {
		p.print(0, []byte("before"))
		<-p.dead
		return 0
	}
	s.programs["env"] = func(p *proc) int32 {
		for _, kv := range p.start.Env {
			p.print(0, append(kv, 0))
		}
		return 0
	}
}

func TestExec(t *testing.T) {
	s := newServer(t)
	s.usual()
	sb := s.client().Sandbox("s1")
	ctx := testContext(t)

	res, err := sb.Exec(ctx, argv("both"))
	if err != nil {
		t.Fatal(err)
	}
	want := &libdsec.Result{
		ExitStatus: api.ExitStatus{ExitCode: new(3), StdoutTotal: 8, StderrTotal: 3, StartedAt: time.Unix(0, 0)},
		Stdout:     []byte("out\n\n\r\nx"), Stderr: []byte{0, 0xff, 'e'},
	}
	if diff := cmp.Diff(want, res); diff != "" {
		t.Errorf("Exec(both) (-want +got):\n%s", diff)
	}
	env := map[string]string{"B": "two\nlines", "A": "$(x)"}
	if res, err = sb.Exec(ctx, libdsec.Cmd{Argv: []string{"env"}, Env: env}); err != nil {
		t.Fatal(err)
	}
	if got, want := string(res.Stdout), "A=$(x)\x00B=two\nlines\x00"; got != want {
		t.Errorf("env = %q, want %q", got, want)
	}
	if n := s.upgrades.Load(); n != 1 {
		t.Errorf("%d connections for two commands, want 1", n)
	}
}

func TestExecErrors(t *testing.T) {
	s := newServer(t)
	s.usual()
	c := s.client()
	ctx := testContext(t)
	_, err := c.Sandbox("s1").Exec(ctx, argv("/nope"))
	e, ok := errors.AsType[*api.Error](err)
	if !ok || e.Code != api.CodeCommandNotFound || e.ExitCode == nil || *e.ExitCode != 127 {
		t.Errorf("Exec(/nope) = %v, want command_not_found with exit code 127", err)
	}
	stranger, err := libdsec.New(libdsec.WithEndpoint(s.http.URL, "wrong"))
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	if _, err := stranger.Sandbox("s1").Exec(ctx, argv("both")); !libdsec.IsCode(err, api.CodeUnauthenticated) {
		t.Errorf("Exec() with a wrong token = %v, want unauthenticated", err)
	}
	s.http.Close()
	start := time.Now()
	nobody, err := libdsec.New(libdsec.WithEndpoint(s.http.URL, testToken))
	if err != nil {
		t.Fatal(err)
	}
	defer nobody.Close()
	if _, err := nobody.Sandbox("s1").Exec(ctx, argv("both")); !libdsec.IsCode(err, api.CodeUnavailable) || time.Since(start) > 20*time.Second {
		t.Errorf("Exec() without a server = %v after %v, want unavailable soon", err, time.Since(start))
	}
}

// TestExecStdin sends more than any buffer holds.
func TestExecStdin(t *testing.T) {
	s := newServer(t)
	s.usual()
	sb := s.client().Sandbox("s1")
	input := bytes.Repeat([]byte("0123456789abcdef"), 10<<16)
	res, err := sb.Exec(testContext(t), libdsec.Cmd{Argv: []string{"sum"}, Stdin: bytes.NewReader(input)})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(res.Stdout), sum(input); got != want {
		t.Errorf("sum of stdin = %s, want %s", got, want)
	}
	// Half an input must not look like all of it.
	broken := errors.New("disk on fire")
	in := io.MultiReader(strings.NewReader("half"), errReader{broken})
	if res, err := sb.Exec(testContext(t), libdsec.Cmd{Argv: []string{"sum"}, Stdin: in}); !errors.Is(err, broken) {
		t.Errorf("Exec() with a broken stdin = %v, %v, want %v", res, err, broken)
	}
}

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

func TestExecCancel(t *testing.T) {
	s := newServer(t)
	s.usual()
	sb := s.client().Sandbox("s1")
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(testContext(t))
	s.programs["tell"] = func(p *proc) int32 {
		p.print(0, []byte("part"))
		cancel(why)
		<-p.dead // the end of the caller's context kills it
		return 0
	}
	res, err := sb.Exec(ctx, argv("tell"))
	if !errors.Is(err, why) {
		t.Errorf("Exec() = %v, want %v", err, why)
	}
	if res != nil && !res.Cancelled {
		t.Errorf("Exec() = %+v, want Cancelled", res)
	}
	s.mu.Lock()
	p := s.procs["p1"]
	s.mu.Unlock()
	<-p.dead
}

// TestExecRetry: only an error that proves that nothing ran is followed by another try.
func TestExecRetry(t *testing.T) {
	for name, tc := range map[string]struct {
		refusal *api.Error
		execs   int64
	}{
		"not-started":        {api.Errorf(api.CodeNotStarted, "x"), 2},
		"unavailable-later":  {&api.Error{Code: api.CodeUnavailable, HTTP: 503, RetryMS: 1}, 2},
		"unavailable":        {api.Errorf(api.CodeUnavailable, "x"), 1},
		"internal":           {api.Errorf(api.CodeInternal, "x"), 1},
		"sandbox-died":       {api.Errorf(api.CodeSandboxDied, "x"), 1},
		"no-process-changed": {nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			s.usual()
			sb := s.client().Sandbox("s1")
			s.refuse.Store(tc.refusal)
			res, err := sb.Exec(testContext(t), libdsec.Cmd{Argv: []string{"sum"}, Stdin: strings.NewReader("x")})
			if err == nil && string(res.Stdout) != sum([]byte("x")) {
				t.Errorf("the second try got another stdin: %s", res.Stdout)
			}
			if n := s.execs.Load(); n != tc.execs {
				t.Errorf("%d tries, want %d", n, tc.execs)
			}
			if wantErr := tc.refusal != nil && tc.execs == 1; (err != nil) != wantErr {
				t.Errorf("Exec() = %v, want an error: %v", err, wantErr)
			}
		})
	}
}

// TestExecConnectionLost: a command whose connection breaks after it began isn't run again.
func TestExecConnectionLost(t *testing.T) {
	s := newServer(t)
	s.usual()
	s.programs["drop"] = func(p *proc) int32 {
		s.drop()
		<-p.dead
		return 0
	}
	sb := s.client().Sandbox("s1")
	_, err := sb.Exec(testContext(t), argv("drop"))
	if !libdsec.IsCode(err, api.CodeUnavailable) || s.execs.Load() != 1 {
		t.Errorf("Exec() = %v after %d tries, want unavailable after 1", err, s.execs.Load())
	}
	if _, err := sb.Exec(testContext(t), argv("both")); err != nil {
		t.Errorf("Exec() after a lost connection = %v", err)
	}
}

// TestCase17SDKCollectsAWholeStreamInMemory streams 4 GiB with a tenth of that to live on.
func TestCase17SDKCollectsAWholeStreamInMemory(t *testing.T) {
	const total = 4 << 30
	s := newServer(t)
	chunk := bytes.Repeat([]byte("x"), 256<<10)
	s.raw["flood"] = func(ctx context.Context, st *aether.Stream) error {
		if err := st.Send(ctx, aether.MsgStarted, (&aether.Started{ID: "p"}).AppendTo(nil)); err != nil {
			return err
		}
		for range total / len(chunk) {
			if err := st.Write(ctx, aether.Stdout, chunk); err != nil {
				return err
			}
		}
		return st.Send(ctx, aether.MsgExited, (&aether.Exited{HasCode: true, StdoutTotal: total}).AppendTo(nil))
	}
	sb := s.client().Sandbox("s1")
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(256 << 20))
	var got int64
	p, err := sb.Start(testContext(t), argv("flood"), libdsec.StartOptions{Handlers: libdsec.Handlers{
		OnStdout: func(b []byte) error { got += int64(len(b)); return nil },
	}})
	if err != nil {
		t.Fatal(err)
	}
	st, err := p.Wait(testContext(t))
	if err != nil || got != total || st.StdoutTotal != total {
		t.Errorf("got %d bytes, status %+v, err %v, want %d bytes", got, st, err, int64(total))
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if m.Sys > 128<<20 {
		t.Errorf("%d MiB of memory were used", m.Sys>>20)
	}
}
