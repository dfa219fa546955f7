package state_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/internal/need"
	"github.com/dsec-io/dsec/internal/state"
)

// TestFullDisk: a disk that fills up costs writes and nothing else: the answer says why, the end doesn't hang, and with
// room again all is there that was answered.
func TestFullDisk(t *testing.T) {
	need.Root(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=24m,mode=700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil { // an etcd that has given up keeps its files
			t.Error(err)
		}
	})
	s := state.New(config(dir))
	put(t, s, "k/first", "x")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	fill := filepath.Join(dir, "fill")
	f, err := os.Create(fill)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), fillEnv+"="+dir)
	var said, failed bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &failed
	if err := cmd.Run(); err != nil || !strings.Contains(failed.String(), "no space left") && !strings.Contains(failed.String(), "can't use its data") {
		t.Errorf("the process that fills the disk: %v: %s", err, failed.String())
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	// With room for more than there was: etcd copies a log that ends in the middle before it mends it.
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=96m"); err != nil {
		t.Fatal(err)
	}
	again := state.New(config(dir))
	list, _, err := again.List(t.Context(), "k/")
	if answered := strings.Count(said.String(), "\n"); err != nil || len(list) < answered+1 {
		t.Errorf("List() = %d entries, %v; %d were answered", len(list), err, answered+1)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}
