package cgroup

import (
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A tree that forks without end stands still as a whole, in a command's group beside what stands for init, and goes on. v1's freezer is
// never used: every process of a box is born into its v2 group, on hosts too that mount v1 alone (the kernel has had v2's
// freezer since 5.2, the kill of a group since 5.14, and without those no shard can start anything).
func TestForkingTreeIsFrozenAsAWhole(t *testing.T) {
	for name, open := range map[string]func(*testing.T, string) *Driver{"as-it-is": driver, "v1-mounts-alone": v1Driver} {
		t.Run(name, func(t *testing.T) {
			s := shard(t, open(t, "fork"+name[:2]), "shard-0", 0)
			b := box(t, s, "box", Limits{PIDs: 64})
			const fork = "while :; do (:); (setsid sh -c ':' &); done"
			if err := s.Dirs().MakeExec("box", "x1"); err != nil {
				t.Fatal(err)
			}
			into, err := s.Dirs().OpenExec("box", "x1")
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(into)
			inner := exec.CommandContext(t.Context(), "/bin/sh", "-c", fork)
			inner.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: into}
			outer := command(t, b, "/bin/sleep", "1000") // as init is
			for _, c := range []*exec.Cmd{inner, outer} {
				if err := c.Start(); err != nil {
					t.Fatal(err)
				}
			}
			for range 10 {
				if err := b.Freeze(t.Context()); err != nil {
					t.Fatal(err)
				}
				if moving := s.Dirs().moving("box"); len(moving) > 0 || !s.Dirs().stands("box") {
					t.Errorf("groups that move: %q", moving)
				}
				before := usage(t, b).CPU
				<-time.After(20 * time.Millisecond)
				if after := usage(t, b).CPU; after-before > time.Millisecond { // what wasn't added up yet
					t.Errorf("it used %v while frozen", after-before)
				}
				if err := b.Thaw(t.Context()); err != nil {
					t.Fatal(err)
				}
				eventually(t, "it to go on", func() bool { return usage(t, b).CPU > before+5*time.Millisecond })
			}
			if err := b.Freeze(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := b.Remove(t.Context()); err != nil { // frozen as it is
				t.Error(err)
			}
			_, _ = inner.Wait(), outer.Wait()
		})
	}
}
