// Package need states what a test can't do without.
//
// A test that misses something must not pass in silence. What every supported machine can give (root, an image that
// `make setup` builds) fails the test at once. What a machine may rightly lack (KVM, a peer program) skips it, with one
// line that the test runner counts and compares with the list of allowed skips:
//
//	SKIP[need]: NAME: reason
//
// Only this package may skip a test; the style test holds the others to it. Its functions are safe for concurrent use.
package need

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// imageStore is where `make setup` leaves the images of this machine, unless imageStoreEnv says otherwise.
const (
	imageStore    = "/var/lib/dsec/images"
	imageStoreEnv = "DSEC_IMAGE_STORE"
)

// Root fails the test at once unless it runs as root: the kernel tests are the point of the suite, so their absence is
// a fault of the run and not a property of the machine.
func Root(t testing.TB) {
	t.Helper()
	if uid := os.Geteuid(); uid != 0 {
		t.Fatalf("needs root, runs as uid %d", uid)
	}
}

// Image returns the folder of an image in the machine-wide store and fails the test if it isn't there.
func Image(t testing.TB, name string) string {
	t.Helper()
	store := imageStore
	if dir, ok := os.LookupEnv(imageStoreEnv); ok {
		store = dir
	}
	dir := filepath.Join(store, name)
	for _, file := range []string{"image.erofs", "config.json"} {
		if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
			t.Fatalf("needs image %s: %v; run `make setup`", name, err)
		}
	}
	return dir
}

// Command returns the path of a program, or skips the test when the machine doesn't have it.
func Command(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		skip(t, name, err.Error())
	}
	return path
}

// skip is the one place that skips; the runner greps for its line.
func skip(t testing.TB, name, reason string) {
	t.Helper()
	t.Skipf("SKIP[need]: %s: %s", name, reason)
}
