package edge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/aether/unixfd"
	"github.com/dsec-io/dsec/internal/edge/idem"
	"github.com/google/go-cmp/cmp"
)

// keyed is a call of a project under a key.
func keyed(key string, o aether.Open) aether.Open {
	o.Key = key
	return o
}

// ask makes a unary call and tells whether its answer is a replay.
func (n *node) ask(ctx context.Context, o aether.Open) (body []byte, replayed bool, err error) {
	s, err := n.client.Open(ctx, o)
	if err != nil {
		return nil, false, err
	}
	defer s.Reset(nil)
	for {
		f, err := s.Recv(ctx)
		if err != nil {
			return nil, replayed, err
		}
		replayed = replayed || f.Type == aether.MsgReplayed
		body := append([]byte(nil), f.Data...)
		isReply := f.Type == aether.MsgReply
		f.Release()
		if isReply {
			_ = s.Close()
			return body, replayed, nil
		}
	}
}

// askExec runs a command under a key.
func (n *node) askExec(key, id string, x aether.ExecStart, stdin []byte) (transcript, bool) {
	n.t.Helper()
	x.Stdin = stdin != nil
	s, err := n.client.Open(n.t.Context(), aether.Open{Method: "exec", Sandbox: id, Project: "p", Key: key, Body: x.AppendTo(nil)})
	if err != nil {
		n.t.Fatal(err)
	}
	if stdin != nil {
		if err := errors.Join(s.Write(n.t.Context(), aether.Stdin, stdin), s.CloseWrite(aether.Stdin)); err != nil {
			n.t.Fatal(err)
		}
	}
	tr := n.read(s)
	return tr, tr.replayed
}

// TestToldAtTheEnd: a creator's word that he was told, said just before the edge ends, counts.
func TestToldAtTheEnd(t *testing.T) {
	n := startNode(t, nil)
	for range 40 {
		raw, err := unixfd.Dial(t.Context(), n.inst.Socket(SocketName), unixfd.Options{})
		if err != nil {
			t.Fatal(err)
		}
		conn, err := aether.Client(raw, aether.Options{Name: "test"})
		if err != nil {
			t.Fatal(err)
		}
		s, err := conn.Open(t.Context(), as("p", "sandbox.create", "", []byte(plain)))
		if err != nil {
			t.Fatal(err)
		}
		f, err := s.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var sb api.Sandbox
		if err := json.Unmarshal(f.Data, &sb); err != nil {
			t.Fatal(err)
		}
		f.Release()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		<-s.Done() // its last frame is on its way
		_ = conn.Close()
		n.restart()
		if got := n.get(sb.ID); got.State != api.StateRunning {
			t.Fatalf("it is %s: %s", got.State, got.Reason)
		}
	}
}

func TestKeyMakesOneSandbox(t *testing.T) {
	n := startNode(t, nil)
	create := keyed("k1", as("p", "sandbox.create", "", []byte(`{"image":"busybox","env":{"SECRET":"hunter2"}}`)))
	const racers = 100
	answers := make([][]byte, racers)
	var first, replays int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range racers {
		wg.Go(func() {
			body, replayed, err := n.ask(t.Context(), create)
			if err != nil {
				t.Errorf("create: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			answers[i] = body
			if replayed {
				replays++
			} else {
				first++
			}
		})
	}
	wg.Wait()
	for _, a := range answers {
		if !bytes.Equal(a, answers[0]) {
			t.Fatalf("answers differ: %s and %s", a, answers[0])
		}
	}
	if first != 1 || replays != racers-1 || len(n.fake.living()) != 1 {
		t.Errorf("%d first, %d replays, %d sandboxes", first, replays, len(n.fake.living()))
	}
	var sb api.Sandbox
	if err := json.Unmarshal(answers[0], &sb); err != nil {
		t.Fatal(err)
	}
	again := func(when string) {
		t.Helper()
		body, replayed, err := n.ask(t.Context(), create)
		if err != nil || !replayed || !bytes.Equal(body, answers[0]) {
			t.Errorf("%s: replayed %v, %v: %s, want %s", when, replayed, err, body, answers[0])
		}
	}
	n.must("sandbox.patch", sb.ID, `{"env":{"OTHER":"1"},"labels":{"a":"b"},"resources":{"memory_mb":700}}`, nil)
	again("patched")
	n.restart()
	again("restarted")
	n.must("sandbox.stop", sb.ID, nil, nil)
	again("stopped")

	other := create
	other.Body = []byte(plain)
	_, _, err := n.ask(t.Context(), other)
	if e := wantCode(t, err, api.CodeKeyReused); e.HTTP != 409 || e.Hint == "" {
		t.Errorf("%+v", e)
	}
	other.Project = "q" // another project's keys are its own
	if _, replayed, err := n.ask(t.Context(), other); err != nil || replayed {
		t.Errorf("another project: replayed %v, %v", replayed, err)
	}
	_, _, err = n.ask(t.Context(), keyed("k1", as("p", "sandbox.stop", sb.ID, nil)))
	wantCode(t, err, api.CodeKeyReused)
	n.checkRecord("hunter2", "SECRET", "k1", "busybox")
}

// checkRecord looks for what the record of keys must not hold.
func (n *node) checkRecord(secrets ...string) {
	t := n.t
	t.Helper()
	files, err := filepath.Glob(filepath.Join(n.inst.DataDir, "keys", "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no record: %v", err)
	}
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range secrets {
			if bytes.Contains(raw, []byte(secret)) {
				t.Errorf("%s holds %q", name, secret)
			}
		}
		if fi, err := os.Stat(name); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, fi.Mode(), err)
		}
	}
}

func TestKeyOfAFailedCreateIsFree(t *testing.T) {
	n := startNode(t, nil)
	create := keyed("k", as("p", "sandbox.create", "", []byte(plain)))
	n.fake.setFault("start", errors.New("no"))
	if _, _, err := n.ask(t.Context(), create); err == nil {
		t.Fatal("a create that fails was answered")
	}
	n.fake.setFault("start", nil)
	if _, replayed, err := n.ask(t.Context(), create); err != nil || replayed || len(n.fake.living()) != 1 {
		t.Errorf("after a failure: replayed %v, %v, %d sandboxes", replayed, err, len(n.fake.living()))
	}
	for _, key := range []string{"", strings.Repeat("k", 256), "a b", "ä", "a\n"} {
		if key == "" {
			continue // no key
		}
		_, _, err := n.ask(t.Context(), keyed(key, as("p", "sandbox.create", "", []byte(plain))))
		if e := wantCode(t, err, api.CodeInvalid); e.Field != idem.Header {
			t.Errorf("key %q: %+v", key, e)
		}
	}
	for _, method := range []string{"attach", "file.write", "image.import", "sandbox.list", "sandbox.logs"} {
		_, _, err := n.ask(t.Context(), keyed("m", as("p", method, "s", nil)))
		wantCode(t, err, api.CodeUnsupportedConstraint)
	}
}

// TestKeyOutlivesItsCaller: the one who asked first leaves; a repeat finds what was being made. When nobody comes it is
// taken back.
func TestKeyOutlivesItsCaller(t *testing.T) {
	create := keyed("k", as("p", "sandbox.create", "", []byte(plain)))
	leave := func(t *testing.T, n *node) {
		t.Helper()
		s, err := n.client.Open(t.Context(), create)
		if err != nil {
			t.Fatal(err)
		}
		until(t, "the create has begun", func() bool { return len(n.fake.living()) == 1 })
		s.Reset(nil)
	}
	t.Run("a-repeat-comes", func(t *testing.T) {
		n := startNode(t, func(c *Config) { c.Keys.Untold = time.Minute })
		n.fake.hold = make(chan struct{})
		leave(t, n)
		got := make(chan error, 1)
		var replayed bool
		go func() {
			var err error
			_, replayed, err = n.ask(t.Context(), create)
			got <- err
		}()
		until(t, "a repeat waits", func() bool { _, callers := n.edge.keyed.Keys.UnderWay(); return callers == 1 })
		close(n.fake.hold)
		if err := <-got; err != nil || !replayed || len(n.fake.living()) != 1 {
			t.Fatalf("repeat: %v, replayed %v", err, replayed)
		}
	})
	t.Run("nobody-comes", func(t *testing.T) { // while it is made, nor after
		n := startNode(t, func(c *Config) { c.Keys.Untold = 100 * time.Millisecond })
		hold := make(chan struct{})
		n.fake.hold = hold
		leave(t, n)
		until(t, "what nobody waits for is given up", func() bool { return len(n.fake.living()) == 0 })
		close(hold)
		n.fake.mu.Lock()
		n.fake.hold = nil
		n.fake.mu.Unlock()
		create.Key = "k2"
		s, err := n.client.Open(t.Context(), create)
		if err != nil {
			t.Fatal(err)
		}
		for f, err := s.Recv(t.Context()); ; f, err = s.Recv(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if done := f.Type == aether.MsgReply; done {
				f.Release()
				break
			}
			f.Release()
		}
		s.Reset(nil) // the answer was lost on the way to the client
		until(t, "what nobody knows of is taken back", func() bool { return len(n.fake.living()) == 0 })
		if _, replayed, err := n.ask(t.Context(), create); err != nil || replayed {
			t.Errorf("the key isn't free: replayed %v, %v", replayed, err)
		}
	})
}

func TestKeyRunsACommandOnce(t *testing.T) {
	n := startNode(t, nil)
	sb := n.create(plain)
	first, replayed := n.askExec("k", sb.ID, argv("call"), nil)
	if first.err != nil || first.exited == nil || replayed {
		t.Fatalf("first: %+v", first)
	}
	same := func(when string) {
		t.Helper()
		tr, replayed := n.askExec("k", sb.ID, argv("call"), nil)
		if diff := cmp.Diff(first.stdout, tr.stdout); tr.err != nil || !replayed || diff != "" || tr.started != first.started || *tr.exited != *first.exited {
			t.Errorf("%s: replayed %v, %+v\n%s", when, replayed, tr, diff)
		}
	}
	same("at once") // the output has the process's id, which is made anew each time
	n.restart()
	same("restarted")
	tr, _ := n.askExec("k", sb.ID, argv("say"), nil)
	wantCode(t, tr.err, api.CodeKeyReused)

	// Input is part of what is asked for.
	cat, _ := n.askExec("in", sb.ID, argv("cat"), []byte("abc"))
	again, replayed := n.askExec("in", sb.ID, argv("cat"), []byte("abc"))
	if string(cat.stdout) != "abc" || string(again.stdout) != "abc" || !replayed {
		t.Errorf("cat: %q then %q, replayed %v, %v %v", cat.stdout, again.stdout, replayed, cat.err, again.err)
	}
	tr, _ = n.askExec("in", sb.ID, argv("cat"), []byte("abd"))
	wantCode(t, tr.err, api.CodeKeyReused)

	// What didn't start leaves the key free.
	for range 2 {
		tr, replayed := n.askExec("bad", sb.ID, argv("missing"), nil)
		if wantCode(t, tr.err, api.CodeCommandNotFound); replayed {
			t.Error("a refusal was replayed")
		}
	}
	if tr, _ := n.askExec("bad", sb.ID, argv("say", "x"), nil); string(tr.stdout) != "x" {
		t.Errorf("after a refusal: %+v", tr)
	}
}

// TestKeyOfALargeOutput: the first caller gets all of it, repeats are told that it isn't kept.
func TestKeyOfALargeOutput(t *testing.T) {
	n := startNode(t, func(c *Config) { c.Keys.Result = 1 << 20 })
	sb := n.create(plain)
	in := bytes.Repeat([]byte("0123456789abcdef"), 3<<16)
	tr, _ := n.askExec("k", sb.ID, argv("cat"), in)
	if tr.err != nil || !bytes.Equal(tr.stdout, in) || tr.exited == nil {
		t.Fatalf("%d bytes of %d, %v", len(tr.stdout), len(in), tr.err)
	}
	tr, _ = n.askExec("k", sb.ID, argv("cat"), in)
	if e := wantCode(t, tr.err, api.CodeResultGone); e.HTTP != 409 {
		t.Errorf("%+v", e)
	}
}

// TestKeyOfACommandWithoutCallers: a command goes on for a while without its caller, and then is ended.
func TestKeyOfACommandWithoutCallers(t *testing.T) {
	n := startNode(t, func(c *Config) { c.Keys.Grace = 50 * time.Millisecond })
	sb := n.create(plain)
	x := argv("hang")
	s, err := n.client.Open(t.Context(), aether.Open{Method: "exec", Sandbox: sb.ID, Project: "p", Key: "k", Body: x.AppendTo(nil)})
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.Recv(t.Context())
	if err != nil || f.Type != aether.MsgStarted {
		t.Fatalf("%+v, %v", f, err)
	}
	f.Release()
	s.Reset(nil)
	until(t, "the command is given up", func() bool { runs, _ := n.edge.keyed.Keys.UnderWay(); return runs == 0 })
	tr, _ := n.askExec("k", sb.ID, x, nil)
	wantCode(t, tr.err, api.CodeResultGone)
}

// TestKeyOfAProcess: a repeat finds the process and its output, after a restart too.
func TestKeyOfAProcess(t *testing.T) {
	n := startNode(t, nil)
	sb := n.create(plain)
	x := argv("say", "hello")
	x.Keep = true
	first, _ := n.askExec("k", sb.ID, x, nil)
	if first.err != nil || string(first.stdout) != "hello" {
		t.Fatalf("%+v", first)
	}
	x.ID = "chosen" // by the caller, for this try
	n.kept = n.fake.kept
	for range 2 {
		tr, replayed := n.askExec("k", sb.ID, x, nil)
		if tr.err != nil || !replayed || tr.started.ID != first.started.ID || string(tr.stdout) != "hello" {
			t.Errorf("replayed %v: %+v, want %+v", replayed, tr, first)
		}
		n.restart()
	}
}

// TestKeyOfACall: an answer is given again though the thing has changed since.
func TestKeyOfACall(t *testing.T) {
	n := startNode(t, nil)
	sb := n.create(plain)
	stop := keyed("k", as("p", "sandbox.stop", sb.ID, nil))
	first, _, err := n.ask(t.Context(), stop)
	if err != nil {
		t.Fatal(err)
	}
	n.restart()
	again, replayed, err := n.ask(t.Context(), stop)
	if err != nil || !replayed || !bytes.Equal(first, again) {
		t.Errorf("replayed %v, %v: %s, then %s", replayed, err, first, again)
	}
	_, _, err = n.ask(t.Context(), keyed("none", as("p", "sandbox.stop", "nosuchsandbox2345678901", nil)))
	wantCode(t, err, api.CodeNotFound)
}

// TestCreateNobodyWasToldOf: without a key, a sandbox whose creator was lost before it had the answer is stopped at once.
func TestCreateNobodyWasToldOf(t *testing.T) {
	n := startNode(t, nil)
	for _, told := range []bool{false, true} {
		s, err := n.client.Open(t.Context(), as("p", "sandbox.create", "", []byte(plain)))
		if err != nil {
			t.Fatal(err)
		}
		f, err := s.Recv(t.Context())
		if err != nil || f.Type != aether.MsgReply {
			t.Fatalf("%+v, %v", f, err)
		}
		f.Release()
		if !told {
			s.Reset(nil)
			until(t, "the sandbox is stopped", func() bool { return len(n.fake.living()) == 0 })
			continue
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(t.Context()); !errors.Is(err, io.EOF) {
			t.Errorf("after the answer: %v", err)
		}
		n.create(plain)
		if len(n.fake.living()) != 2 {
			t.Errorf("%d sandboxes of 2", len(n.fake.living()))
		}
	}
}
