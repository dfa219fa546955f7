package devmode

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
)

// shards are the processes of the instance's shards.
func (d *dev) shards() []int {
	d.t.Helper()
	id, err := os.ReadFile(filepath.Join(d.dir, "instance"))
	if err != nil {
		d.t.Fatal(err)
	}
	var pids []int
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		files, err := filepath.Glob(filepath.Join(root, "dsec-"+strings.TrimSpace(string(id)), "shard-*", "self", "cgroup.procs"))
		if err != nil {
			d.t.Fatal(err)
		}
		for _, f := range files {
			raw, err := os.ReadFile(f)
			if err != nil {
				d.t.Fatal(err)
			}
			for word := range strings.FieldsSeq(string(raw)) {
				if pid, err := strconv.Atoi(word); err == nil {
					pids = append(pids, pid)
				}
			}
		}
	}
	return pids
}

func (d *dev) events(box string) []api.Event {
	d.t.Helper()
	var text string
	if status := d.call("GET", box+"/events", "", &text); status != 200 {
		d.t.Fatalf("events = %d %s", status, text)
	}
	var all []api.Event
	for line := range strings.Lines(text) {
		var ev api.Event
		if err := json.Unmarshal([]byte(line), &ev); err != nil {
			d.t.Fatalf("event %q: %v", line, err)
		}
		all = append(all, ev)
	}
	return all
}

func (d *dev) event(box, kind string) *api.Event {
	d.t.Helper()
	for _, ev := range d.events(box) {
		if ev.Type == kind {
			return &ev
		}
	}
	return nil
}

// TestDeathOfAShardIsAnEvent: the sandbox lives on, and its events say what happened to its aether. The process that ran
// meanwhile has its end recorded too.
func TestDeathOfAShardIsAnEvent(t *testing.T) {
	d := start(t, t.TempDir(), nil)
	box := d.create(`{"image":"busybox"}`)
	var p api.Process
	if status := d.call("POST", box+"/processes", `{"shell":"while [ ! -e /go ]; do sleep 0.05; done; exit 7"}`, &p); status != 201 {
		t.Fatalf("start = %d", status)
	}
	pids := d.shards()
	if len(pids) != 1 {
		t.Fatalf("shards: %v", pids)
	}
	if err := unix.Kill(pids[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "both events", func() bool { return d.event(box, "aether_lost") != nil && d.event(box, "aether_back") != nil })
	var res api.ExecResult
	if status := d.call("POST", box+"/exec", `{"shell":"touch /go; echo still"}`, &res); status != 200 || res.Stdout != "still\n" {
		t.Errorf("exec afterwards = %d %+v", status, res)
	}
	until(t, "the process's end is an event", func() bool { return d.event(box, "exec_ended") != nil })
	ev := d.event(box, "exec_ended")
	if exit, _ := ev.Data["exit"].(map[string]any); ev.Data["process"] != p.ID || exit["exit_code"] != float64(7) {
		t.Errorf("event %+v", ev)
	}
}

// TestLogsAfterTheEnd: a log is complete at once, and readable when its sandbox has gone, however it went.
func TestLogsAfterTheEnd(t *testing.T) {
	d := start(t, t.TempDir(), nil)
	const command = `{"image":"busybox","command":["sh","-c","i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; echo bad >&2; touch /done; exec sleep 1000"]}`
	stopped, died := d.create(command), d.create(command)
	for _, box := range []string{stopped, died} {
		until(t, "all is written", func() bool {
			var res api.ExecResult
			d.call("POST", box+"/exec", `{"argv":["test","-e","/done"]}`, &res)
			return res.ExitCode != nil && *res.ExitCode == 0
		})
	}
	var whole string
	begun := time.Now()
	if status := d.call("GET", stopped+"/logs", "", &whole); status != 200 {
		t.Fatalf("logs = %d", status)
	}
	if took := time.Since(begun); took > 150*time.Millisecond {
		t.Logf("the log of a running sandbox took %v", took)
	}
	if !strings.HasPrefix(whole, "line 0\nline 1\n") || !strings.Contains(whole, "line 19999\n") || !strings.Contains(whole, "bad\n") {
		t.Errorf("%d bytes, from %.20q to %q", len(whole), whole, whole[max(0, len(whole)-30):])
	}
	if status := d.call("DELETE", stopped, "", nil); status != 200 {
		t.Errorf("stop = %d", status)
	}
	var res api.ExecResult
	d.call("POST", died+"/exec", `{"shell":"kill -9 -1"}`, &res)
	kill := initOf(t, d, died)
	if err := unix.Kill(kill, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "its death is noticed", func() bool {
		var sb api.Sandbox
		d.call("GET", died, "", &sb)
		return sb.State == api.StateFailed
	})
	for _, box := range []string{stopped, died} {
		var text string
		if status := d.call("GET", box+"/logs", "", &text); status != 200 || len(text) != len(whole) {
			t.Errorf("log afterwards = %d, %d bytes, was %d: %.200s", status, len(text), len(whole), text)
		}
		if status := d.call("GET", box+"/logs?since="+strconv.Itoa(len(whole)-4-len("line 19999\n")), "", &text); status != 200 || !strings.HasPrefix(text, "line 19999\n") {
			t.Errorf("log since = %d %.100q", status, text)
		}
		if status := d.call("GET", box+"/logs?since=999999999&since_stderr=1", "", &text); status != 200 || text != "ad\n" {
			t.Errorf("stderr since 1 = %d %.100q", status, text)
		}
	}
}

// initOf is the process of a sandbox's init, from its record.
func initOf(t *testing.T, d *dev, box string) int {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(d.dir, "sandboxes", strings.TrimPrefix(box, "/v1/sandboxes/")+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var rec struct {
		State struct {
			PID int `json:"pid"`
		} `json:"backend_state"`
	}
	raw = bytes.TrimRight(raw, "\n")
	if err := json.Unmarshal(raw[bytes.LastIndexByte(raw, '\n')+1:], &rec); err != nil || rec.State.PID <= 1 {
		t.Fatalf("init of %s: %v in %s", box, err, raw)
	}
	return rec.State.PID
}
