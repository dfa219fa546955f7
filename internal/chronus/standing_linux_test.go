package chronus_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// What goes on around a paused sandbox: limits, usage, terminals that come and go, commands that have ended.
func TestPausedSandboxIsLookedAfter(t *testing.T) {
	s := newSandbox(t)
	tty := s.terminal(aether.ExecStart{ID: "tty", Argv: bytesOf("sh", "-i"), Env: bytesOf("PS1=$ ")})
	tty.until("a prompt", func() bool { return bytes.Contains(tty.out[0], []byte("$ ")) })
	wantExit(t, s.exec(keep("over", "echo before; exit 4")).finish(), 4)
	victim := s.exec(keep("victim", "sleep 1000"))
	victim.until("its start", func() bool { return victim.started != nil })
	session := s.newSession(api.Session{})
	busy := s.exec(aether.ExecStart{Shell: []byte("echo up; sleep 1000"), Session: session})
	busy.until("its start", func() bool { return len(busy.out[0]) > 0 })
	s.pause()
	wantCode(t, s.exec(aether.ExecStart{Shell: []byte("true"), Session: session}).finish(), api.CodeFrozen) // it waits for no turn
	r := s.attach(aether.Attach{ID: "over"}).finish()
	wantExit(t, r, 4)
	if string(r.out[0]) != "before\n" {
		t.Errorf("output %q", r.out[0])
	}
	spec := api.Resources{CPU: new(1.0), MemoryMB: new(int64(128)), PIDs: new(int64(99))}
	if err := s.box.SetLimits(t.Context(), spec); err != nil {
		t.Errorf("limits while paused: %v", err)
	}
	if u, err := s.box.Usage(); err != nil || u.PIDs == 0 {
		t.Errorf("usage while paused: %+v, %v", u, err)
	}
	// The terminal is left and taken again; what is typed and resized meanwhile waits.
	tty.st.Reset(nil)
	again := s.attach(aether.Attach{ID: "tty", Stdin: true})
	if err := again.st.Write(t.Context(), aether.Stdin, []byte("stty size; echo typed\r")); err != nil {
		t.Fatal(err)
	}
	if err := s.unary("resize", (&aether.Resize{ID: "tty", Rows: 31, Cols: 91}).AppendTo(nil), nil); err != nil {
		t.Error(err)
	}
	// A kill works at once.
	if err := s.unary("signal", (&aether.Signal{ID: "victim", Signal: int32(unix.SIGKILL), Tree: true}).AppendTo(nil), nil); err != nil {
		t.Error(err)
	}
	if r := s.attach(aether.Attach{ID: "victim"}).finish(); r.err != nil || r.exited.Signal != int32(unix.SIGKILL) {
		t.Errorf("killed while paused: %v, %+v", r.err, r.exited)
	}
	if frozen, err := s.box.Paused(); err != nil || !frozen {
		t.Errorf("Paused() = %v, %v", frozen, err)
	}
	s.resume()
	again.until("the answer", func() bool { return bytes.Contains(again.out[0], []byte("31 91\r\ntyped\r\n")) })
	if got := strings.TrimSpace(s.sh("cat /sys/devices/system/cpu/online")); got != "0" {
		t.Errorf("processors that are shown after the change: %q", got)
	}
}

// A file that is being uploaded when the sandbox is paused is in its place after the resume; of one whose client leaves
// nothing is left. Watches go on.
func TestFilesOfAPausedSandbox(t *testing.T) {
	s := newSandbox(t)
	s.sh("mkdir /d")
	watch := s.open("file.watch", []byte(`{"path":"L2Q=","recursive":true}`))
	watch.until("the watch", func() bool { return bytes.Contains(watch.out[0], []byte("ready")) })
	upload := func(path string) *call {
		body, err := json.Marshal(api.FileRequest{Path: []byte(path)})
		if err != nil {
			t.Fatal(err)
		}
		c := s.open("file.write", body)
		if err := c.st.Write(t.Context(), aether.Stdin, []byte("first ")); err != nil {
			t.Fatal(err)
		}
		return c
	}
	one, two := upload("/d/one"), upload("/d/two")
	eventually(t, "both drafts", func() bool { return len(s.names("/d")) == 2 })
	s.pause()
	if err := one.st.Write(t.Context(), aether.Stdin, []byte("second")); err != nil {
		t.Fatal(err)
	}
	if err := one.st.CloseWrite(aether.Stdin); err != nil {
		t.Fatal(err)
	}
	two.st.Reset(nil)
	answered := make(chan error, 1)
	go func() {
		f, err := one.st.Recv(t.Context())
		if err == nil && f.Type != aether.MsgReply {
			err = fmt.Errorf("frame %+v", f)
		}
		answered <- err
	}()
	pass(300 * time.Millisecond)
	select {
	case err := <-answered:
		t.Errorf("the upload was answered while paused: %v", err)
	default:
	}
	if got := s.names("/d"); len(got) != 2 || strings.Contains(strings.Join(got, " "), "one") {
		t.Errorf("names while paused: %q", got)
	}
	for _, m := range []string{"file.read", "file.list"} {
		c := s.open(m, []byte(`{"path":"L2Q="}`))
		for c.step() {
		}
		wantCode(t, c.result, api.CodeFrozen)
	}
	s.resume()
	if err := <-answered; err != nil {
		t.Error(err)
	}
	if got := s.sh("cat /d/one"); got != "first second" {
		t.Errorf("content %q", got)
	}
	eventually(t, "the other draft to go", func() bool { return slices.Equal(s.names("/d"), []string{"one"}) })
	s.sh("mkdir /d/sub; sleep 0.2; echo >/d/sub/f")
	watch.until("the event", func() bool { return bytes.Contains(watch.out[0], []byte("sub/f")) })
}

// names lists a folder as the host sees it.
func (s *sandbox) names(dir string) []string {
	s.Helper()
	entries, err := os.ReadDir(s.inside(dir))
	if err != nil {
		s.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Root of a sandbox with every capability, no filter, and not frozen itself, finds its own groups alone, and can't thaw or
// freeze anything.
func TestTenantCannotThaw(t *testing.T) {
	n := newNode(t)
	s, other := n.sandbox("mine", nil), n.sandbox("other", nil)
	s.pause()
	const script = `mkdir /cg /fr
mount -t cgroup2 none /cg || exit 9
mount -t cgroup -o freezer none /fr
ls /cg /fr
for v in 0 1; do
	(echo $v >/cg/cgroup.freeze) 2>/dev/null && echo could write $v
	[ -e /fr/freezer.state ] && (echo $v >/fr/freezer.state) 2>/dev/null && echo could write $v to the freezer
done
for f in cgroup.kill cgroup.procs cgroup.subtree_control; do (echo 1 >/cg/$f) 2>/dev/null && echo could write $f; done
mkdir /cg/x 2>/dev/null && echo could make a group
mkdir /fr/x 2>/dev/null && echo could make a group of the freezer
chown 0 /cg/cgroup.freeze 2>/dev/null && echo could take it
cat /cg/cgroup.freeze; exit 0`
	out, err := exec.CommandContext(t.Context(), "nsenter", "-t", strconv.Itoa(s.initPID()), "-U", "-m", "-C", "-S", "0", "-G", "0", "sh", "-c", script).CombinedOutput()
	if err != nil || !bytes.HasSuffix(out, []byte("\n1\n")) {
		t.Fatalf("%v: %s", err, out)
	}
	if bytes.Contains(out, []byte("could")) || bytes.Contains(out, []byte("other")) || !bytes.Contains(out, []byte("cgroup.freeze")) {
		t.Errorf("%s", out)
	}
	if frozen, err := s.box.Paused(); err != nil || !frozen {
		t.Errorf("Paused() = %v, %v", frozen, err)
	}
	if frozen, err := other.box.Paused(); err != nil || frozen {
		t.Errorf("the other's Paused() = %v, %v", frozen, err)
	}
	s.resume()
}
