package contract

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dsec-io/dsec/test/testbed"
)

// secondsEnv is how long TestContract may take, in seconds, when it is to be more than the suite has time for.
const secondsEnv = "DSEC_CONTRACT_SECONDS"

const suiteTime = 40 * time.Second

var goodTar []byte // a small tree

// TestContract: whatever is sent to a node, to whichever operation, is answered as the document says: never by a fault of
// ours, every error as a problem document with a code that the operation has, every body of the shape that is described.
// What is refused has done nothing: no sandbox, image or file is there that wasn't before.
func TestContract(t *testing.T) {
	limit := suiteTime
	if s := os.Getenv(secondsEnv); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatalf("%s: %v", secondsEnv, err)
		}
		limit = time.Duration(n) * time.Second
	}
	for name, value := range map[string]string{"rapid.nofailfile": "true", "rapid.checks": strconv.Itoa(int(limit / (2 * time.Millisecond))), "rapid.shrinktime": "15s"} {
		old := flag.Lookup(name).Value.String()
		if err := flag.Set(name, value); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = flag.Set(name, old) }()
	}
	goodTar = tarball(t, "d/", "d/file")
	n := testbed.Start(t, testbed.Options{})
	w := &world{t: t, n: n, d: load(t, n), wire: newWire(n), statuses: map[string]int{}, processes: map[string]string{}}
	defer w.wire.close()
	w.others()
	w.renew()
	slices.SortFunc(w.d.ops, func(a, b *operation) int { return strings.Compare(a.ID, b.ID) })
	whole := 0
	for _, op := range w.d.ops {
		whole += op.weight()
	}
	begin, done := time.Now(), 0
	for _, op := range w.d.ops {
		done += op.weight()
		deadline := begin.Add(limit * time.Duration(done) / time.Duration(whole))
		w.seen = map[bool]string{}
		t.Run(op.ID, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				if time.Now().After(deadline) && !t.Failed() {
					return
				}
				w.t = rt
				w.step(rt, op)
			})
		})
		w.t = t
	}
	w.empty()
	t.Logf("%d requests", w.requests)
	for _, key := range slices.Sorted(maps.Keys(w.statuses)) {
		t.Logf("%s: %d", key, w.statuses[key])
	}
}

// world is a node and what is known of it.
type world struct {
	t    fatal // the test, or the check that runs
	n    *testbed.Node
	d    *document
	wire *wire

	stranger   string            // a token of another project
	token      string            // the id of one that may be revoked
	project    string            // one that may be deleted
	box, ended string            // a sandbox that runs, and one that has ended
	processes  map[string]string // in the one that runs: "input", "terminal", "done"
	requests   int
	seen       map[bool]string // what look saw, with files and without; while nothing has changed it
	statuses   map[string]int  // how often an operation was answered so
}

type fatal interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// weight is an operation's share of the time: what takes bodies has more ways to go wrong.
func (op *operation) weight() int {
	if op.node["requestBody"] != nil || strings.HasSuffix(op.Path, "/files") {
		return 4
	}
	return 1
}

// must makes a request that has to succeed.
func (w *world) must(method, target, body string, into any) {
	w.t.Helper()
	a, err := w.wire.do(w.authorised(method, target, body))
	if err != nil || a.status >= 300 {
		w.t.Fatalf("%s %s %s: %v, %v\n%s", method, target, body, a, err, w.n.LogTail())
	}
	if into != nil {
		if err := json.Unmarshal(a.body, into); err != nil {
			w.t.Fatalf("%s %s: %v: %v", method, target, err, a)
		}
	}
}

func (w *world) authorised(method, target, body string) *call {
	return &call{method: method, target: target, body: []byte(body), headers: []string{"Authorization: Bearer " + w.n.Token}}
}

// renew makes the sandbox that requests go to.
func (w *world) renew() {
	w.t.Helper()
	var made struct{ ID string }
	if w.box != "" {
		w.must("DELETE", "/v1/sandboxes/"+w.box, "", nil)
		w.ended = w.box
	}
	w.must("POST", "/v1/sandboxes", `{"image":"busybox","command":["sh","-c","echo booted; sleep 1000"]}`, &made)
	w.box = made.ID
	w.must("POST", "/v1/sandboxes/"+w.box+"/exec", `{"shell":"mkdir -p /w/full/dir; echo text >/w/file; ln -s file /w/link; ln -s loop /w/loop; mkfifo /w/fifo"}`, nil)
	w.must("POST", "/v1/sandboxes/"+w.box+"/sessions", `{"id":"s1"}`, nil)
	for name, body := range map[string]string{
		"input":    `{"shell":"while cat >/dev/null; do sleep 1; done","stdin_open":true}`,
		"terminal": `{"shell":"stty raw; exec cat >/dev/null","tty":{"rows":24,"cols":80}}`,
		"done":     `{"argv":["true"]}`,
	} {
		w.must("POST", "/v1/sandboxes/"+w.box+"/processes", body, &made)
		w.processes[name] = made.ID
	}
}

// others makes a project with a token that has everything there and nothing elsewhere.
func (w *world) others() {
	w.t.Helper()
	w.must("POST", "/v1/projects", `{"name":"other"}`, nil)
	var made struct{ Secret string }
	c := w.authorised("POST", "/v1/tokens", `{"role":"admin"}`)
	c.headers = append(c.headers, "X-Dsec-Project: other")
	a, err := w.wire.do(c)
	if err != nil || a.status != http.StatusCreated || json.Unmarshal(a.body, &made) != nil {
		w.t.Fatalf("make a token: %v, %v", a, err)
	}
	w.stranger = made.Secret
}

// draw makes a request to an operation.
func (w *world) draw(rt *rapid.T, op *operation) *call {
	g := &generator{d: w.d, rt: rt}
	c := &call{method: op.Method, target: op.Path}
	odd := []string{"x", "%00", "%2e%2e", "a%2Fb", strings.Repeat("z", 300), "%ff", "%zz", "saaaaaaaaaaaaaaaaaaaaa", "..", "S", "%20", "%C3%A9", "-1"}
	ids := map[string][]string{
		"id": {w.box, w.box, w.box, w.box, w.box, w.box, w.ended}, "pid": {w.processes["input"], w.processes["terminal"], w.processes["done"], "start"}, "sid": {"s1", "s1", "s2"},
		"name": {"busybox", "busybox", "made", "nothing"}, "project": {"default", w.project, w.project, "nothing"}, "port": {"80", "0", "65536", "x"}, "path": {"", "a/b"},
	}
	if strings.HasPrefix(op.Path, "/v1/tokens") {
		ids["id"] = []string{w.token, w.token, "nothing", "a"}
	}
	for _, name := range params(op.Path) {
		value := rapid.SampledFrom(append([]string{""}, odd...)).Draw(rt, name)
		if known := ids[name]; len(known) > 0 && !one(rt, 8, "odd "+name) {
			value = rapid.SampledFrom(known).Draw(rt, name)
		}
		c.target = strings.ReplaceAll(c.target, "{"+name+"}", value)
	}
	paths := []string{
		"/w/file", "/w/new", "/w/full", "/w/full/dir", "/w/link", "/w/loop", "/w/fifo", "/w", "/w/a/b/c", "/w/file/x", "/", "/proc/version", "/proc/1/mem", "/dev/null", "/dev/zero",
		"relative", "/w/../w/file", "/w/%ff%fe", "/w/.", "/w/%0a", "/nothing", "/w/" + strings.Repeat("n", 300), "/w/" + strings.Repeat("d/", 2500),
	}
	c.target += g.query(op, map[string][]string{
		"path": paths, "to": paths, "user": {"root", "1000", "nobody", "0:0", "strange", "-1"}, "name": {"made", "made", "x%2Fy", "..", "busybox-2"}, "since": {"0", "1", "3"},
		"label": {"team%3Drl", "a%3D", "x"}, "cursor": {"", "x", "0"}, "mode": {"0644", "755", "7777", "9"},
	})
	var media string
	c.body, media = g.body(op)
	if one(rt, 30, "odd method") {
		c.method = rapid.SampledFrom([]string{"PUT", "POST", "GET", "DELETE", "OPTIONS", "PATCH", "BREW", "HEAD", "TRACE"}).Draw(rt, "method")
	} else if c.method == http.MethodGet && one(rt, 10, "head") {
		c.method = http.MethodHead
	}
	if c.method == http.MethodGet || c.method == http.MethodHead || c.method == http.MethodDelete {
		if !one(rt, 10, "a body") {
			c.body = nil
		}
	}
	c.live = strings.Contains(c.target, "follow") || strings.Contains(c.target, "/attach") || strings.Contains(c.target, "stream") || strings.Contains(c.target, "watch") || op.ID == "startProcess"
	w.headers(rt, op, c, media)
	return c
}

// headers draws a request's headers.
func (w *world) headers(rt *rapid.T, op *operation, c *call, media string) {
	add := func(name string, from ...string) {
		if one(rt, 4, name+"?") {
			c.headers = append(c.headers, name+": "+rapid.SampledFrom(from).Draw(rt, name))
		}
	}
	token := "Bearer " + w.n.Token
	if one(rt, 20, "stranger") {
		token = rapid.SampledFrom([]string{"Bearer " + w.stranger, "Bearer " + w.stranger, "Bearer " + w.stranger, "", "Bearer", "Bearer dsec_aaaaaaaaaaaaaaaaaaaaaaaaaa", "Basic " + w.n.Token, "Bearer " + w.n.Token + "x", "Bearer \xff", "Bearer " + strings.Repeat("t", 4000)}).Draw(rt, "token")
	}
	if token != "" {
		c.headers = append(c.headers, "Authorization: "+token)
	}
	if len(c.body) > 0 || rapid.Bool().Draw(rt, "typed") {
		if one(rt, 15, "odd type") {
			media = rapid.SampledFrom([]string{"text/plain", "application/xml", "", ";", "application/json; charset=utf-16", "multipart/form-data; boundary=x", "application/merge-patch+json"}).Draw(rt, "type")
		}
		if media != "" {
			c.headers = append(c.headers, "Content-Type: "+media)
		}
	}
	if op.ID == "upgradeToAether" && one(rt, 2, "upgrade") {
		c.headers = append(c.headers, "Connection: Upgrade", "Upgrade: aether")
	}
	if op.ID == "attachProcess" && one(rt, 4, "upgrade") {
		c.headers = append(c.headers, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")
	}
	if !one(rt, 4, "more headers") {
		return
	}
	add("Accept", "application/x-ndjson", "text/event-stream", "*/*", ",")
	add("Last-Event-ID", "3", "x", "-1")
	add("Idempotency-Key", "k"+strconv.Itoa(w.requests), "k", "with space", strings.Repeat("k", 300))
	add("Range", "bytes=0-1", "bytes=99999-", "bytes=-3", "bytes=x", "bytes=0-1,3-4", "lines=1-2")
	add("Upgrade", "websocket", "aether", "h2c")
	add("Connection", "Upgrade", "close")
	add("Origin", "null", "https://evil.example", "http://localhost")
	add("X-Dsec-Project", "default", "other", "nothing", "*", "a b", "..")
	add("X-Request-Id", "mine-1", "a b", strings.Repeat("r", 500), "<script>")
}

func params(path string) []string {
	var names []string
	for part := range strings.SplitSeq(path, "{") {
		if name, _, ok := strings.Cut(part, "}"); ok {
			names = append(names, name)
		}
	}
	return names
}

// step makes one request and judges the answer and what it left.
func (w *world) step(rt *rapid.T, op *operation) {
	w.prepare(rt, op)
	c := w.draw(rt, op)
	w.requests++
	before := w.look(op, false)
	a, err := w.wire.do(c)
	if err != nil {
		rt.Fatalf("%v\n%v\n%s", c, err, w.n.LogTail())
	}
	w.statuses[op.ID+" "+strconv.Itoa(a.status)]++
	if err := w.judge(op, c, a); err != nil {
		rt.Fatalf("%v\nanswer: %v\n%v", c, a, err)
	}
	// A tar is unpacked as it comes: the document says that what came before an error stays.
	tar := strings.Contains(c.target, "tar=")
	if tar {
		clear(w.seen)
	}
	if a.status >= 400 && (op.Method != http.MethodGet || w.requests%10 == 0) && !tar {
		if after := w.look(op, true); after != before {
			rt.Fatalf("%v\nanswer: %v\nwas refused and did something:\n%s\nwas before:\n%s", c, a, after, before)
		}
	}
	w.tidy(op, c, a)
}

// prepare makes what an operation needs and doesn't find.
func (w *world) prepare(rt *rapid.T, op *operation) {
	switch {
	case op.ID == "revokeToken" && one(rt, 2, "a token"), op.ID == "getToken" && w.token == "":
		var made struct{ ID string }
		w.must("POST", "/v1/tokens", `{"label":"to be revoked"}`, &made)
		w.token = made.ID
		clear(w.seen)
	case op.ID == "deleteProject" && one(rt, 2, "a project"):
		w.project = "p" + strconv.Itoa(w.requests) // a deleted one's name rests for an hour
		if a, err := w.wire.do(w.authorised("POST", "/v1/projects", `{"name":"`+w.project+`"}`)); err != nil || a.status != http.StatusCreated && a.status != http.StatusConflict {
			rt.Fatalf("make a project: %v, %v", a, err)
		}
		clear(w.seen)
	}
	if op.ID == "removeImage" && one(rt, 3, "an image") {
		c := w.authorised("POST", "/v1/images?name=made&replace=1", string(goodTar))
		if a, err := w.wire.do(c); err != nil || a.status != http.StatusCreated {
			rt.Fatalf("import: %v, %v", a, err)
		}
		clear(w.seen)
	}
}

// look is what a refused request must not change.
func (w *world) look(op *operation, anew bool) string {
	files := strings.Contains(op.Path, "/files") && op.Method != http.MethodGet
	if seen, ok := w.seen[files]; ok && !anew {
		return seen
	}
	var boxes struct{ Items []struct{ ID, State string } }
	w.must("GET", "/v1/sandboxes?limit=1000", "", &boxes)
	living := []string{}
	for _, b := range boxes.Items {
		if b.State != "stopped" && b.State != "failed" {
			living = append(living, b.ID)
		}
	}
	slices.Sort(living)
	var images struct {
		Items []struct{ Name, Digest string }
	}
	w.must("GET", "/v1/images", "", &images)
	var projects struct{ Items []struct{ Name string } }
	w.must("GET", "/v1/projects?limit=1000", "", &projects)
	var tokens struct{ Items []struct{ ID string } }
	w.must("GET", "/v1/tokens?limit=1000&all=true", "", &tokens)
	seen := fmt.Sprint(living, images, projects, tokens)
	if files {
		var r struct{ Stdout string }
		w.must("POST", "/v1/sandboxes/"+w.box+"/exec", `{"shell":"find /w /tmp /root -xdev -exec stat -c '%n %s %a %u %F' {} +"}`, &r)
		seen += "\n" + r.Stdout
	}
	w.seen[files] = seen
	return seen
}

// tidy takes away what a request rightly made, and renews what it ended or changed.
func (w *world) tidy(op *operation, c *call, a *answer) {
	if c.method == http.MethodGet || c.method == http.MethodHead || a.status >= 400 && a.status != http.StatusConflict && a.status < 500 {
		return
	}
	clear(w.seen)
	switch {
	case a.status >= 300:
	case op.ID == "createSandbox" && c.method == op.Method:
		w.retract(c, a, "/v1/sandboxes/")
		return
	case op.ID == "createToken":
		w.retract(c, a, "/v1/tokens/")
		return
	case op.ID == "createProject" && c.method == op.Method:
		w.must("DELETE", a.header.Get("Location"), "", nil)
		return
	case op.ID == "importImage":
		var images struct {
			Items []struct {
				Name   string
				Shared bool
			}
		}
		w.must("GET", "/v1/images", "", &images)
		for _, i := range images.Items {
			if !i.Shared {
				w.must("DELETE", "/v1/images/"+i.Name+"?force=1", "", nil)
			}
		}
		return
	}
	var box struct{ State string }
	w.must("GET", "/v1/sandboxes/"+w.box, "", &box)
	ends := []string{"patchSandbox", "killProcess", "closeSession", "writeStdin", "signalProcess"}
	changes := []string{"removeFile", "changeFile", "writeFile", "createSession", "startProcess"}
	if box.State != "running" || a.status < 300 && (slices.Contains(ends, op.ID) || slices.Contains(changes, op.ID) && w.requests%8 == 0) || w.requests%100 == 0 {
		w.renew()
	}
}

// retract takes back what a request has made, as who made it.
func (w *world) retract(c *call, a *answer, under string) {
	var made struct{ ID string }
	if json.Unmarshal(a.body, &made) != nil || made.ID == "" {
		return
	}
	back := &call{method: "DELETE", target: under + made.ID}
	for _, h := range c.headers {
		if strings.HasPrefix(h, "Authorization:") || strings.HasPrefix(h, "X-Dsec-Project:") {
			back.headers = append(back.headers, h)
		}
	}
	if a, err := w.wire.do(back); err != nil || a.status != http.StatusOK {
		w.t.Fatalf("%v: %v, %v", back, a, err)
	}
}

// empty checks that each operation that was asked often enough has worked, or the rest would prove little, and that nothing
// is left.
func (w *world) empty() {
	for _, op := range w.d.ops {
		worked, asked := 0, 0
		for key, n := range w.statuses {
			id, status, _ := strings.Cut(key, " ")
			if id != op.ID {
				continue
			}
			asked += n
			if status < "300" {
				worked += n
			}
		}
		if worked == 0 && asked > 100 && !strings.Contains(op.Path, "/ports/") {
			w.t.Errorf("%s has never worked", op.ID)
		}
	}
	w.must("DELETE", "/v1/sandboxes/"+w.box, "", nil)
	var boxes struct{ Items []struct{ ID, State string } }
	w.must("GET", "/v1/sandboxes?state=running", "", &boxes)
	if len(boxes.Items) > 0 {
		w.t.Fatalf("sandboxes are left: %v", boxes.Items)
	}
}
