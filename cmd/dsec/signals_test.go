package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/internal/aether"
)

// TestRunWithoutReaderStopsItsSandbox: as in `dsec run IMAGE -- yes | head -1`. A SIGPIPE would end us before the sandbox,
// which nobody would know of.
func TestRunWithoutReaderStopsItsSandbox(t *testing.T) {
	f := newFake(t)
	f.commands["yes"] = func(ctx context.Context, st *aether.Stream, _ *aether.ExecStart) aether.Exited {
		if err := st.Write(ctx, aether.Stdout, []byte("y\n")); err != nil {
			t.Error(err)
		}
		select { // it is killed
		case <-f.signals:
		case <-ctx.Done():
		}
		return exited(1)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	// Only a write to descriptor 1 or 2 brings the signal.
	saved, err := unix.Dup(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Dup2(int(w.Fd()), 1); err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	code := run(t.Context(), []string{"run", "busybox", "--", "yes"}, f.env(), strings.NewReader(""), os.Stdout, &stderr)
	if err := unix.Dup2(saved, 1); err != nil {
		t.Fatal(err)
	}
	unix.Close(saved)
	w.Close()
	if code != 128+int(unix.SIGPIPE) || f.stopped.Load() != 1 || stderr.String() != "" {
		t.Errorf("exit code %d with %q, %d stopped", code, stderr.String(), f.stopped.Load())
	}
}
