package contract

import (
	"archive/tar"
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api/openapi"
	"github.com/dsec-io/dsec/internal/need"
	"github.com/dsec-io/dsec/test/testbed"
)

const recordedFile = "../../api/openapi/recorded.json"

// TestDocument checks that the document is sound in itself.
func TestDocument(t *testing.T) {
	d := load(t, testbed.Shared(t))
	ids := map[string]bool{}
	for _, op := range d.ops {
		if ids[op.ID] {
			t.Errorf("two operations are called %s", op.ID)
		}
		ids[op.ID] = true
		port := strings.Contains(op.Path, "/ports/") // one operation with every method
		if op.node["x-codeSamples"] == nil && (!port || op.Method == http.MethodGet) {
			t.Errorf("%s has no example", op.ID)
		}
		if body := child(op.node, "requestBody", "content"); body != nil {
			d.sound(t, op.pointer+"/requestBody", body)
		}
		for status, r := range child(op.node, "responses") {
			pointer, node := d.resolve(op.pointer+"/responses/"+status, r.(map[string]any))
			d.sound(t, pointer, child(node, "content"))
		}
		for _, p := range append(list(op.node["parameters"]), list(op.item["parameters"])...) {
			_, p := d.resolve("", p.(map[string]any))
			if p["description"] == "" || p["schema"] == nil || p["in"] == "path" && !strings.Contains(op.Path, "{"+p["name"].(string)+"}") {
				t.Errorf("%s: parameter %v isn't described", op.ID, p["name"])
			}
		}
	}
	for name := range child(d.root, "components", "schemas") {
		if _, err := d.schema("/components/schemas/" + name); err != nil {
			t.Error(err)
		}
	}
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

// sound compiles the schemas of a body and holds its examples to them. The examples were real answers, or requests.
func (d *document) sound(t *testing.T, pointer string, content map[string]any) {
	t.Helper()
	for media, v := range content {
		at := pointer + "/content/" + escape(media)
		v := v.(map[string]any)
		for _, schema := range []string{"schema", "x-line-schema"} {
			if v[schema] == nil {
				continue
			}
			if _, err := d.schema(at + "/" + schema); err != nil {
				t.Errorf("%s: %v", at, err)
			}
		}
	}
}

// TestExamples runs every example as it is shown. With -record it writes the answers down; without, they must be like the
// recorded ones: the same status, type and members, and the same values but for those that no two runs share.
func TestExamples(t *testing.T) {
	n := testbed.Start(t, testbed.Options{})
	d := load(t, n)
	examples, recorded, err := openapi.Examples()
	if err != nil {
		t.Fatal(err)
	}
	need.Command(t, "curl")
	s := &stage{n: n, dir: t.TempDir(), saved: map[string]string{}}
	for name, data := range map[string][]byte{"rootfs.tar": tarball(t, "bin/", "bin/hello"), "tree.tar": tarball(t, "lib/", "lib/a.py", "lib/b.py")} {
		if err := os.WriteFile(filepath.Join(s.dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	saved, run := s.saved, openapi.Recording{Saved: map[string]string{}, Answers: map[string]openapi.Recorded{}}
	for i := range examples {
		e := &examples[i]
		op := d.op(e.Op)
		if op == nil {
			t.Fatalf("%s: there is no such operation", e.Key())
		}
		a := s.send(t, e)
		if err := d.check(op, op.Method, a); err != nil {
			t.Errorf("%s: %v\n%v", e.Key(), err, a)
		}
		save(t, e, a, saved)
		now := openapi.Recorded{Status: a.status, Type: a.header.Get("Content-Type"), Body: shown(e, a)}
		if _, twice := run.Answers[e.Key()]; twice {
			t.Errorf("%s: two examples are called so", e.Key())
		}
		run.Answers[e.Key()] = now
		if !*record {
			// What an answer is to show may be on its way: a process has begun and not written yet.
			again := func() {
				a := s.send(t, e)
				now = openapi.Recorded{Status: a.status, Type: a.header.Get("Content-Type"), Body: shown(e, a)}
			}
			for deadline := time.Now().Add(patience); op.Method == http.MethodGet && differs(e, now) != "" && time.Now().Before(deadline); {
				again()
			}
			if diff := differs(e, now); diff != "" {
				t.Errorf("%s: %s\nanswer: %s\nshown: %s", e.Key(), diff, now.Body, e.Answer.Body)
			}
		}
		for name := range e.Save {
			if recorded[name] == "" && !*record {
				t.Errorf("%s: nothing is recorded for {%s}", e.Key(), name)
			}
		}
	}
	if *record && !t.Failed() {
		maps.Copy(run.Saved, saved)
		raw, err := json.MarshalIndent(run, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(recordedFile, append(raw, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

var record = flag.Bool("record", false, "write the answers to the examples into package openapi")

// shown is what a reader is shown of an answer: no bytes, and nothing that is too long to be read.
func shown(e *openapi.Example, a *answer) string {
	if slices.Contains([]string{"metrics", "openapi", "docs"}, e.Op) || strings.Contains(a.header.Get("Content-Type"), "tar") {
		return ""
	}
	// A secret is told once, and not to readers, though this one was revoked a moment later.
	body := regexp.MustCompile(`"secret":"dsec_[a-z2-7]{4}[^"]*"`).ReplaceAllString(string(a.body), `"secret":"dsec_…"`)
	return body
}

// stage is where examples are run.
type stage struct {
	n     *testbed.Node
	dir   string // where the files are that stand for "@NAME"
	saved map[string]string
}

// send makes the request of an example with the very command that is shown for it.
func (s *stage) send(t *testing.T, e *openapi.Example) *answer {
	t.Helper()
	filled := *e
	filled.Path, filled.Body, filled.Headers = openapi.Fill(e.Path, s.saved), openapi.Fill(e.Body, s.saved), nil
	for _, h := range e.Headers {
		filled.Headers = append(filled.Headers, openapi.Fill(h, s.saved))
	}
	op := slices.IndexFunc(openapi.Operations(), func(o openapi.Operation) bool { return o.ID == e.Op })
	line := openapi.Curl(&openapi.Operations()[op], &filled)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", line+" --max-time 60 -D head -o body")
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), "DSEC_ENDPOINT="+s.n.Endpoint, "DSEC_TOKEN="+s.n.Token)
	_ = os.Remove(filepath.Join(s.dir, "body")) // none is written where the answer has none
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %s: %v %s", e.Key(), line, err, out)
	}
	head, err := os.ReadFile(filepath.Join(s.dir, "head"))
	if err != nil {
		t.Fatal(err)
	}
	body, err := os.ReadFile(filepath.Join(s.dir, "body"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head)), &http.Request{Method: http.MethodHead})
	if err != nil {
		t.Fatalf("%s: %v: %s", e.Key(), err, head)
	}
	defer resp.Body.Close()
	return &answer{status: resp.StatusCode, header: resp.Header, body: body}
}

// save keeps what later examples use of an answer.
func save(t *testing.T, e *openapi.Example, a *answer, saved map[string]string) {
	t.Helper()
	var members map[string]any
	if len(e.Save) > 0 && json.Unmarshal(a.body, &members) != nil {
		t.Fatalf("%s: %v is nothing to save from", e.Key(), a)
	}
	for name, member := range e.Save {
		value, ok := members[member].(string)
		if !ok {
			t.Fatalf("%s: the answer has no %s: %v", e.Key(), member, a)
		}
		saved[name] = value
	}
}

func tarball(t *testing.T, names ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		h := &tar.Header{Name: name, Mode: 0o755, Size: int64(len(name))}
		if strings.HasSuffix(name, "/") {
			h.Size = 0
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			_, _ = w.Write([]byte(name))
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// patience is how long an answer may take to become what is shown: a hang detector.
const patience = 30 * time.Second

// differs tells how an answer isn't like the recorded one.
func differs(e *openapi.Example, now openapi.Recorded) string {
	then := e.Answer
	if now.Status != then.Status || now.Type != then.Type {
		return fmt.Sprintf("the answer is %d %s, the document shows %d %s", now.Status, now.Type, then.Status, then.Type)
	}
	if e.Op == "listImages" {
		return "" // which images there are is the machine's affair
	}
	have, want := documents(now.Body), documents(then.Body)
	if len(have) != len(want) {
		return fmt.Sprintf("the answer has %d documents, the shown one %d", len(have), len(want))
	}
	for i := range have {
		if diff := unlike("it", want[i], have[i]); diff != "" {
			return diff
		}
	}
	return ""
}

// documents are the JSON documents of a body, one or one a line; text is one, too.
func documents(body string) []any {
	var out []any
	for line := range strings.Lines(body) {
		var v any
		if json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &v) != nil {
			v = line
		}
		if m, ok := v.(map[string]any); ok && m["type"] == "progress" {
			continue // how much of it there is, time decides
		}
		out = append(out, v)
	}
	return out
}

// unlike tells where two JSON values differ. Of members that no two runs share only the type is compared.
func unlike(name string, want, have any) string {
	if fmt.Sprintf("%T", want) != fmt.Sprintf("%T", have) {
		return fmt.Sprintf("%s is %T, not %T", name, have, want)
	}
	switch want := want.(type) {
	case map[string]any:
		have := have.(map[string]any)
		if a, b := slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(have)); !slices.Equal(a, b) {
			return fmt.Sprintf("%s has %v, not %v", name, b, a)
		}
		for key := range want {
			if key == "size" && want["type"] == "directory" {
				continue // the file system's affair
			}
			if diff := unlike(key, want[key], have[key]); diff != "" {
				return diff
			}
		}
	case []any:
		have := have.([]any)
		if len(want) != len(have) {
			return fmt.Sprintf("%s has %d elements, not %d", name, len(have), len(want))
		}
		for i := range want {
			if diff := unlike(name, want[i], have[i]); diff != "" {
				return diff
			}
		}
	default:
		if want != have && !slices.Contains(own(), name) {
			return fmt.Sprintf("%s is %v, not %v", name, have, want)
		}
	}
	return ""
}

// own are the members whose values belong to one run.
func own() []string {
	return []string{
		"id", "sandbox", "process", "pid", "request_id", "created_at", "started_at", "ended_at", "time", "mtime", "duration_ms", "memory_bytes", "cpu_ns", "pids", "paused_at", "memory_peak_bytes", "cache_bytes",
		"size_bytes", "digest", "in_use", "cursor", "bytes", "detail", "freed_bytes", "token", "created_by", "prefix", "resource", "seq", "expires_at", "last_used_at", "client",
	}
}
