package cgroup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// shardUID is nobody's.
const shardUID = 0x3f00abcd

// actAsShard does, as the user of a shard and in shard-0/self, what a shard does and what it must not be able to do,
// and tells what came of it.
func actAsShard(v1 string) {
	d := Dirs{V2: 3, Memory: 4, CPU: 5, PIDs: 6}
	if v1 == "v2" {
		d.Memory, d.CPU, d.PIDs = -1, -1, -1
	}
	said := map[string]string{}
	say := func(what string, err error) {
		said[what] = "ok"
		var errno unix.Errno
		switch {
		case errors.Is(err, ErrPopulated):
			said[what] = "populated"
		case errors.As(err, &errno):
			said[what] = unix.ErrnoName(errno)
		case err != nil:
			said[what] = err.Error()
		}
	}
	say("make exec", d.MakeExec("box", "e1"))
	fd, err := d.OpenExec("box", "e1")
	say("open exec", err)
	procs, err := d.OpenProcs(nil, "box")
	say("open procs", err)
	c := exec.Command("/bin/sleep", "1000")
	c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}
	say("start in exec", c.Start())
	yes, err := d.Populated("box", "e1")
	say(fmt.Sprintf("populated %v", yes), err)
	say("remove populated exec", d.RemoveExec("box", "e1"))
	kills, err := d.OOMKills("box")
	say(fmt.Sprintf("oom kills %d", kills), err)
	frozen, err := d.Frozen("box")
	say(fmt.Sprintf("frozen %v", frozen), err)
	say("kill exec", d.KillExec("box", "e1"))
	if c.Process != nil {
		_ = c.Wait()
	}
	say("remove exec", d.RemoveExec("box", "e1"))
	fd, err = openDir(d.V2, "box")
	say("open box", err)
	c = exec.Command("/bin/sleep", "1000")
	c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}
	say("start in box", c.Start())
	say("freeze box", writeFile(d.V2, "box/cgroup.freeze", "1"))
	say("thaw box", writeFile(d.V2, "box/cgroup.freeze", "0"))
	say("kill box", d.KillBox("box"))
	if c.Process != nil {
		_ = c.Process.Kill() // where the box couldn't be killed
		_ = c.Wait()
	}
	for i, fd := range procs {
		// The shard puts its helper, which still has the shard's uid, into the v1 groups; here it is the shard itself.
		_, err := unix.Write(fd, []byte("0"))
		say(fmt.Sprintf("join v1 %d", i), err)
	}
	say("lift memory", writeFile(pick(d.Memory, d.V2), "box/"+map[bool]string{true: "memory.limit_in_bytes", false: "memory.max"}[d.Memory >= 0], "1073741824"))
	say("lift pids", writeFile(pick(d.PIDs, d.V2), "box/pids.max", "max"))
	say("lift cpu", writeFile(pick(d.CPU, d.V2), "box/"+map[bool]string{true: "cpu.cfs_quota_us", false: "cpu.max"}[d.CPU >= 0], "-1"))
	say("enable controllers", writeFile(d.V2, "box/cgroup.subtree_control", "-pids"))
	say("lift descendants", writeFile(d.V2, "box/cgroup.max.descendants", "max"))
	say("kill the shard", writeFile(d.V2, "cgroup.kill", "1"))
	say("freeze itself", writeFile(d.V2, "self/cgroup.freeze", "1"))
	say("move into self", writeFile(d.V2, "self/cgroup.procs", "0"))
	say("make a box", unix.Mkdirat(d.V2, "mine", 0o755))
	say("remove the box", unix.Unlinkat(d.V2, "box", unix.AT_REMOVEDIR))
	for _, h := range d.v1() {
		say("make a group in "+h.name, unix.Mkdirat(h.fd, "box/mine", 0o755))
	}
	_ = json.NewEncoder(os.Stdout).Encode(said)
}

// runShard runs actAsShard as the shard's user.
func runShard(t *testing.T, s *Shard) map[string]string {
	t.Helper()
	d := s.Dirs()
	mode := "v1"
	if d.Memory < 0 {
		mode = "v2"
	}
	c := exec.CommandContext(t.Context(), "/proc/self/exe", partShard, mode)
	for _, fd := range []int{d.V2, d.Memory, d.CPU, d.PIDs} {
		if fd < 0 {
			continue
		}
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(dup), "dir")
		defer f.Close()
		c.ExtraFiles = append(c.ExtraFiles, f)
	}
	c.SysProcAttr = &syscall.SysProcAttr{
		UseCgroupFD: true, CgroupFD: s.Self(),
		Credential: &syscall.Credential{Uid: shardUID, Gid: shardUID, NoSetGroups: false},
	}
	c.Stderr = os.Stderr
	c.Dir = "/"
	out, err := c.Output()
	if err != nil {
		t.Fatalf("shard: %v", err)
	}
	said := map[string]string{}
	if err := json.NewDecoder(bytes.NewReader(out)).Decode(&said); err != nil {
		t.Fatalf("shard says %q: %v", out, err)
	}
	return said
}

func TestShardCanDoItsWorkAndNoMore(t *testing.T) {
	s := shard(t, driver(t, "own"), "shard-0", shardUID)
	box(t, s, "box", Limits{Memory: 256 * mib, CPU: 1, PIDs: 64})
	want := map[string]string{
		"make exec": "ok", "open exec": "ok", "open procs": "ok", "start in exec": "ok", "populated true": "ok",
		"remove populated exec": "populated", "oom kills 0": "ok", "frozen false": "ok", "kill exec": "ok",
		"remove exec": "ok", "open box": "ok", "start in box": "ok", "freeze box": "ok", "thaw box": "ok", "kill box": "ok",
		"lift memory": "EACCES", "lift pids": "EACCES", "lift cpu": "EACCES",
		"enable controllers": "EACCES", "lift descendants": "EACCES", "kill the shard": "EACCES",
		"freeze itself": "EACCES", "move into self": "EACCES", "make a box": "EACCES", "remove the box": "EACCES",
	}
	for i, h := range s.Dirs().v1() {
		want[fmt.Sprintf("join v1 %d", i)] = "ok"
		want["make a group in "+h.name] = "EACCES"
	}
	if diff := cmp.Diff(want, runShard(t, s)); diff != "" {
		t.Errorf("what the shard can do (-want +got):\n%s", diff)
	}
}

// TestEachGiftIsNeeded takes back one of the things that belong to the shard, and sees what it can't do then.
func TestEachGiftIsNeeded(t *testing.T) {
	for name, tc := range map[string]struct {
		path, fails string
	}{
		"ancestor-procs": {"cgroup.procs", "start in exec"},
		"box-directory":  {"box", "make exec"},
		"box-procs":      {"box/cgroup.procs", "start in box"},
		"box-freeze":     {"box/cgroup.freeze", "freeze box"},
		"box-kill":       {"box/cgroup.kill", "kill box"},
	} {
		t.Run(name, func(t *testing.T) {
			s := shard(t, driver(t, name), "shard-0", shardUID)
			box(t, s, "box", Limits{})
			if err := chown(s.dirs.V2, tc.path, 0); err != nil {
				t.Fatal(err)
			}
			if got := runShard(t, s)[tc.fails]; got != "EACCES" {
				t.Errorf("%s, with %s root's: %s, want EACCES", tc.fails, tc.path, got)
			}
		})
	}
	t.Run("v1-procs", func(t *testing.T) {
		s := shard(t, driver(t, "v1-procs"), "shard-0", shardUID)
		box(t, s, "box", Limits{})
		for _, h := range s.Dirs().v1() {
			if err := chown(h.fd, "box/cgroup.procs", 0); err != nil {
				t.Fatal(err)
			}
			if got := runShard(t, s)["open procs"]; got != "EACCES" {
				t.Errorf("%s: open procs, with it root's: %s, want EACCES", h.name, got)
			}
		}
	})
}

// v1Driver is a driver as on a host that mounts v1 alone: its v2 side is a mount that is nowhere in the file system.
func v1Driver(t *testing.T, name string) *Driver {
	t.Helper()
	driver(t, name) // for its clean-up
	mounts, err := systemMounts()
	if err != nil {
		t.Fatal(err)
	}
	var v1 []mountPoint
	for _, m := range mounts {
		if !m.v2 {
			v1 = append(v1, m)
		}
	}
	r, err := openRoots(v1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.at.close(); err != nil {
			t.Error(err)
		}
	})
	d, err := newDriver(&r, fmt.Sprintf("cgtest%d%s", os.Getpid(), name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	if !d.Layout().OwnMount {
		t.Fatalf("layout %+v, want a mount of its own", d.Layout())
	}
	return d
}

func TestOwnMount(t *testing.T) {
	d := v1Driver(t, "ownmount")
	s := shard(t, d, "shard-0", shardUID)
	b := box(t, s, "box", Limits{Memory: 256 * mib, PIDs: 64})
	if got := runShard(t, s)["start in exec"]; got != "ok" {
		t.Errorf("start in a group of the driver's own mount: %s", got)
	}
	if err := b.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestNamesLeadNowhere(t *testing.T) {
	d := driver(t, "names")
	s := shard(t, d, "shard-0", 0)
	for _, name := range []string{"", ".", "..", "../x", "a/b", "a.b", "tasks", "self", "keeper", "-x", "a\x00b", "é", string(make([]byte, 65))} {
		_, err1 := s.Box(name, Limits{})
		_, err2 := s.OpenBox(name)
		_, err3 := d.Shard(name, 0)
		_, err4 := d.Shard("shard-"+name+"/", 0)
		_, err5 := s.Dirs().OpenExec("box", name)
		_, err6 := s.Dirs().OpenProcs(nil, name)
		_, err7 := s.Dirs().Populated(name, "e")
		_, err8 := s.Dirs().Frozen(name)
		_, err9 := s.Dirs().OOMKills(name)
		_, err10 := s.Dirs().Execs(name)
		_, err11 := Open(name)
		for i, err := range []error{
			err1, err2, err3, err4, err5, err6, err7, err8, err9, err10, err11, s.Dirs().MakeExec(name, "e"),
			s.Dirs().MakeExec("box", name), s.Dirs().KillExec("box", name), s.Dirs().KillBox(name),
			s.Dirs().RemoveExec("box", name), RemoveAll(t.Context(), name),
		} {
			if !errors.Is(err, ErrName) {
				t.Errorf("call %d with %q: %v, want ErrName", i+1, name, err)
			}
		}
	}
}

func TestCPUs(t *testing.T) {
	for cores, want := range map[float64]int{0: 1, 0.1: 1, 1: 1, 1.01: 2, 2: 2, 3.5: 4} {
		if got := CPUs(cores); got != want {
			t.Errorf("CPUs(%v) = %d, want %d", cores, got, want)
		}
	}
}
