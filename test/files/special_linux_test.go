package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/need"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestCase34MountsOfTheSandbox uploads into what is mounted in a sandbox while it runs: a directory at another place, and
// memory. What is written through the one is seen at the other.
func TestCase34MountsOfTheSandbox(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	f := sb.Files()
	const mark = "86399.8640"
	if _, err := sb.Start(t.Context(), libdsec.Cmd{Argv: []string{"sleep", mark}}, libdsec.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	testbed.Output(t, sb, "mkdir /a /bound /memory")
	mustDo(t, "mount", insideMounts(hostPID(t, mark), func() error {
		return errors.Join(unix.Mount("/a", "/bound", "", unix.MS_BIND, ""), unix.Mount("none", "/memory", "tmpfs", 0, "mode=1777"))
	}))
	for i := range 30 {
		text := fmt.Sprintln("round", i)
		for write, read := range map[string]string{"/bound/f": "/a/f", "/a/g": "/bound/g", "/memory/h": "/memory/h"} {
			put(t, f, write, text)
			if got := testbed.Output(t, sb, "cat "+write+" "+read+"; echo back "+fmt.Sprint(i)+" > "+read); got != strings.TrimSpace(text+text) {
				t.Fatalf("%s: %q", write, got)
			}
			wantContent(t, f, write, fmt.Sprintln("back", i))
		}
	}
	if got := names(t, f, "/memory"); got != "h" || !strings.Contains(testbed.Output(t, sb, "cat /proc/mounts"), " /memory tmpfs ") {
		t.Errorf("the mounted memory has %q", got)
	}
}

// hostPID finds the process of this argument.
func hostPID(t testing.TB, mark string) int {
	t.Helper()
	pid := 0
	testbed.Until(t, hang, "the process "+mark, func() bool {
		all, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range all {
			if raw, err := os.ReadFile(name); err == nil && string(raw) == "sleep\x00"+mark+"\x00" {
				_, err := fmt.Sscanf(name, "/proc/%d/", &pid)
				return err == nil
			}
		}
		return false
	})
	return pid
}

// insideMounts calls f on a thread that has a process's mounts, and that ends.
func insideMounts(pid int, f func() error) error {
	done := make(chan error, 1) // one result
	go func() {
		runtime.LockOSThread() // for good: nobody else may have it afterwards
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		if err == nil {
			defer ns.Close() // only entered
			err = errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS))
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// TestCase41EndsInTheMiddle: a list that can't go on ends with an error, and never as if that had been all.
func TestCase41EndsInTheMiddle(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	const files = 40_000 // some 12 MiB of list: more than fits into all the buffers on its way
	testbed.Output(t, sb, fmt.Sprintf("mkdir /many && cd /many && n=$(printf %%0200d 0); i=0; while [ $i -lt %d ]; do : > $n$i; i=$((i+1)); done", files))
	seen := 0
	var last error
	for _, err := range sb.Files().List(t.Context(), "/many") {
		if last = err; err != nil {
			break
		}
		if seen++; seen == 1 {
			_, err := sb.Stop(t.Context())
			mustDo(t, "stop", err)
		}
	}
	if last == nil || api.AsError(last).Code == api.CodeInternal {
		t.Errorf("a list of %d of %d files of a sandbox that was stopped ends with %v", seen, files, last)
	}
	t.Logf("%d files, then %v", seen, last)
}

// TestCase40SocketsAndMemory: a socket is as little of a file to read as a device, and nothing that is asked of either is
// waited for or taken into memory.
func TestCase40SocketsAndMemory(t *testing.T) {
	need.Image(t, "debian")
	n := testbed.Start(t, testbed.Options{})
	sb := n.Create(t, api.Spec{Image: "debian"})
	f := sb.Files()
	testbed.Output(t, sb, `python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("/bound")'; mkfifo /fifo; truncate -s 1024G /sparse; ln -s /dev/zero /zero`)
	if _, err := sb.Start(t.Context(), libdsec.Cmd{Argv: []string{"python3", "-c", `import socket, time; s = socket.socket(socket.AF_UNIX); s.bind("/listens"); s.listen(); time.sleep(1000)`}}, libdsec.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	testbed.Output(t, sb, "until [ -S /listens ]; do sleep 0.1; done")
	put(t, f, "/warm", strings.Repeat("x", 4<<20))
	wantContent(t, f, "/warm", strings.Repeat("x", 4<<20))
	pids := append(shards(t, n), n.PID())
	var before []int64
	for _, pid := range pids {
		before = append(before, peak(t, pid))
	}
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	for _, name := range []string{"/bound", "/listens", "/fifo", "/zero", "/dev/zero", "/dev/tty", "/dev/random"} {
		for what, do := range map[string]func() error{
			"read":   func() error { _, err := f.ReadFile(ctx, name); return err },
			"range":  func() error { return refusedOpen(ctx, f, name) },
			"digest": func() error { _, err := f.Digest(ctx, name); return err },
			"write":  func() error { _, err := f.WriteFile(ctx, name, []byte("x"), libdsec.WriteOptions{}); return err },
			"tar":    func() error { return drain(f.Tar(ctx, name)) },
		} {
			if err := do(); !libdsec.IsCode(err, api.CodeNotRegular) {
				t.Errorf("%s %s: %v", what, name, err)
			}
		}
	}
	_, err := f.ReadFile(ctx, "/sparse")
	wantCode(t, err, api.CodeTooLarge)
	r, err := f.Open(ctx, "/sparse", libdsec.ReadOptions{Length: 256 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.Copy(io.Discard, r); got != 256<<20 || err != nil {
		t.Errorf("a part of the sparse file: %d, %v", got, err)
	}
	mustDo(t, "close", r.Close())
	const room = 16 << 20
	for i, pid := range pids {
		if after := peak(t, pid); after > before[i]+room {
			t.Errorf("process %d grew from %d to %d KiB", pid, before[i]>>10, after>>10)
		}
	}
	if info, err := f.Stat(ctx, "/listens"); err != nil || info.Type != api.FileSocket {
		t.Errorf("%+v, %v", info, err)
	}
	testbed.Output(t, sb, "[ -S /bound -a -S /listens -a -p /fifo ]")
}

func refusedOpen(ctx context.Context, f *libdsec.Files, name string) error {
	r, err := f.Open(ctx, name, libdsec.ReadOptions{Offset: 1, Length: 1})
	if err == nil {
		_ = r.Close() // never fails
	}
	return err
}
