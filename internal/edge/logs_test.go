package edge

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

func (n *node) logs(id, body string) transcript {
	n.t.Helper()
	s, err := n.client.Open(n.t.Context(), aether.Open{Method: "sandbox.logs", Sandbox: id, Project: "p", Body: []byte(body), Closed: true})
	if err != nil {
		n.t.Fatal(err)
	}
	return n.read(s)
}

func TestLogsOutliveTheSandbox(t *testing.T) {
	n := startNode(t, nil)
	stopped := n.create(`{"image":"busybox","command":["hang"]}`).ID
	died := n.create(`{"image":"busybox","command":["say","hello","log"]}`).ID
	until(t, "its process has ended", func() bool { return slices.Contains(n.eventTypes(died), "exec_ended") })
	n.must("sandbox.stop", stopped, nil, nil)
	n.fake.kill(died)
	n.events(died, 0, true)
	check := func() {
		t.Helper()
		for _, follow := range []string{"", `"follow":true,`} {
			for from, want := range map[int]string{0: "hello log", 6: "log", 9: "", 99: ""} {
				tr := n.logs(died, fmt.Sprintf(`{%s"since_offset":%d}`, follow, from))
				if string(tr.stdout) != want || tr.err != nil || tr.exited == nil || !tr.exited.HasCode {
					t.Errorf("log from %d: %q, %v, exit %+v; want %q", from, tr.stdout, tr.err, tr.exited, want)
				}
			}
			if tr := n.logs(stopped, `{`+follow+`"since_stderr_offset":0}`); string(tr.stdout) != "hanging\n" || tr.err != nil || tr.exited != nil {
				t.Errorf("log of one that was running: %+v", tr)
			}
		}
	}
	check()
	n.restart()
	check()
	n.edge.sweepOnce(time.Now().Add(61 * time.Minute))
	wantCode(t, n.logs(died, `{}`).err, api.CodeNotFound)
	if files, _ := os.ReadDir(filepath.Join(n.inst.DataDir, "sandboxes")); len(files) != 0 {
		t.Errorf("files left: %v", files)
	}
}

func TestLogThatCouldNotBeSaved(t *testing.T) {
	n := startNode(t, nil)
	id := n.create(`{"image":"busybox","command":["hang"]}`).ID
	n.fake.setFault("open", api.Errorf(api.CodeUnavailable, "no aether"))
	n.must("sandbox.stop", id, nil, nil)
	if e := wantCode(t, n.logs(id, `{}`).err, api.CodeWrongState); !strings.Contains(e.Detail, "log couldn't be kept") {
		t.Errorf("%+v", e)
	}
	wantCode(t, n.logs(id, `{"since_offset":-1}`).err, api.CodeInvalid)
	if e := wantCode(t, n.logs(id, `{"since_stderr_offset":-1}`).err, api.CodeInvalid); e.Field != "since_stderr_offset" {
		t.Errorf("%+v", e)
	}
}

// TestFollowingEndsWithTheSandbox: who follows gets what was saved of the rest, and an end in order.
func TestFollowingEndsWithTheSandbox(t *testing.T) {
	n := startNode(t, nil)
	id := n.create(`{"image":"busybox","command":["hang"]}`).ID
	s, err := n.client.Open(t.Context(), aether.Open{Method: "sandbox.logs", Sandbox: id, Project: "p", Body: []byte(`{"follow":true}`), Closed: true})
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	for string(got) != "hanging\n" {
		f, err := s.Recv(t.Context())
		if err != nil {
			t.Fatalf("after %q: %v", got, err)
		}
		if f.Channel == aether.Stdout {
			got = append(got, f.Data...)
		}
		f.Release()
	}
	n.fake.cut() // a new aether is asked from where this one's reader was
	n.must("sandbox.stop", id, nil, nil)
	n.fake.cut()
	if tr := n.read(s); tr.err != nil || len(tr.stdout) != 0 {
		t.Errorf("the end: %+v", tr)
	}
}
