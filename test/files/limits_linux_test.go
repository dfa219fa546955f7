package files

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/need"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestWatchOwnLimitOfDirectories lowers what a sandbox's kernel allows to be watched: a tree that is larger is refused as
// such and not as a full disk, one that grows over it ends with the same error, and what is given back can be used.
func TestWatchOwnLimitOfDirectories(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	f := sb.Files()
	const mark = "86399.8641"
	if _, err := sb.Start(t.Context(), libdsec.Cmd{Argv: []string{"sleep", mark}}, libdsec.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	testbed.Output(t, sb, "mkdir -p /w/1 /w/2 /w/3/4 /large; for i in 1 2 3 4 5 6 7 8 9 10; do mkdir /large/$i; done")
	script := "echo 8 > /proc/sys/user/max_inotify_watches"
	if out, err := exec.CommandContext(t.Context(), need.Command(t, "nsenter"), "-t", fmt.Sprint(hostPID(t, mark)), "-U", "-S", "0", "-G", "0", "sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	overLimit := func(err error) {
		t.Helper()
		wantHint(t, err, api.CodeQuota)
	}
	for range 20 { // what was refused holds nothing
		for _, err := range f.WatchTree(t.Context(), "/large") {
			if overLimit(err); err == nil {
				break
			}
		}
	}
	w, ready := begin(t, f, "/w", true)
	if ready.Directories != 5 {
		t.Errorf("%+v", ready)
	}
	testbed.Output(t, sb, "mkdir -p /w/5/6/7/8/9/10")
	for e := w.next(); e.Type != ""; e = w.next() {
	}
	overLimit(w.err)
	again, _ := begin(t, f, "/large/1", true)
	testbed.Output(t, sb, ": > /large/1/f")
	if got := again.until("closed_write /large/1/f"); len(got) != 2 {
		t.Errorf("%q", got)
	}
}

// wantHint demands an error of this code that says what to do.
func wantHint(t testing.TB, err error, code api.Code) {
	t.Helper()
	if err == nil {
		t.Errorf("it isn't refused with %s", code)
	} else if e := api.AsError(err); e.Code != code || e.Hint == "" {
		t.Errorf("%v (hint %q), want %s", err, e.Hint, code)
	}
}

// TestWatchShardLimit: sandboxes of a shard share a bound, which is told with a hint, and which goes back when watches end.
func TestWatchShardLimit(t *testing.T) {
	n := testbed.Start(t, testbed.Options{})
	const each, all = 32, 256
	var open []*watch
	small := api.Spec{Resources: api.Resources{MemoryMB: new(int64(64)), PIDs: new(int64(64))}}
	for range all / each {
		sb := n.Create(t, small)
		for range each {
			w, _ := begin(t, sb.Files(), "/", false)
			open = append(open, w)
		}
	}
	late := n.Create(t, small).Files()
	begun := func() error {
		for _, err := range late.Watch(t.Context(), "/") {
			return err
		}
		return nil
	}
	wantHint(t, begun(), api.CodeTooMany)
	open[0].cancel()
	testbed.Until(t, hang, "room for one more watch", func() bool { return begun() == nil })
}

// TestWatchKernelOverflow has more happen than the kernel keeps while the shard can't read: what came meanwhile is found,
// and watched.
func TestWatchKernelOverflow(t *testing.T) {
	n := testbed.Start(t, testbed.Options{})
	sb := n.Create(t, api.Spec{})
	testbed.Output(t, sb, "mkdir /w")
	const before, after = "86399.8642", "86399.8643"
	raw, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Fatal(err)
	}
	keeps, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	// Two files by turns, because equal events in a row are one.
	if _, err := sb.Start(t.Context(), libdsec.Cmd{Shell: fmt.Sprintf("most=%d;", keeps/2+1000) + `trap : USR1; sleep ` + before + ` & wait; cd /w; i=0
		while [ $i -lt $most ]; do : > a; : > b; i=$((i+1)); done; mkdir -p made/mean/while; exec sleep ` + after}, libdsec.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	w, _ := begin(t, sb.Files(), "/w", true)
	child := hostPID(t, before)
	raw, err = os.ReadFile(fmt.Sprintf("/proc/%d/stat", child))
	if err != nil {
		t.Fatal(err)
	}
	var shell int
	if _, err := fmt.Sscanf(string(raw), fmt.Sprintf("%d (sleep) S %%d", child), &shell); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	all := shards(t, n)
	for _, pid := range all {
		mustDo(t, "stop the shard", unix.Kill(pid, unix.SIGSTOP))
	}
	mustDo(t, "begin", unix.Kill(shell, unix.SIGUSR1))
	hostPID(t, after)
	for _, pid := range all {
		mustDo(t, "continue the shard", unix.Kill(pid, unix.SIGCONT))
	}
	told := false
	for e := w.next(); !told || e.RawPath() != "/w/made/mean/while/f"; e = w.next() {
		if e.Type == "" {
			t.Fatalf("it ended: %v", w.err)
		}
		if e.Type == api.FileOverflow && !told {
			told = true
			// Again and again: a line of the first times may be among those that are lost here.
			if _, err := sb.Start(t.Context(), libdsec.Cmd{Shell: "while sleep 0.2; do : > /w/made/mean/while/f; done"}, libdsec.StartOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
}
