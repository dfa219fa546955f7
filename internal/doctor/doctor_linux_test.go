package doctor_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/dsec-io/dsec/internal/doctor"
	"github.com/dsec-io/dsec/internal/leakcheck"
	"github.com/dsec-io/dsec/internal/need"
)

// checkOwn fails the test if the doctor leaves something. Other instances may come and go on the machine meanwhile.
func checkOwn(t *testing.T) {
	t.Helper()
	take := func() (leakcheck.Snapshot, error) {
		s, err := leakcheck.Take()
		own := s.Only("doctor")
		own.FDs, own.Mounts, own.Loops = s.FDs, s.Mounts, s.Loops
		return own, err
	}
	before, err := take()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if left, err := leakcheck.Wait(ctx, before, take); err != nil || len(left) > 0 {
			t.Errorf("left behind: %q, %v", left, err)
		}
	})
}

// TestRun holds the report against a machine on which the other tests run, so what's required must be there; and the
// kernel against what it had before.
func TestRun(t *testing.T) {
	need.Root(t)
	checkOwn(t)
	dir := t.TempDir()
	r := doctor.Run(t.Context(), doctor.Options{DataDir: dir + "/not/yet"})
	var names []string
	for _, c := range r.Checks {
		names = append(names, c.Name)
		if c.Name == "dsec-aether" {
			continue // a clone without `make build` has none
		}
		if c.Required && c.Status == doctor.Missing {
			t.Errorf("%s: %s", c.Name, c.Found)
		}
		if (c.Status == doctor.OK) != (c.Fix == "") {
			t.Errorf("%s is %s with the fix %q", c.Name, c.Status, c.Fix)
		}
		if c.Found == "" {
			t.Errorf("%s says nothing of what was found", c.Name)
		}
	}
	for _, name := range []string{"root", "erofs", "overlay", "cgroup-kill", "seccomp", "kvm", "images"} {
		if !slices.Contains(names, name) {
			t.Errorf("nothing about %s", name)
		}
	}
}

// TestMissingIsNotOK: a build without dsec-aether, or a data folder that can't be, shows in the verdict.
func TestMissingIsNotOK(t *testing.T) {
	need.Root(t)
	checkOwn(t)
	r := doctor.Run(t.Context(), doctor.Options{DataDir: "/proc/none"})
	i := slices.IndexFunc(r.Checks, func(c doctor.Check) bool { return c.Name == "data-folder" })
	if r.OK || i < 0 || r.Checks[i].Status != doctor.Missing || r.Checks[i].Fix == "" {
		t.Errorf("Run() with an impossible data folder = %+v", r)
	}
}
