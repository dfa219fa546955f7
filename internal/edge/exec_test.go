package edge

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

func TestExecCarriesBytes(t *testing.T) {
	n := startNode(t, nil)
	sb := n.create(plain)
	in := bytes.Repeat([]byte{0, 1, 2, 0xff, '\r', '\n'}, 1<<19)
	x := argv("cat")
	x.Stdin = true
	tr := n.exec("p", sb.ID, x, in)
	if tr.err != nil || tr.exited == nil || !bytes.Equal(tr.stdout, in) {
		t.Errorf("%d of %d bytes came back, %v, %+v", len(tr.stdout), len(in), tr.err, tr.exited)
	}
}

func TestExecFaults(t *testing.T) {
	n := startNode(t, nil)
	sb := n.create(plain)
	t.Run("typed", func(t *testing.T) {
		e := wantCode(t, n.exec("p", sb.ID, argv("missing"), nil).err, api.CodeCommandNotFound)
		if e.ExitCode == nil || *e.ExitCode != 127 {
			t.Errorf("exit code %v", e.ExitCode)
		}
	})
	t.Run("repeated-once-when-nothing-was-sent", func(t *testing.T) {
		n.fake.setFault("open-once", errors.New("refused"))
		if tr := n.exec("p", sb.ID, argv("say", "hi"), nil); string(tr.stdout) != "hi" {
			t.Errorf("%+v", tr)
		}
	})
	t.Run("not-started", func(t *testing.T) {
		n.fake.setFault("open", errors.New("refused"))
		defer n.fake.setFault("open", nil)
		e := wantCode(t, n.exec("p", sb.ID, argv("say", "hi"), nil).err, api.CodeNotStarted)
		if e.RetryMS == 0 {
			t.Error("no retry_after_ms")
		}
	})
	t.Run("refused", func(t *testing.T) {
		both := argv("say")
		both.Shell = []byte("true")
		huge := argv("say")
		huge.MaxOutput = api.MaxMaxOutput + 1
		noEquals := argv("say")
		noEquals.Env = [][]byte{[]byte("A")}
		for field, x := range map[string]aether.ExecStart{"argv": both, "max_output_bytes": huge, "env": noEquals} {
			if e := wantCode(t, n.exec("p", sb.ID, x, nil).err, api.CodeInvalid); e.Field != field {
				t.Errorf("field %q, want %q", e.Field, field)
			}
		}
		wantCode(t, n.call(t.Context(), as("p", "exec", sb.ID, []byte("\xff\xff")), nil), api.CodeInvalid)
	})
	if tr := n.exec("p", sb.ID, argv("say", "still"), nil); string(tr.stdout) != "still" {
		t.Errorf("afterwards: %+v", tr)
	}
}

func TestAetherIsLostWhileACommandRuns(t *testing.T) {
	n := startNode(t, nil)
	sb := n.create(plain)
	t.Run("lost-before-started", func(t *testing.T) {
		tr := n.exec("p", sb.ID, argv("lost-before"), nil)
		if tr.err != nil || tr.exited == nil || tr.exited.InfraError == "" || tr.exited.HasCode || tr.started.ID != "" {
			t.Errorf("%+v", tr)
		}
	})
	t.Run("lost-after-started", func(t *testing.T) {
		x := argv("lost-after")
		x.Stdin = true
		tr := n.exec("p", sb.ID, x, []byte("go"))
		if tr.err != nil || tr.exited == nil || tr.exited.InfraError == "" || tr.exited.HasCode || tr.started.ID == "" {
			t.Errorf("%+v", tr)
		}
	})
	t.Run("followed-into-the-next-aether", func(t *testing.T) {
		for _, keep := range []bool{false, true} {
			x := argv("long")
			x.Keep = keep
			n.fake.told = nil
			tr := n.exec("p", sb.ID, x, nil)
			if tr.err != nil || tr.exited == nil || tr.exited.InfraError != "" || !bytes.Equal(tr.stdout, longOutput()) {
				t.Errorf("keep %v: %d bytes, %v, %+v", keep, len(tr.stdout), tr.err, tr.exited)
			}
			until(t, "what isn't kept is forgotten", func() bool {
				n.fake.mu.Lock()
				defer n.fake.mu.Unlock()
				return keep && len(n.fake.told) == 0 || slices.Equal(n.fake.told, []string{"forget"})
			})
		}
	})
	t.Run("cancelled-in-the-next-aether", func(t *testing.T) {
		n.fake.told = nil
		x := argv("long-hang")
		s, err := n.client.Open(t.Context(), aether.Open{Method: "exec", Sandbox: sb.ID, Project: "p", Body: x.AppendTo(nil), Closed: true})
		if err != nil {
			t.Fatal(err)
		}
		for got := 0; got < len(longOutput()); {
			f, err := s.Recv(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if f.Channel == aether.Stdout {
				got += len(f.Data)
			}
			f.Release()
		}
		s.Reset(nil)
		until(t, "it is killed", func() bool {
			n.fake.mu.Lock()
			defer n.fake.mu.Unlock()
			return slices.Contains(n.fake.told, "signal")
		})
	})
	if tr := n.exec("p", sb.ID, argv("say", "still"), nil); string(tr.stdout) != "still" {
		t.Errorf("afterwards: %+v", tr)
	}
}

func TestStartProcessAndLogs(t *testing.T) {
	n := startNode(t, nil)
	sb := n.create(`{"image":"busybox","command":["say","hello","log"]}`)
	read := func(body string) transcript {
		s, err := n.client.Open(t.Context(), aether.Open{Method: "sandbox.logs", Sandbox: sb.ID, Project: "p", Body: []byte(body), Closed: true})
		if err != nil {
			t.Fatal(err)
		}
		return n.read(s)
	}
	for body, want := range map[string]string{`{}`: "hello log", `{"follow":true}`: "hello log", `{"follow":true,"since_offset":6}`: "log"} {
		until(t, "the log of "+body, func() bool { return string(read(body).stdout) == want })
	}
	until(t, "its end has an event", func() bool { return slices.Contains(n.eventTypes(sb.ID), "exec_ended") })

	hanging := n.create(`{"image":"busybox","command":["hang"]}`)
	sb = hanging
	until(t, "what there is of a running one", func() bool { return string(read(`{}`).stdout) == "hanging\n" })

	bare := n.create(plain)
	sb = bare
	wantCode(t, read(`{}`).err, api.CodeNoSuchProcess)
}

func TestKeptProcessesHaveEvents(t *testing.T) {
	n := startNode(t, nil)
	sb := n.create(plain)
	x := argv("say", "x")
	x.Keep, x.Tag = true, "build"
	tr := n.exec("p", sb.ID, x, nil)
	until(t, "the end has an event", func() bool {
		return slices.Equal(n.eventTypes(sb.ID), []string{"created", "running", "exec_started", "exec_ended"})
	})
	events := n.events(sb.ID, 2, false)
	if events[0].Data["process"] != tr.started.ID || events[0].Data["tag"] != "build" || events[1].Data["process"] != tr.started.ID {
		t.Errorf("%+v", events)
	}
	n.exec("p", sb.ID, argv("say", "quick"), nil)
	if types := n.eventTypes(sb.ID); len(types) != 4 {
		t.Errorf("a quick exec made events: %v", types)
	}
}

// TestEndsAreAwaited: the end of a kept process is waited for, not looked for, by this edge and by the next one, across
// the loss of an aether.
func TestEndsAreAwaited(t *testing.T) {
	n := startNode(t, nil)
	sb := n.create(plain)
	x := argv("hang")
	x.Keep = true
	s, err := n.client.Open(t.Context(), aether.Open{Method: "exec", Sandbox: sb.ID, Project: "p", Body: x.AppendTo(nil), Closed: true})
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.Recv(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var started aether.Started
	if err := started.Unmarshal(f.Data); err != nil {
		t.Fatal(err)
	}
	f.Release()
	s.Reset(nil)
	waits := func() int {
		n.fake.mu.Lock()
		defer n.fake.mu.Unlock()
		return n.fake.waits
	}
	until(t, "the edge waits", func() bool { return waits() == 1 })
	n.fake.cut()
	until(t, "the edge waits at the new aether", func() bool { return waits() == 2 })
	n.kept = n.fake.kept
	n.restart()
	until(t, "the next edge waits", func() bool { return waits() > 0 })
	n.fake.mu.Lock()
	p := n.kept[sb.ID+"/"+started.ID]
	p.Running, p.Exit = false, &api.ExitStatus{ExitCode: new(7)}
	close(p.done)
	n.fake.mu.Unlock()
	until(t, "its end has an event", func() bool { return slices.Contains(n.eventTypes(sb.ID), "exec_ended") })
	events := n.events(sb.ID, 0, false)
	last := events[len(events)-1]
	if exit, _ := last.Data["exit"].(map[string]any); last.Data["process"] != started.ID || exit["exit_code"] != float64(7) {
		t.Errorf("event %+v", last)
	}
}

// TestLeavingIsNobodysFault: a client that detaches or cancels is no error of the edge.
func TestLeavingIsNobodysFault(t *testing.T) {
	var log syncBuffer
	n := startNode(t, func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	sb := n.create(plain)
	kept := argv("hang")
	kept.Keep, kept.ID = true, "k"
	quick := argv("hang")
	attach := aether.Attach{ID: "k"}
	for _, o := range []aether.Open{
		as("p", "exec", sb.ID, kept.AppendTo(nil)), as("p", "exec", sb.ID, quick.AppendTo(nil)), as("p", "attach", sb.ID, attach.AppendTo(nil)),
	} {
		before := strings.Count(log.String(), "client has left")
		s, err := n.client.Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		f, err := s.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		f.Release()
		s.Reset(nil)
		until(t, "the edge notices", func() bool { return strings.Count(log.String(), "client has left") > before })
	}
	_ = n.client.Close()
	n.stop()
	if strings.Contains(log.String(), "level=ERROR") || strings.Contains(log.String(), "level=WARN") {
		t.Errorf("logged:\n%s", log.String())
	}
}

// TestFaultsAreLogged: an error that somebody must look into is one.
func TestFaultsAreLogged(t *testing.T) {
	var log syncBuffer
	n := startNode(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	n.fake.setFault("start", errors.New("no namespaces today"))
	wantCode(t, n.call(t.Context(), as("p", "sandbox.create", "", []byte(plain)), nil), api.CodeInternal)
	until(t, "it is logged", func() bool {
		return strings.Contains(log.String(), "level=ERROR") && strings.Contains(log.String(), "no namespaces today")
	})
}

// syncBuffer is a log that is read while it is written.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// TestUnsaidCommandIsTheImages: an exec that says no command runs the image's, else a shell; also after a restart.
func TestUnsaidCommandIsTheImages(t *testing.T) {
	n := startNode(t, nil)
	app, bare := n.create(`{"image":"app"}`).ID, n.create(plain).ID
	for range 2 {
		if tr := n.exec("p", app, aether.ExecStart{}, nil); string(tr.stdout) != "from the image" {
			t.Errorf("the image's command: %+v", tr)
		}
		wantCode(t, n.exec("p", bare, aether.ExecStart{}, nil).err, api.CodeNoShell)
		wantCode(t, n.exec("p", bare, argv("/bin/sh"), nil).err, api.CodeCommandNotFound)
		wantCode(t, n.exec("p", bare, argv("missing"), nil).err, api.CodeCommandNotFound)
		wantCode(t, n.exec("p", app, aether.ExecStart{Session: "s"}, nil).err, api.CodeInvalid)
		n.restart()
	}
}
