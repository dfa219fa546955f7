package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// These tests run the driver on plain files that stand for the kernel's: the layouts that this machine may not have.
// They show what is written where, not what the kernel makes of it. A host whose v2 has memory, cpu and pids runs the
// tests of the other files on the real thing.

// plant writes files below a new directory and opens it.
func plant(t *testing.T, files map[string]string) (int, string) {
	t.Helper()
	dir := t.TempDir()
	for path, content := range files {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	fd, err := openDir(unix.AT_FDCWD, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd, dir
}

func contents(t *testing.T, dir string, paths ...string) map[string]string {
	t.Helper()
	got := map[string]string{}
	for _, p := range paths {
		b, err := os.ReadFile(filepath.Join(dir, p))
		if err != nil {
			t.Fatal(err)
		}
		got[p] = string(b)
	}
	return got
}

func v2Files(box string) map[string]string {
	files := map[string]string{}
	for _, group := range []string{"", "dsec-i/", "dsec-i/shard-0/"} {
		files[group+"cgroup.controllers"] = "cpuset cpu io memory pids\n"
		files[group+"cgroup.subtree_control"] = "cpu memory pids\n"
		files[group+"cgroup.procs"] = ""
	}
	for name, content := range map[string]string{
		"memory.max": "536870912\n", "memory.high": "max\n", "memory.swap.max": "0\n", "memory.oom.group": "0\n", "memory.current": "1048576\n",
		"memory.peak": "2097152\n", "memory.events": "low 0\nhigh 0\nmax 3\noom 2\noom_kill 5\n", "cpu.max": "max 100000\n",
		"cpu.stat": "usage_usec 1500000\nuser_usec 1\nthrottled_usec 2500\n", "pids.max": "max\n", "pids.current": "4\n",
		"pids.events": "max 7\n", "memory.stat": "anon 1\ninactive_file 300\nactive_file 40\n",
		"cgroup.freeze": "1\n", "cgroup.subtree_control": "", "cgroup.events": "populated 0\nfrozen 0\n",
	} {
		files["dsec-i/shard-0/"+box+"/"+name] = content
	}
	return files
}

func TestPureV2Files(t *testing.T) {
	fd, dir := plant(t, v2Files("box"))
	r := roots{at: Dirs{V2: fd, Memory: -1, CPU: -1, PIDs: -1}}
	d, err := newDriver(&r, "i")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if want := (Layout{Memory: 2, CPU: 2, PIDs: 2}); d.Layout() != want {
		t.Errorf("layout %+v, want %+v", d.Layout(), want)
	}
	s := shard(t, d, "shard-0", os.Getuid())
	if want := (Dirs{V2: s.Dirs().V2, Memory: -1, CPU: -1, PIDs: -1}); s.Dirs() != want {
		t.Errorf("Dirs() = %+v, want v2 alone", s.Dirs())
	}
	b, err := s.OpenBox("box")
	if err != nil {
		t.Fatal(err)
	}
	want := Usage{
		Memory: 1 << 20, MemoryPeak: 2 << 20, MemoryLimit: 512 << 20, Cache: 340, PIDs: 4, PIDsRefused: 7, OOMKills: 5,
		CPU: 1500 * time.Millisecond, Throttled: 2500 * time.Microsecond,
	}
	if diff := cmp.Diff(want, usage(t, b)); diff != "" {
		t.Errorf("Usage() (-want +got):\n%s", diff)
	}
	if yes, err := b.Frozen(); !yes || err != nil {
		t.Errorf("Frozen() = %v, %v", yes, err)
	}
	if j, err := b.JoinFDs(); err != nil || len(j.Procs) != 0 {
		t.Errorf("JoinFDs() = %+v, %v; want none but v2", j, err)
	} else {
		j.Close()
	}
	if err := b.SetLimits(Limits{Memory: 256 << 20, CPU: 1.5, PIDs: 100}); err != nil {
		t.Fatal(err)
	}
	paths := []string{"memory.max", "memory.high", "memory.swap.max", "cpu.max", "pids.max", "cgroup.subtree_control"}
	box := filepath.Join(dir, "dsec-i/shard-0/box")
	if diff := cmp.Diff(map[string]string{
		"memory.max": "268435456", "memory.high": "max", "memory.swap.max": "0\n", "cpu.max": "150000 100000",
		"pids.max": "100", "cgroup.subtree_control": "",
	}, contents(t, box, paths...)); diff != "" {
		t.Errorf("lowered (-want +got):\n%s", diff)
	}
	if err := os.WriteFile(filepath.Join(box, "memory.current"), []byte("209715200\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	err = b.SetLimits(Limits{Memory: 64 << 20})
	var busy *InUseError
	if !errors.As(err, &busy) || busy.Usage != 209715200 {
		t.Errorf("64 MiB with 200 in use: %v, want *InUseError", err)
	}
	if diff := cmp.Diff(map[string]string{
		"memory.max": "268435456", "memory.high": "max", "cpu.max": "150000 100000", "pids.max": "100",
	}, contents(t, box, "memory.max", "memory.high", "cpu.max", "pids.max")); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
	if err := b.noSwap(); err != nil {
		t.Fatal(err)
	}
	if err := b.SetLimits(Limits{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{
		"memory.max": "max", "memory.swap.max": "0", "cpu.max": "max 100000", "pids.max": "max",
	}, contents(t, box, "memory.max", "memory.swap.max", "cpu.max", "pids.max")); diff != "" {
		t.Errorf("lifted (-want +got):\n%s", diff)
	}
	// Else a kill in the box could take the shard along, whose memory its helpers share.
	if got := contents(t, box, "memory.oom.group")["memory.oom.group"]; got != "0\n" {
		t.Errorf("memory.oom.group was set to %q", got)
	}
}

// TestControllersAreEnabledOnTheWayDown stands for a v2 host on which nobody has enabled anything yet.
func TestControllersAreEnabledOnTheWayDown(t *testing.T) {
	files := v2Files("box")
	for path := range files {
		if strings.HasSuffix(path, "subtree_control") {
			files[path] = ""
		}
	}
	fd, dir := plant(t, files)
	r := roots{at: Dirs{V2: fd, Memory: -1, CPU: -1, PIDs: -1}}
	d, err := newDriver(&r, "i")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	shard(t, d, "shard-0", os.Getuid())
	// The last of three writes stays in a plain file.
	if diff := cmp.Diff(map[string]string{
		"cgroup.subtree_control": "+pids", "dsec-i/cgroup.subtree_control": "+pids",
		"dsec-i/shard-0/cgroup.subtree_control": "+pids", "dsec-i/shard-0/box/cgroup.subtree_control": "",
	}, contents(t, dir, "cgroup.subtree_control", "dsec-i/cgroup.subtree_control",
		"dsec-i/shard-0/cgroup.subtree_control", "dsec-i/shard-0/box/cgroup.subtree_control")); diff != "" {
		t.Errorf("enabled (-want +got):\n%s", diff)
	}
}

func TestMissingControllerIsNamed(t *testing.T) {
	fd, _ := plant(t, map[string]string{"cgroup.controllers": "memory cpu\n", "cgroup.subtree_control": "memory cpu\n"})
	r := roots{at: Dirs{V2: fd, Memory: -1, CPU: -1, PIDs: -1}}
	_, err := newDriver(&r, "i")
	var missing *ControllerError
	if !errors.As(err, &missing) || missing.Controller != "pids" {
		t.Errorf("newDriver() = %v, want *ControllerError for pids", err)
	}
}

// TestV1WithoutSwapAccounting stands for a kernel without memory.memsw.*: swappiness alone keeps the box out of swap.
func TestV1WithoutSwapAccounting(t *testing.T) {
	v2, _ := plant(t, map[string]string{"box/x": ""})
	mem, dir := plant(t, map[string]string{
		"box/memory.limit_in_bytes": "9223372036854771712\n", "box/memory.swappiness": "60\n",
	})
	cpu, _ := plant(t, map[string]string{"box/cpu.cfs_period_us": "50000\n", "box/cpu.cfs_quota_us": "-1\n"})
	pids, _ := plant(t, map[string]string{"box/pids.max": "max\n"})
	b := &Box{sh: &Shard{dirs: Dirs{V2: v2, Memory: mem, CPU: cpu, PIDs: pids}}, name: "box"}
	if err := errors.Join(b.noSwap(), b.SetLimits(Limits{Memory: 64 << 20, CPU: 2, PIDs: 9})); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"box/memory.limit_in_bytes": "67108864", "box/memory.swappiness": "0"},
		contents(t, dir, "box/memory.limit_in_bytes", "box/memory.swappiness")); diff != "" {
		t.Errorf("memory (-want +got):\n%s", diff)
	}
	if got := read(t, cpu, "box/cpu.cfs_period_us") + " " + read(t, cpu, "box/cpu.cfs_quota_us"); got != "100000 200000" {
		t.Errorf("cpu period and quota: %s", got)
	}
}

func TestMountsAreFound(t *testing.T) {
	//nolint:dupword // as the kernel writes it
	const text = `22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:26 / /sys/fs/cgroup ro,nosuid shared:4 - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw shared:5 - cgroup2 cgroup2 rw,nsdelegate
32 30 0:28 / /sys/fs/cgroup/systemd rw shared:6 - cgroup cgroup rw,xattr,name=systemd
33 30 0:29 /docker/x /sys/fs/cgroup/cpu,cpuacct rw master:3 shared:7 - cgroup cgroup rw,cpu,cpuacct
34 30 0:30 / /sys/fs/cg\040roup/memory rw - cgroup cgroup rw,memory
`
	got, err := parseMounts(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	want := []mountPoint{
		{"/sys/fs/cgroup/unified", true, []string{"rw", "nsdelegate"}},
		{"/sys/fs/cgroup/systemd", false, []string{"rw", "xattr", "name=systemd"}},
		{"/sys/fs/cgroup/cpu,cpuacct", false, []string{"rw", "cpu", "cpuacct"}},
		{"/sys/fs/cg roup/memory", false, []string{"rw", "memory"}},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(mountPoint{})); diff != "" {
		t.Errorf("parseMounts() (-want +got):\n%s", diff)
	}
	for _, bad := range []string{`\`, `\9`, `\999`, `a\04`} {
		if _, err := unescape(bad); err == nil {
			t.Errorf("unescape(%q) is taken", bad)
		}
	}
}

func TestKeysAndNumbers(t *testing.T) {
	fd, _ := plant(t, map[string]string{"n": "12\n", "max": "max\n", "bad": "x\n", "keys": "a 1\nab 2\nb x\n"})
	if n, err := readInt(fd, "n"); n != 12 || err != nil {
		t.Errorf("readInt(12) = %d, %v", n, err)
	}
	if n, err := readInt(fd, "max"); n < 1<<62 || err != nil {
		t.Errorf("readInt(max) = %d, %v", n, err)
	}
	if _, err := readInt(fd, "bad"); err == nil {
		t.Error("readInt(x) is taken")
	}
	if n, err := readKey(fd, "keys", "ab"); n != 2 || err != nil {
		t.Errorf("readKey(ab) = %d, %v", n, err)
	}
	if n, err := readKey(fd, "keys", "c"); n != 0 || err != nil {
		t.Errorf("readKey(c) = %d, %v", n, err)
	}
	if _, err := readKey(fd, "keys", "b"); err == nil {
		t.Error("readKey(b) with no number is taken")
	}
}
