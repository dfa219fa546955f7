package libdsec_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
)

// TestCase12ReattachingLosesOrRepeatsOutput breaks the connection ten times below a command with quiet times.
func TestCase12ReattachingLosesOrRepeatsOutput(t *testing.T) {
	s := newServer(t)
	var want [2]bytes.Buffer
	step := make(chan struct{})
	s.programs["drip"] = func(p *proc) int32 {
		for i := range 200 {
			line := fmt.Appendf(nil, "%d %s\n", i, strings.Repeat("x", i%97))
			want[i%2].Write(line)
			p.print(i%2, line)
			if i%20 == 19 {
				<-step
			}
		}
		return 42
	}
	sb := s.client().Sandbox("s1")
	var got [2]bytes.Buffer
	seen := make(chan struct{}, 1000)
	p, err := sb.Start(testContext(t), argv("drip"), libdsec.StartOptions{Handlers: libdsec.Handlers{
		OnStdout: func(b []byte) error { got[0].Write(b); return nil },
		OnStderr: func(b []byte) error {
			got[1].Write(b)
			seen <- struct{}{}
			return nil
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		<-seen           // it is in the middle of its output
		s.dropAndMeet(t) // quiet: nothing but the reconnection happens
		step <- struct{}{}
	}
	st, err := p.Wait(testContext(t))
	if err != nil || st.ExitCode == nil || *st.ExitCode != 42 {
		t.Fatalf("Wait() = %+v, %v, want exit code 42", st, err)
	}
	for i := range got {
		if diff := cmp.Diff(want[i].String(), got[i].String()); diff != "" {
			t.Errorf("output %d (-want +got):\n%s", i+1, diff)
		}
	}
	if s.execs.Load() != 1 {
		t.Errorf("the command ran %d times", s.execs.Load())
	}
}

// TestStartLostAnswer: the connection breaks before the answer to the start arrives. The command must be found again,
// not run again.
func TestStartLostAnswer(t *testing.T) {
	s := newServer(t)
	s.usual()
	s.dropStarted.Store(true)
	p, err := s.client().Sandbox("s1").Start(testContext(t), argv("printf", "once"), libdsec.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(p.Stdout())
	if err != nil || string(out) != "once" || s.execs.Load() != 1 {
		t.Errorf("output %q, err %v, %d execs, want \"once\" and 1", out, err, s.execs.Load())
	}
	if _, err := p.Wait(testContext(t)); err != nil {
		t.Error(err)
	}
}

func TestAttachOffsets(t *testing.T) {
	s := newServer(t)
	s.usual()
	sb := s.client().Sandbox("s1")
	ctx := testContext(t)
	p, err := sb.Start(ctx, argv("both"), libdsec.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	a, err := sb.Attach(ctx, p.ID(), libdsec.AttachOptions{StdoutOffset: 4, StderrOffset: 1})
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr := a.Stdout(), a.Stderr()
	out, err1 := io.ReadAll(stdout)
	errs, err2 := io.ReadAll(stderr)
	st, err3 := a.Wait(ctx)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	if string(out) != "\n\r\nx" || string(errs) != "\xffe" || *st.ExitCode != 3 {
		t.Errorf("Attach() = %q, %q, %+v", out, errs, st)
	}
	if _, err := sb.Attach(ctx, "none", libdsec.AttachOptions{}); !libdsec.IsCode(err, api.CodeNoSuchProcess) {
		t.Errorf("Attach(none) = %v, want no_such_process", err)
	}
}

func TestGapIsTold(t *testing.T) {
	s := newServer(t)
	s.usual()
	sb := s.client().Sandbox("s1")
	ctx := testContext(t)
	p, err := sb.Start(ctx, argv("printf", "0123456789"), libdsec.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	s.proc(p.ID()).update(func() { s.proc(p.ID()).lost[0] = 6 })
	var told []libdsec.Gap
	a, err := sb.Attach(ctx, p.ID(), libdsec.AttachOptions{StdoutOffset: 2, Handlers: libdsec.Handlers{
		OnGap: func(g libdsec.Gap) error { told = append(told, g); return nil },
	}})
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(a.Stdout())
	want := []libdsec.Gap{{Stream: "stdout", Offset: 2, Length: 4}}
	if diff := cmp.Diff(want, a.Gaps()); diff != "" || err != nil || string(out) != "6789" {
		t.Errorf("output %q, err %v, gaps (-want +got):\n%s", out, err, diff)
	}
	if _, err := a.Wait(ctx); err != nil || !cmp.Equal(want, told) {
		t.Errorf("Wait() = %v, OnGap was told %v, want %v", err, told, want)
	}
}

func TestContextKillsUnlessDetached(t *testing.T) {
	s := newServer(t)
	s.usual()
	sb := s.client().Sandbox("s1")
	why := errors.New("enough")
	for name, detach := range map[string]bool{"bound": false, "detached": true} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(testContext(t))
			defer cancel(nil)
			p, err := sb.Start(ctx, argv("sleep"), libdsec.StartOptions{Detach: detach})
			if err != nil {
				t.Fatal(err)
			}
			cancel(why)
			if !detach {
				st, err := p.Wait(testContext(t))
				if !errors.Is(err, why) || !st.Cancelled || st.Signal != "SIGKILL" {
					t.Errorf("Wait() = %+v, %v, want a cancelled SIGKILL and %v", st, err, why)
				}
				return
			}
			if err := p.Signal(testContext(t), "SIGTERM"); err != nil {
				t.Fatal(err)
			}
			if st, err := p.Wait(testContext(t)); err != nil || st.Signal != "SIGTERM" {
				t.Errorf("Wait() = %+v, %v, want the end by SIGTERM", st, err)
			}
		})
	}
}

func TestCloseLetsGo(t *testing.T) {
	s := newServer(t)
	s.usual()
	sb := s.client().Sandbox("s1")
	p, err := sb.Start(testContext(t), argv("sleep"), libdsec.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.proc(p.ID()).dead:
		t.Error("Close() killed the process")
	default:
	}
	if _, err := p.Wait(testContext(t)); err == nil {
		t.Error("Wait() after Close() knows how the process ended")
	}
}

func TestStdinPipe(t *testing.T) {
	s := newServer(t)
	s.usual()
	sb := s.client().Sandbox("s1")
	p, err := sb.Start(testContext(t), argv("sum"), libdsec.StartOptions{StdinPipe: true})
	if err != nil {
		t.Fatal(err)
	}
	var all bytes.Buffer
	for range 1000 {
		chunk := bytes.Repeat([]byte{byte(rand.IntN(256))}, rand.IntN(3000))
		all.Write(chunk)
		if _, err := p.Stdin().Write(chunk); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Stdin().Close(); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(p.Stdout())
	if err != nil || string(out) != sum(all.Bytes()) {
		t.Errorf("sum = %s, %v, want %s", out, err, sum(all.Bytes()))
	}
	if _, err := p.Wait(testContext(t)); err != nil {
		t.Error(err)
	}
	if _, err := p.Stdin().Write([]byte("late")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("late Write() = %v, want io.ErrClosedPipe", err)
	}
}

// TestStdinLost: nobody can tell how much of an input arrived when the connection broke, so it isn't continued.
func TestStdinLost(t *testing.T) {
	s := newServer(t)
	s.usual()
	sb := s.client().Sandbox("s1")
	p, err := sb.Start(testContext(t), argv("sum"), libdsec.StartOptions{StdinPipe: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Stdin().Write([]byte("first")); err != nil {
		t.Fatal(err)
	}
	s.drop()
	for {
		if _, err = p.Stdin().Write([]byte("x")); err != nil {
			break
		}
	}
	if errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Write() after a break = %v, want an error that says so", err)
	}
	if err := p.Kill(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if st, err := p.Wait(testContext(t)); err != nil || st.Signal != "SIGKILL" {
		t.Errorf("Wait() = %+v, %v", st, err)
	}
}

// TestUnreadOutput: one output that nobody reads doesn't hold up the other, and Wait drops what nobody asked for.
func TestUnreadOutput(t *testing.T) {
	s := newServer(t)
	big := bytes.Repeat([]byte("e"), 4<<20)
	s.programs["noisy"] = func(p *proc) int32 {
		p.print(1, big[:200<<10]) // less than a window: the server can send it all
		p.print(0, []byte("out"))
		p.print(1, big)
		return 0
	}
	p, err := s.client().Sandbox("s1").Start(testContext(t), argv("noisy"), libdsec.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 3)
	if _, err := io.ReadFull(p.Stdout(), buf); err != nil || string(buf) != "out" {
		t.Errorf("stdout = %q, %v", buf, err)
	}
	st, err := p.Wait(testContext(t))
	if err != nil || st.StderrTotal != int64(len(big)+200<<10) {
		t.Errorf("Wait() = %+v, %v", st, err)
	}
}

func TestHandlerErrorEnds(t *testing.T) {
	s := newServer(t)
	s.usual()
	full := errors.New("disk full")
	p, err := s.client().Sandbox("s1").Start(testContext(t), argv("sleep"), libdsec.StartOptions{Handlers: libdsec.Handlers{
		OnStdout: func([]byte) error { return full },
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(testContext(t)); !errors.Is(err, full) {
		t.Errorf("Wait() = %v, want %v", err, full)
	}
}

// TestExitNeverOvertakesOutput is case 13 seen from the SDK.
func TestExitNeverOvertakesOutput(t *testing.T) {
	s := newServer(t)
	s.usual()
	sb := s.client().Sandbox("s1")
	ctx := testContext(t)
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for range 30 {
				var got bytes.Buffer
				p, err := sb.Start(ctx, argv("printf", "x"), libdsec.StartOptions{Handlers: libdsec.Handlers{
					OnStdout: func(b []byte) error { got.Write(b); return nil },
				}})
				if err == nil {
					_, err = p.Wait(ctx)
				}
				if err != nil || got.String() != "x" {
					t.Errorf("printf x: %q, %v", got.String(), err)
				}
			}
		})
	}
	wg.Wait()
}

func TestResize(t *testing.T) {
	s := newServer(t)
	s.usual()
	ctx := testContext(t)
	p, err := s.client().Sandbox("s1").Start(ctx, argv("sleep"), libdsec.StartOptions{TTY: &api.Size{Rows: 10, Cols: 20}, StdinPipe: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Resize(ctx, api.Size{Rows: 30, Cols: 40}); err != nil {
		t.Fatal(err)
	}
	if got := <-s.proc(p.ID()).sizes; got != (api.Size{Rows: 30, Cols: 40}) {
		t.Errorf("resized to %+v", got)
	}
	if m := s.proc(p.ID()).start; !m.TTY || m.Rows != 10 || m.Cols != 20 || !m.Keep {
		t.Errorf("started with %+v", m)
	}
	if err := p.Kill(ctx); err != nil {
		t.Fatal(err)
	}
}
