package container

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/internal/backend/container/knobs"
	"github.com/dsec-io/dsec/internal/backend/container/userns"
	"github.com/dsec-io/dsec/internal/image"
	"github.com/dsec-io/dsec/internal/leakcheck"
	"github.com/dsec-io/dsec/internal/linux/cgroup"
	"github.com/dsec-io/dsec/internal/linux/mount"
	"github.com/dsec-io/dsec/internal/linux/pidfd"
	"github.com/dsec-io/dsec/internal/need"
	"github.com/dsec-io/dsec/internal/spawn"
	"golang.org/x/sys/unix"
)

// made is a sandbox's init without shard and backend, to look at from the host.
type made struct {
	pid   int
	upper string
	node  *node
}

// inside runs a command with the image's busybox in all of the sandbox's namespaces, as its root.
func (m made) inside(t *testing.T, script string) string {
	t.Helper()
	cmd := exec.Command("nsenter", "-t", strconv.Itoa(m.pid), "-a", "/bin/sh", "-c", script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

const testOwner, testBase = 0x3f0fff01, 0xe0000000

// make1 makes an init with what is given in p, and ends it with the test.
func make1(t *testing.T, instance string, p plan) made {
	t.Helper()
	need.Root(t)
	store := filepath.Dir(need.Image(t, "busybox"))
	leakcheck.CheckInstance(t, instance)
	d, err := cgroup.Open(instance)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if err := cgroup.RemoveAll(context.Background(), instance); err != nil {
			t.Error(err)
		}
	})
	sh, err := d.Shard("shard-0", testOwner)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sh.Close() })
	groups, err := sh.Box("box", cgroup.Limits{Memory: 64 << 20, CPU: 1, PIDs: 50})
	if err != nil {
		t.Fatal(err)
	}
	n, err := newNode([]byte("none"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.close)
	ns, err := userns.New(testOwner, testBase, &spawn.Watch{}, testKnobs(t))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ns)
	im, err := image.NewStore(slog.New(slog.DiscardHandler), store).Open(t.Context(), "busybox")
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	lower, err := im.Clone(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(lower)
	up := upper{dir: filepath.Join(t.TempDir(), "box")}
	if err := up.make(testBase, nil); err != nil {
		t.Fatal(err)
	}
	if err := up.identify(lower, p.hostname); err != nil {
		t.Fatal(err)
	}
	b := &Backend{node: n}
	root, err := b.overlay(up, lower, ns)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(root)
	join, err := groups.JoinFDs()
	if err != nil {
		t.Fatal(err)
	}
	defer join.Close()
	p.node, p.userns, p.root, p.join = n, ns, root, join
	pid, err := p.create(&spawn.Watch{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		fd, err := pidfd.Open(pid)
		if err != nil {
			t.Error(err)
			return
		}
		endInit(context.Background(), fd)
		unix.Close(fd)
	})
	return made{pid: pid, upper: up.dir, node: n}
}

func TestInitAndItsRoot(t *testing.T) {
	const name = "box-1"
	m := make1(t, "k"+strconv.Itoa(os.Getpid())+"t1", plan{hostname: name, workdir: "/srv/a b/c", uid: 1000, gid: 1001, cpus: 1})
	for script, want := range map[string]string{
		"echo $(id -u) $(hostname); cat /etc/hostname": "0 " + name + "\n" + name + "\n",
		"grep -c box-1 /etc/hosts":                     "1\n",
		"for d in null zero full random urandom tty; do [ -c /dev/$d ] || echo no $d; done; echo x >/dev/null": "",
		"head -c 3 /dev/zero | wc -c":                                  "3\n",
		"readlink /dev/fd; readlink /dev/stdin; readlink /dev/ptmx":    "/proc/self/fd\n/proc/self/fd/0\npts/ptmx\n",
		"stat -c '%a %u' /dev/shm /tmp; : >/dev/shm/f; : >/tmp/f":      "1777 0\n1777 0\n",
		"stat -c '%a %u:%g' '/srv/a b' '/srv/a b/c'":                   "755 0:0\n755 1000:1001\n",
		"cat /sys/devices/system/cpu/online":                           "0\n",
		"cat /proc/self/cgroup | cut -d: -f3 | sort -u | head -1":      "/\n",
		"ls /proc | grep '^[0-9]' | head -1":                           "1\n",
		"ping -c 1 -W 1 127.0.0.1 >/dev/null && echo up":               "up\n",
		"cat /proc/sys/user/max_inotify_instances":                     "128\n",
		"echo 1 2>&- >/proc/sys/net/ipv4/ip_forward || echo read-only": "read-only\n",
		"cat /proc/keys; ls /sys/firmware":                             "",
		"cat /proc/self/uid_map | tr -s ' '":                           " 0 3758096384 65536\n",
		"cat /proc/1/comm; ls /proc/1/fd | wc -l":                      "memfd:dsec-init\n0\n",
	} {
		if got := m.inside(t, script); got != want {
			t.Errorf("%s:\n got %q\nwant %q", script, got, want)
		}
	}
}

func TestShownCPUsCanBeChanged(t *testing.T) {
	m := make1(t, "k"+strconv.Itoa(os.Getpid())+"t4", plan{hostname: "sandbox", cpus: 1})
	fd, err := pidfd.Open(m.pid)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	b := &Backend{node: m.node, watch: &spawn.Watch{}}
	list := func() string { return strings.TrimSpace(m.inside(t, "cat /sys/devices/system/cpu/online")) }
	all := "0-" + strconv.Itoa(m.node.cpus-1)
	for _, step := range []struct {
		cpus int
		want string
	}{{0, all}, {1, "0"}, {m.node.cpus, all}} {
		if err := b.showCPUs(fd, step.cpus); err != nil {
			t.Fatal(err)
		}
		if got := list(); got != step.want {
			t.Errorf("shown %d: %s, want %s", step.cpus, got, step.want)
		}
	}
}

// The tenant must not learn where on the host its files are, nor have more superblocks than the budget allows.
func TestMountsTellNothingOfTheHost(t *testing.T) {
	m := make1(t, "k"+strconv.Itoa(os.Getpid())+"t2", plan{hostname: "sandbox", cpus: 1})
	info := m.inside(t, "cat /proc/self/mountinfo")
	for _, secret := range []string{m.upper, "/" + filepath.Base(filepath.Dir(m.upper)), "/var/lib", "busybox"} { // a bare number may be a mount's
		if strings.Contains(info, secret) {
			t.Errorf("mountinfo has %q:\n%s", secret, info)
		}
	}
	shared := map[string]bool{"tmpfs": true}
	supers := map[string]bool{"mqueue": true} // the ipc namespace's own, mounted nowhere
	for line := range strings.Lines(info) {
		f := strings.Fields(line)
		before, after, _ := strings.Cut(line, " - ")
		fs, _, _ := strings.Cut(after, " ")
		if len(strings.Fields(before)) < 6 || len(f) < 10 {
			t.Fatalf("line %q", line)
		}
		if !shared[fs] {
			supers[f[2]] = true
		}
	}
	if len(supers) > 4 {
		t.Errorf("%d superblocks: %v\n%s", len(supers), supers, info)
	}
	if !strings.Contains(info, "nodev") {
		t.Error("the root isn't nodev")
	}
	t.Log("\n" + info)
}

func TestStepThatFailsIsNamedAndLeavesNothing(t *testing.T) {
	need.Root(t)
	leakcheck.CheckInstance(t, "k"+strconv.Itoa(os.Getpid())+"t3")
	n, err := newNode([]byte("none"))
	if err != nil {
		t.Fatal(err)
	}
	defer n.close()
	ns, err := userns.New(testOwner, testBase, &spawn.Watch{}, testKnobs(t))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ns)
	empty, err := mount.New("tmpfs", 0, mount.Option{Key: "size", Value: "64k"})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(empty)
	for _, dir := range []string{"dev", "proc", "sys"} {
		if err := unix.Mkdirat(empty, dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p := plan{node: n, userns: ns, root: empty, join: cgroup.Join{V2: -1}, hostname: "x"}
	_, err = p.create(&spawn.Watch{})
	if err == nil || !strings.Contains(err.Error(), "place dev/null") {
		t.Errorf("create() = %v, want the step that places dev/null", err)
	}
	if _, err := spawn.Wait(-1); err == nil {
		t.Error("a child is left")
	}
}

func TestUserNSMapsAndLimits(t *testing.T) {
	need.Root(t)
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	k := testKnobs(t)
	for range 20 {
		ns, err := userns.New(testOwner, testBase, &spawn.Watch{}, k)
		if err != nil {
			t.Fatal(err)
		}
		owner, err := unix.IoctlGetInt(ns, 0xb704) // NS_GET_OWNER_UID
		if err != nil || uint32(owner) != testOwner {
			t.Errorf("owner %d, %v", owner, err)
		}
		unix.Close(ns)
	}
	k.Close()
	after, err := os.ReadDir("/proc/self/fd")
	if err != nil || len(after) != len(fds) {
		t.Errorf("%d descriptors, %d before, %v", len(after), len(fds), err)
	}
}

func BenchmarkUserNS(b *testing.B) {
	w, k := &spawn.Watch{}, testKnobs(b)
	for b.Loop() {
		ns, err := userns.New(testOwner, testBase, w, k)
		if err != nil {
			b.Fatal(err)
		}
		unix.Close(ns)
	}
}

func testKnobs(t testing.TB) *knobs.Knobs {
	k := knobs.New()
	t.Cleanup(k.Close)
	return k
}
