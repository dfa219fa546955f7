package image_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/internal/image"
	"github.com/dsec-io/dsec/internal/image/imagetest"
	"golang.org/x/sys/unix"
)

// TestFallbacks takes the ways of older kernels because it is told to; the mounts are real.
func TestFallbacks(t *testing.T) {
	for name, tc := range map[string]struct{ loop, fresh bool }{
		"loop-device": {loop: true}, "mount-per-clone": {fresh: true}, "loop-device-per-clone": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			dir := t.TempDir()
			imagetest.Build(t, dir, "small", small("text"), image.Config{})
			var log bytes.Buffer
			s := image.NewStore(slog.New(slog.NewTextHandler(&log, nil)), dir)
			s.Fallbacks(tc.loop, tc.fresh)
			im := open(t, s, "small")
			if im.Looped() != tc.loop || strings.Contains(log.String(), "loop device") != tc.loop {
				t.Errorf("looped %v, log %q; want %v, and told so", im.Looped(), log.String(), tc.loop)
			}
			ns := userns(t)
			one, two := clone(t, im, ns), clone(t, im, ns)
			a, b := stat(t, one, "text"), stat(t, two, "text")
			if a.Uid != base || b.Uid != base || (a.Dev != b.Dev) != tc.fresh {
				t.Errorf("owners %d, %d, devices %d, %d; want mapped, and one device each: %v", a.Uid, b.Uid, a.Dev, b.Dev, tc.fresh)
			}
			if got := content(t, two, "text"); got != "text" {
				t.Errorf("the image says %q", got)
			}
			// The initial namespace can't map owners, so that the last step fails: nothing of the clone may stay.
			root, err := unix.Open("/proc/self/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(root)
			if fd, err := im.Clone(root); err == nil {
				unix.Close(fd)
				t.Error("owners were mapped by the initial user namespace")
			}
		})
	}
}

// TestWaitingEndsWithTheContext has one Open in the middle of a mount that another one waits for.
func TestWaitingEndsWithTheContext(t *testing.T) {
	dir := t.TempDir()
	imagetest.Build(t, dir, "small", small("text"), image.Config{})
	s := store(dir)
	shares := s.Busy(t, "small")
	why := errors.New("the caller has gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := s.Open(ctx, "small"); !errors.Is(err, why) {
		t.Errorf("Open() = %v, want %v", err, why)
	}
	if n := shares(); n != 1 {
		t.Errorf("%d shares left, want the first one", n)
	}
}
