package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strconv"

	"github.com/dsec-io/dsec/internal/backend/container/knobs"
	"github.com/dsec-io/dsec/internal/linux/memfd"
	"github.com/dsec-io/dsec/internal/linux/mount"
	"github.com/dsec-io/dsec/internal/spawn"
	"golang.org/x/sys/unix"
)

// node is what all sandboxes share: two programs in memory, and one small tmpfs that is mounted nowhere.
//
// The tmpfs holds what a sandbox's root needs beside its image: the device nodes, a skeleton that lies below the image
// in the overlay (so it supplies what the image lacks and never hides what it has), and things to cover others with.
type node struct {
	initProgram int // sealed, mode 0555: an unprivileged shard must be allowed to look at init to enter its namespaces
	aether      int // sealed, mode 0111: nobody may look at a shard
	tmpfs       int // the whole
	skeleton    int // its folder skel
	masks       []mask
	cpus        int // processors of the machine
	knobs       *knobs.Knobs
}

// mask is a path of a sandbox that is covered.
type mask struct {
	path     string
	dir      bool
	readOnly bool // covered by itself, read-only
}

// defaultHostname is the one that the skeleton's files know.
const defaultHostname = "sandbox"

func newNode(aether []byte) (_ *node, err error) {
	n := &node{initProgram: -1, aether: -1, tmpfs: -1, skeleton: -1, cpus: runtime.NumCPU(), knobs: knobs.New()}
	defer func() {
		if err != nil {
			n.close()
		}
	}()
	elf, err := spawn.TinyInit(runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	if n.initProgram, err = memfd.Sealed("dsec-init", elf, 0o555); err != nil {
		return nil, err
	}
	if n.aether, err = memfd.Sealed("dsec-aether", aether, 0o111); err != nil {
		return nil, err
	}
	n.tmpfs, err = mount.New("tmpfs", unix.MOUNT_ATTR_NOSUID,
		mount.Option{Key: "mode", Value: "0755"}, mount.Option{Key: "size", Value: "1m"})
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(mount.FDPath(n.tmpfs))
	if err != nil {
		return nil, fmt.Errorf("open the shared tmpfs: %w", err)
	}
	defer root.Close()
	if err := fillShared(root, n.tmpfs); err != nil {
		return nil, fmt.Errorf("fill the shared tmpfs: %w", err)
	}
	if n.skeleton, err = mount.Clone(n.tmpfs, "skel"); err != nil {
		return nil, err
	}
	n.masks = presentMasks()
	return n, nil
}

func (n *node) close() {
	for _, fd := range []int{n.initProgram, n.aether, n.tmpfs, n.skeleton} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	n.knobs.Close()
}

// devices are the nodes of a sandbox's /dev.
func devices() []device {
	return []device{{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}}
}

type device struct {
	name         string
	major, minor uint32
}

// fillShared makes the content of the shared tmpfs. Modes are set by chmod, because of the umask.
func fillShared(root *os.Root, dir int) error {
	for _, d := range []struct {
		path string
		mode fs.FileMode
	}{
		{"nodes", 0o755},
		{"empty", 0o555},
		{"cpus", 0o755},
		{"skel", 0o755},
		{"skel/proc", 0o555},
		{"skel/sys", 0o555},
		{"skel/etc", 0o755},
		{"skel/tmp", 0o777 | fs.ModeSticky},
		{"skel/dev", 0o755},
		{"skel/dev/pts", 0o755},
		{"skel/dev/shm", 0o777 | fs.ModeSticky},
	} {
		if err := errors.Join(root.Mkdir(d.path, 0o700), root.Chmod(d.path, d.mode)); err != nil {
			return err
		}
	}
	for _, d := range devices() {
		at := "nodes/" + d.name
		if err := unix.Mknodat(dir, at, unix.S_IFCHR, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return fmt.Errorf("make %s: %w", at, err)
		}
		if err := errors.Join(root.Chmod(at, 0o666), writeFile(root, "skel/dev/"+d.name, "", 0o666)); err != nil {
			return err
		}
	}
	for name, to := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx",
	} {
		if err := root.Symlink(to, "skel/dev/"+name); err != nil {
			return err
		}
	}
	for n := 1; n <= runtime.NumCPU(); n++ {
		list := "0\n"
		if n > 1 {
			list = fmt.Sprintf("0-%d\n", n-1)
		}
		if err := writeFile(root, "cpus/"+strconv.Itoa(n), list, 0o444); err != nil {
			return err
		}
	}
	return errors.Join(
		writeFile(root, "skel/etc/hostname", defaultHostname+"\n", 0o644),
		writeFile(root, "skel/etc/hosts", hostsFile(defaultHostname), 0o644),
		writeFile(root, "skel/etc/resolv.conf", "# no name server can be reached from here\n", 0o644))
}

func hostsFile(hostname string) string {
	return "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.0.1\t" + hostname + "\n"
}

func writeFile(root *os.Root, path, content string, mode fs.FileMode) error {
	return errors.Join(root.WriteFile(path, []byte(content), mode), root.Chmod(path, mode))
}

// presentMasks are Docker's masked and read-only paths, as far as this kernel has them.
func presentMasks() []mask {
	var have []mask
	add := func(readOnly bool, paths ...string) {
		for _, p := range paths {
			if st, err := os.Stat("/" + p); err == nil {
				have = append(have, mask{path: p, dir: st.IsDir(), readOnly: readOnly})
			}
		}
	}
	add(false, "proc/acpi", "proc/asound", "proc/interrupts", "proc/kcore", "proc/keys", "proc/latency_stats", "proc/sched_debug",
		"proc/scsi", "proc/timer_list", "proc/timer_stats", "sys/devices/virtual/powercap", "sys/firmware")
	add(true, "proc/bus", "proc/fs", "proc/irq", "proc/sys", "proc/sysrq-trigger")
	return have
}
