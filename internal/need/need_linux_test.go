package need

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// recorder is a testing.TB that remembers how a helper ended its test.
type recorder struct {
	testing.TB

	fatal, skipped string
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(format string, args ...any) {
	r.fatal = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Skipf(format string, args ...any) {
	r.skipped = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// record runs f as a test of its own, because Fatal and Skip end the goroutine.
func record(f func(testing.TB)) *recorder {
	r := &recorder{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	return r
}

func TestKernel(t *testing.T) {
	broken := func() error { return errors.New("ENOSYS") }
	for name, tc := range map[string]struct {
		feature        Feature
		fatal, skipped string
	}{
		"probe-works":   {Feature{"x", 999, 0, func() error { return nil }}, "", ""},
		"older-skips":   {Feature{"x", 999, 0, broken}, "", "SKIP[need]: x: "},
		"newer-fails":   {Feature{"x", 2, 6, broken}, "should have x (since 2.6): ENOSYS", ""},
		"same-or-newer": {Feature{"x", 3, 0, broken}, "should have x", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := record(func(tb testing.TB) { Kernel(tb, tc.feature) })
			if !strings.Contains(r.fatal, tc.fatal) || (r.fatal == "") != (tc.fatal == "") {
				t.Errorf("fatal = %q, want %q", r.fatal, tc.fatal)
			}
			if !strings.HasPrefix(r.skipped, tc.skipped) || (r.skipped == "") != (tc.skipped == "") {
				t.Errorf("skipped = %q, want %q", r.skipped, tc.skipped)
			}
		})
	}
}

func TestCommand(t *testing.T) {
	r := record(func(tb testing.TB) { Command(tb, "no-such-program-here") })
	if !strings.HasPrefix(r.skipped, "SKIP[need]: no-such-program-here: ") {
		t.Errorf("skipped = %q, want a SKIP[need] line", r.skipped)
	}
	if got := Command(t, "sh"); !filepath.IsAbs(got) {
		t.Errorf("Command(sh) = %q, want a path", got)
	}
}

func TestImage(t *testing.T) {
	store := t.TempDir()
	t.Setenv(imageStoreEnv, store)
	if r := record(func(tb testing.TB) { Image(tb, "box") }); !strings.Contains(r.fatal, "make setup") {
		t.Errorf("missing image: fatal = %q, want a hint at make setup", r.fatal)
	}
	dir := filepath.Join(store, "box")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"image.erofs", "config.json"} {
		if err := os.WriteFile(filepath.Join(dir, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := Image(t, "box"); got != dir {
		t.Errorf("Image(box) = %q, want %q", got, dir)
	}
}
