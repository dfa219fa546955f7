package chronus_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/internal/aether"
)

// group is the cgroup that a command finds itself in.
func (s *sandbox) group(script string) (string, result) {
	r := s.exec(aether.ExecStart{Shell: []byte("sed -n 's/^0:://p' /proc/self/cgroup; " + script)}).finish()
	return strings.TrimSpace(string(r.out[0])), r
}

// commandGroups lists the groups of commands that are there.
func (s *sandbox) commandGroups() (names []string) {
	s.Helper()
	for _, root := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} { // hybrid, and v2 alone
		dirs, err := filepath.Glob(root + "/dsec-" + s.instance + "/shard-*/" + s.id + "/*/cgroup.procs")
		if err != nil {
			s.Fatal(err)
		}
		for _, d := range dirs {
			names = append(names, filepath.Base(filepath.Dir(d)))
		}
	}
	return names
}

// A group is the next command's when nothing is left in it and nobody was killed in it.
func TestGroupOfAnEndedCommandIsTheNextOnes(t *testing.T) {
	s := newSandbox(t)
	first, _ := s.group("")
	second, _ := s.group("exit 3")
	if first == "" || first != second {
		t.Errorf("groups %q and %q", first, second)
	}
	kept := s.exec(aether.ExecStart{Shell: []byte("sed -n 's/^0:://p' /proc/self/cgroup; read x"), Keep: true, Stdin: true, ID: "kept"})
	kept.until("its group", func() bool { return strings.HasSuffix(string(kept.out[0]), "\n") })
	if g := strings.TrimSpace(string(kept.out[0])); g != first {
		t.Errorf("the third command is in %q, not in %q", g, first)
	}
	other, r := s.group("sleep 1000 & :")
	if other == first || !r.exited.LeftProcesses {
		t.Errorf("beside a running command: group %q, %+v", other, r.exited)
	}
	if third, r := s.group(""); third == first || third == other || r.exited.LeftProcesses {
		t.Errorf("beside a running command and one that has left a process: group %q, %+v", third, r.exited)
	}
	// The one that goes on is alone in its group: a kill of its tree is nobody else's.
	killed := s.exec(aether.ExecStart{Shell: []byte("sed -n 's/^0:://p' /proc/self/cgroup; sleep 1000"), TimeoutMS: 300}).finish()
	if !killed.exited.TimedOut {
		t.Errorf("it ended with %+v", killed.exited)
	}
	if g, _ := s.group(""); g == strings.TrimSpace(string(killed.out[0])) {
		t.Errorf("the group %q of a killed tree was used again", g)
	}
	if p := s.processes(); len(p) == 0 {
		t.Error("the kept process is gone")
	}
	s.drop()
}

// What is kept open and spare goes when nothing has been started for a while.
func TestSpareGroupsGo(t *testing.T) {
	s := newSandbox(t)
	before := s.stats().FDs
	s.group("")
	if n := len(s.commandGroups()); n != 1 {
		t.Errorf("%d groups after the first command", n)
	}
	eventually(t, "no spare group", func() bool { return len(s.commandGroups()) == 0 })
	eventually(t, "as many descriptors as before", func() bool { return s.stats().FDs <= before })
	if g, r := s.group(""); g == "" || r.err != nil {
		t.Errorf("afterwards: group %q, %v", g, r.err)
	}
}

// A shard that takes over doesn't know the spare groups of the one before, and removes them.
func TestSpareGroupsOfADeadShardGo(t *testing.T) {
	s := newSandbox(t)
	if g, _ := s.group(""); g == "" {
		t.Fatal("no group")
	}
	s.killShard()
	eventually(t, "no spare group", func() bool { return len(s.commandGroups()) == 0 })
}
