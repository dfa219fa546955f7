package files

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/need"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// hang is how long a test waits for what comes at once: a hang detector.
const hang = 2 * time.Minute

// watch is a watch on its way.
type watch struct {
	t      testing.TB
	events chan api.FileEvent
	err    error // valid when events is closed
	cancel context.CancelFunc
}

// begin watches, and returns when the watch is ready.
func begin(t testing.TB, f *libdsec.Files, name string, tree bool) (*watch, api.FileEvent) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &watch{t: t, events: make(chan api.FileEvent), cancel: cancel} // unbuffered: the test's pace is the client's
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer close(w.events)
		follow := f.Watch
		if tree {
			follow = f.WatchTree
		}
		for e, err := range follow(ctx, name) {
			if err != nil {
				w.err = err
				return
			}
			select {
			case w.events <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	ready := w.next()
	if ready.Type != api.FileReady {
		t.Fatalf("the first event of a watch of %s is %+v, %v", name, ready, w.err)
	}
	return w, ready
}

// next is the next event; without a type when there are no more.
func (w *watch) next() api.FileEvent {
	w.t.Helper()
	select {
	case e := <-w.events:
		return e
	case <-time.After(hang):
		w.t.Fatal("no event comes")
		return api.FileEvent{}
	}
}

// until collects events as text until one that is last.
func (w *watch) until(last string) []string {
	w.t.Helper()
	var got []string
	for {
		e := w.next()
		got = append(got, text(e))
		if e.Type == "" || got[len(got)-1] == last {
			return got
		}
	}
}

// text is an event in short.
func text(e api.FileEvent) string {
	s := e.Type + " " + e.RawPath()
	if e.Type == api.FileRenamed {
		s += " to " + e.RawTo()
	}
	if e.Dir {
		s += "/"
	}
	if e.Moved {
		s += " moved"
	}
	if e.Reason != "" {
		s += " " + string(e.Reason)
	}
	return s
}

func TestWatchDirectory(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	testbed.Output(t, sb, "mkdir /w /w/sub /out; echo x > /w/old; ln -s w /link")
	for _, c := range []struct{ script, last, want string }{
		{"echo hello > /w/a", "closed_write /w/a", "create /w/a\nmodify /w/a\nclosed_write /w/a"},
		{"chmod 600 /w/a", "attrib /w/a", "attrib /w/a"},
		{"mv /w/a /w/b", "rename /w/a to /w/b", "rename /w/a to /w/b"},
		{"mv /w/b /out/b", "delete /w/b moved", "delete /w/b moved"},
		{"mv /out/b /w/c", "create /w/c moved", "create /w/c moved"},
		{"rm /w/c", "delete /w/c", "delete /w/c"},
		{"echo deep > /w/sub/x; mkdir /w/d", "create /w/d/", "create /w/d/"}, // not recursive: nothing of /w/sub
		{"mv /w/d /w/e && rmdir /w/e", "delete /w/e/", "rename /w/d to /w/e/\ndelete /w/e/"},
		{"mkfifo /w/p; ln -s nowhere /w/l", "create /w/l", "create /w/p\ncreate /w/l"},
		{"ln /w/old /w/hard", "create /w/hard", "create /w/hard"},
	} {
		w, ready := begin(t, sb.Files(), "/w", false)
		if ready.Path != "/w" || !ready.Dir || ready.Directories != 1 {
			t.Errorf("ready is %+v", ready)
		}
		testbed.Output(t, sb, c.script)
		if got := strings.Join(w.until(c.last), "\n"); got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.script, got, c.want)
		}
		w.cancel()
	}
	// What the file API does is seen like anything else, and a link at the end of the path is followed.
	w, _ := begin(t, sb.Files(), "/link", false)
	put(t, sb.Files(), "/w/api", "content")
	got := w.until("closed_write /link/api")
	temp := strings.TrimPrefix(got[0], "create ")
	want := []string{"create " + temp, "modify " + temp, "attrib " + temp, "rename " + temp + " to /link/api"}
	if len(got) > 5 || !slices.Equal(got[:min(4, len(got))], want) {
		t.Errorf("a write by the API: %q", got)
	}
}

func TestWatchTree(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	testbed.Output(t, sb, "mkdir -p /w/a/b/c /out/tree/deep; echo x > /out/tree/deep/f; ln -s /out /w/link")
	w, ready := begin(t, sb.Files(), "/w", true)
	if ready.Directories != 4 {
		t.Errorf("ready is %+v", ready)
	}
	for _, c := range []struct{ script, last, want string }{
		{"echo 1 > /w/a/b/c/f", "closed_write /w/a/b/c/f", "create /w/a/b/c/f\nmodify /w/a/b/c/f\nclosed_write /w/a/b/c/f"},
		{"mkdir /w/new", "create /w/new/", "create /w/new/"},
		{": > /w/new/f", "closed_write /w/new/f", "create /w/new/f\nclosed_write /w/new/f"},
		// Directories keep being watched wherever they are moved inside.
		{"mv /w/a/b /w/new/bb", "rename /w/a/b to /w/new/bb/", "rename /w/a/b to /w/new/bb/"},
		{"rm /w/new/bb/c/f", "delete /w/new/bb/c/f", "delete /w/new/bb/c/f"},
		{"mv /w/new /w/a/n", "rename /w/new to /w/a/n/", "rename /w/new to /w/a/n/"},
		{": > /w/a/n/bb/c/g", "closed_write /w/a/n/bb/c/g", "create /w/a/n/bb/c/g\nclosed_write /w/a/n/bb/c/g"},
		// What is moved in is told with all that is in it; what is moved out isn't watched any more.
		{"mv /out/tree /w/in", "create /w/in/deep/f", "create /w/in/ moved\ncreate /w/in/deep/\ncreate /w/in/deep/f"},
		{"echo y > /w/in/deep/f", "closed_write /w/in/deep/f", "modify /w/in/deep/f\nmodify /w/in/deep/f\nclosed_write /w/in/deep/f"},
		{"mv /w/in /out/again; echo z > /out/again/deep/f; mkdir /w/end", "create /w/end/", "delete /w/in/ moved\ncreate /w/end/"},
		{"echo behind > /w/link/f; rm -r /w/a/n/bb", "delete /w/a/n/bb/", "delete /w/a/n/bb/c/g\ndelete /w/a/n/bb/c/\ndelete /w/a/n/bb/"},
	} {
		testbed.Output(t, sb, c.script)
		got := strings.Join(w.until(c.last), "\n")
		if got != c.want && strings.ReplaceAll(got, "modify /w/in/deep/f\nmodify /w/in/deep/f\n", "modify /w/in/deep/f\n") != strings.ReplaceAll(c.want, "modify /w/in/deep/f\nmodify /w/in/deep/f\n", "modify /w/in/deep/f\n") {
			t.Errorf("%s:\n%s\nwant\n%s", c.script, got, c.want)
		}
	}
	// Two directories that change places.
	testbed.Output(t, sb, "rm -r /w/*; mkdir -p /w/x/was-x /w/y/was-y")
	w.cancel()
	w, _ = begin(t, sb.Files(), "/w", true)
	testbed.Output(t, sb, "mv /w/x /w/t && mv /w/y /w/x && mv /w/t /w/y && : > /w/x/was-y/f && : > /w/y/was-x/f")
	got := w.until("closed_write /w/y/was-x/f")
	for _, want := range []string{"create /w/x/was-y/f", "create /w/y/was-x/f"} {
		if !slices.Contains(got, want) {
			t.Errorf("%q isn't among %q", want, got)
		}
	}
}

// TestWatchNewDirectories makes trees as fast as a program can while they are being found: every file in them is told.
func TestWatchNewDirectories(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	testbed.Output(t, sb, "mkdir /w")
	w, _ := begin(t, sb.Files(), "/w", true)
	const trees = 40
	p, err := sb.Start(t.Context(), libdsec.Cmd{Shell: fmt.Sprintf(`i=0; while [ $i -lt %d ]; do
		mkdir -p /w/$i/a/b/c; : > /w/$i/1; : > /w/$i/a/2; : > /w/$i/a/b/3; : > /w/$i/a/b/c/4; mv /w/$i /w/moved-$i; : > /w/moved-$i/a/b/c/5; i=$((i+1)); done; : > /w/end`, trees)}, libdsec.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{} // what the events say that there is
	for _, e := range w.collect("closed_write /w/end") {
		switch e.Type {
		case api.FileCreated:
			there[e.Path] = true
		case api.FileDeleted:
			delete(there, e.Path)
		case api.FileRenamed:
			for path := range there {
				if rest, ok := strings.CutPrefix(path, e.Path); ok && (rest == "" || rest[0] == '/') {
					delete(there, path)
					there[e.To+rest] = true
				}
			}
		case api.FileModified, api.FileAttrib, api.FileClosedWrite:
		default:
			t.Errorf("%+v", e)
		}
	}
	if st, err := p.Wait(t.Context()); err != nil || st.ExitCode == nil || *st.ExitCode != 0 {
		t.Fatalf("%+v, %v", st, err)
	}
	for i := range trees {
		for _, f := range []string{"1", "a/2", "a/b/3", "a/b/c/4", "a/b/c/5"} {
			if path := fmt.Sprintf("/w/moved-%d/%s", i, f); !there[path] {
				t.Errorf("no event tells of %s", path)
			}
		}
	}
}

// collect is until with whole events.
func (w *watch) collect(last string) []api.FileEvent {
	w.t.Helper()
	var got []api.FileEvent
	for {
		e := w.next()
		got = append(got, e)
		if e.Type == "" || text(e) == last {
			return got
		}
	}
}

func TestWatchEnds(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{})
	testbed.Output(t, sb, "mkdir -p /d/up/w /r; echo x > /d/f; echo x > /replaced")
	for name, c := range map[string]struct{ path, script string }{
		"removed":  {"/r", "rmdir /r"},
		"moved":    {"/d/up/w", "mv /d/up/w /d/up/v && mv /d/up/v /d/up/w2"},
		"file":     {"/d/f", "rm /d/f"},
		"replaced": {"/replaced", "echo y > /new && mv /new /replaced"},
		"in-use":   {"/used", "mkdir /used"}, // below
		"above":    {"/above/w", "mkdir -p /above/w"},
	} {
		for _, recursive := range []bool{false, true} {
			t.Run(fmt.Sprint(name, "-", recursive), func(t *testing.T) {
				sb := n.Create(t, api.Spec{})
				testbed.Output(t, sb, "mkdir -p /d/up/w /r /used /above/w; echo x > /d/f; echo x > /replaced")
				w, _ := begin(t, sb.Files(), c.path, recursive)
				switch name {
				case "in-use": // a program's working directory: the kernel doesn't tell of its end
					if _, err := sb.Start(t.Context(), libdsec.Cmd{Shell: "cd /used && rmdir /used && exec sleep 1000"}, libdsec.StartOptions{}); err != nil {
						t.Fatal(err)
					}
				case "above":
					testbed.Output(t, sb, "mv /above /elsewhere")
				default:
					testbed.Output(t, sb, c.script)
				}
				got := w.until("gone " + c.path)
				if last := got[len(got)-1]; last != "gone "+c.path {
					t.Fatalf("%q, %v", got, w.err)
				}
				if e := w.next(); e.Type != "" || w.err != nil {
					t.Errorf("after the end: %+v, %v", e, w.err)
				}
			})
		}
	}
	t.Run("sandbox-stops", func(t *testing.T) {
		sb := n.Create(t, api.Spec{})
		w, _ := begin(t, sb.Files(), "/", false)
		shm, _ := begin(t, sb.Files(), "/dev/shm", false)
		if _, err := sb.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, w := range []*watch{w, shm} {
			for e := w.next(); e.Type != ""; e = w.next() {
				if e.Type == api.FileGone {
					t.Log("the directory went first")
				}
			}
			if w.err != nil && !libdsec.IsCode(w.err, api.CodeSandboxDied) {
				t.Errorf("it ended with %v", w.err)
			}
		}
	})
}

func TestWatchRefusals(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{})
	testbed.Output(t, sb, "mkdir -p -m 700 /closed /w/mine; mkdir -p /w/open; mkdir -m 700 /w/closed; : > /f; ln -s loop /loop; mkfifo /fifo")
	app := sb.Files().As("1000:1000")
	for path, code := range map[string]api.Code{
		"/no": api.CodeFileNotFound, "/f/x": api.CodeNotDirectory, "/closed": api.CodePermissionDenied, "/closed/x": api.CodePermissionDenied,
		"/loop": api.CodeLinkLoop, "w": api.CodeInvalid, "/\x00": api.CodeInvalid,
	} {
		var err error
		for _, err = range app.WatchTree(t.Context(), path) {
		}
		if !libdsec.IsCode(err, code) {
			t.Errorf("watch %q: %v, want %s", path, err, code)
		}
		status, body := faced{n, sb.ID()}.do(t, http.MethodGet, url.Values{"path": {path}, "watch": {"1"}, "user": {"1000:1000"}}, nil)
		wantProblem(t, status, body, code)
	}
	// A pipe is watched without being opened, and what may not be read below a tree is told.
	if _, ready := begin(t, sb.Files(), "/fifo", false); ready.Dir {
		t.Errorf("%+v", ready)
	}
	w, ready := begin(t, app, "/w", true)
	if ready.Directories != 2 {
		t.Errorf("%+v", ready)
	}
	got := []string{text(w.next()), text(w.next())}
	slices.Sort(got)
	if want := []string{"skipped /w/closed/ permission_denied", "skipped /w/mine/ permission_denied"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	testbed.Output(t, sb, "mkdir -m 700 /later; mv /later /w/open/later")
	if got := w.until("skipped /w/open/later/ permission_denied"); len(got) > 3 {
		t.Errorf("%q", got)
	}
	// Other mounts are others' affair.
	w, _ = begin(t, sb.Files(), "/", true)
	testbed.Output(t, sb, ": > /end")
	if all := w.until("closed_write /end"); !slices.Contains(all, "skipped /proc/ conflict") {
		t.Errorf("a watch of everything doesn't say that /proc is left out: %q", all)
	}
}

// TestWatchLimits runs into the sandbox's own limits and into those of the shard.
func TestWatchLimits(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{})
	testbed.Output(t, sb, "mkdir -p /w/1 /w/2 /w/3")
	const own = 32
	var all []*watch
	for range own {
		w, _ := begin(t, sb.Files(), "/w", false)
		all = append(all, w)
	}
	refusedWith := func(f *libdsec.Files, code api.Code) {
		t.Helper()
		var err error
		for _, err = range f.WatchTree(t.Context(), "/w") {
			break
		}
		wantHint(t, err, code)
	}
	refusedWith(sb.Files(), api.CodeTooMany)
	for _, w := range all {
		w.cancel()
	}
	testbed.Until(t, hang, "the watches to end", func() bool {
		for _, err := range sb.Files().Watch(t.Context(), "/w") {
			return err == nil
		}
		return false
	})
}

// TestWatchOwnLimit: the sandbox's own limit of inotify instances counts for its programs and for the API alike.
func TestWatchOwnLimit(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	need.Image(t, "debian")
	sb := n.Create(t, api.Spec{Image: "debian"})
	testbed.Output(t, sb, "mkdir /w")
	p, err := sb.Start(t.Context(), libdsec.Cmd{Argv: []string{"python3", "-c", "import ctypes, time; c = ctypes.CDLL(None); [c.inotify_init() for _ in range(200)]; time.sleep(1000)"}}, libdsec.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	testbed.Until(t, hang, "the programs to use up the sandbox's limit", func() bool {
		for _, err := range sb.Files().Watch(t.Context(), "/w") {
			return libdsec.IsCode(err, api.CodeQuota) && api.AsError(err).Hint != ""
		}
		return false
	})
	if err := p.Kill(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestWatchNames(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	f := sb.Files()
	put(t, f, "/n \xff/x", "")
	w, ready := begin(t, f, "/n \xff/", true)
	if ready.RawPath() != "/n \xff" || ready.PathB64 == nil {
		t.Errorf("ready is %+v", ready)
	}
	for _, name := range []string{"项目 é.txt", "..a", "a\nb", "\xff\xfe\x80", strings.Repeat("n", 255), `"\`, "-rf"} {
		path := "/n \xff/" + name
		if _, err := f.Mkdir(t.Context(), path, nil); err != nil {
			t.Fatal(err)
		}
		w.until("create " + path + "/")
		if _, err := f.Rename(t.Context(), path, "/n \xff/t\xff"); err != nil {
			t.Fatal(err)
		}
		if e := w.next(); e.RawPath() != path || e.RawTo() != "/n \xff/t\xff" || e.ToB64 == nil {
			t.Fatalf("%+v, %v", e, w.err)
		}
		if err := f.Remove(t.Context(), "/n \xff/t\xff"); err != nil {
			t.Fatal(err)
		}
		w.until("delete /n \xff/t\xff/")
	}
}

// TestWatchSlowClient makes far more events than a client takes: it is told that some were lost, the shard's memory stays
// flat, and the watch goes on, with directories that were made meanwhile.
func TestWatchSlowClient(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	testbed.Output(t, sb, "mkdir /w")
	w, _ := begin(t, sb.Files(), "/w", true)
	const files = 40_000 // some 20 MiB of events, with names that are as long as they may be
	testbed.Output(t, sb, fmt.Sprintf("cd /w; n=$(printf %%0200d 0); i=0; while [ $i -lt %d ]; do : > $n$i; i=$((i+1)); done; mkdir -p /w/made/meanwhile", files))
	for e := w.next(); e.Type != api.FileOverflow; e = w.next() {
		if e.Type == "" {
			t.Fatalf("it ended without an overflow: %v", w.err)
		}
	}
	// What there is to take now is little: nothing is lost any more, and the directories that came meanwhile are watched.
	testbed.Output(t, sb, ": > /w/made/meanwhile/f")
	if got := w.until("closed_write /w/made/meanwhile/f"); !slices.Contains(got, "create /w/made/meanwhile/f") {
		t.Errorf("%.1000q, %v", got, w.err)
	}
}

// TestWatchREST reads events as lines and as server-sent events.
func TestWatchREST(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{})
	testbed.Output(t, sb, "mkdir /w")
	for accept, media := range map[string]string{"": "application/x-ndjson", "text/event-stream": "text/event-stream"} {
		req := faced{n, sb.ID()}.request(t, http.MethodGet, url.Values{"path": {"/w"}, "watch": {"1"}, "recursive": {"1"}}, nil)
		req.Header.Set("Accept", accept)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || got != media {
			t.Errorf("%d, %q", resp.StatusCode, got)
		}
		lines := bufio.NewScanner(resp.Body)
		event := func() (e api.FileEvent) {
			kind := ""
			for lines.Scan() {
				line := lines.Text()
				if media == "text/event-stream" {
					if k, ok := strings.CutPrefix(line, "event: "); ok {
						kind = k
					}
					data, ok := strings.CutPrefix(line, "data: ")
					if !ok {
						continue
					}
					line = data
				}
				if line == "" {
					continue // a sign of life
				}
				if err := json.Unmarshal([]byte(line), &e); err != nil || kind != "" && kind != e.Type {
					t.Fatalf("%q: %v", line, err)
				}
				return e
			}
			return e
		}
		if e := event(); e.Type != api.FileReady {
			t.Errorf("the first event is %+v", e)
		}
		testbed.Output(t, sb, "mkdir /w/d")
		if e := event(); text(e) != "create /w/d/" {
			t.Errorf("%+v", e)
		}
		testbed.Output(t, sb, "rmdir /w/d")
		if e := event(); text(e) != "delete /w/d/" {
			t.Errorf("%+v", e)
		}
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
	}
}
