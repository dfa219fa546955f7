package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/internal/linux/mount"
	"github.com/dsec-io/dsec/internal/linux/pidfd"
	"github.com/dsec-io/dsec/internal/linux/seccomp"
	"github.com/dsec-io/dsec/internal/spawn"
)

const newKernel = "use a newer kernel (Linux 6.12 or later has all of it)"

const noSuchLimit = "mount a procfs on /proc, with /proc/sys in it"

// allNamespaces are those of a sandbox.
const allNamespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

func probes() []probe {
	return []probe{
		{"root", true, "sudo dsec doctor", tryRoot},
		{"memfd-sealing", true, newKernel, tryMemfd},
		{"user-namespaces", true, "sysctl -w user.max_user_namespaces=100000", tryUserNS},
		{"namespaces", true, "a kernel with CONFIG_NAMESPACES and all below it", tryNamespaces},
		{"erofs", true, "a kernel with CONFIG_EROFS_FS and CONFIG_EROFS_FS_BACKED_BY_FILE (6.12 or later); or: modprobe erofs", tryEROFS},
		{"idmapped-mounts", true, newKernel, tryIDMap},
		{"overlay", true, "modprobe overlay   # and keep the data folder on ext4, xfs, btrfs or tmpfs", tryOverlay},
		{"seccomp", true, "a kernel with CONFIG_SECCOMP_FILTER", trySeccomp},
		{"pidfd", true, newKernel, tryPidfd},
		{"cgroup-controllers", true, "mount -t cgroup2 none /sys/fs/cgroup   # with memory, cpu and pids in its cgroup.controllers", tryControllers},
		{"cgroup-birth", true, newKernel, tryCgroupBirth},
		{"cgroup-freeze", true, newKernel, tryCgroupFreeze},
		{"cgroup-kill", true, newKernel, tryCgroupKill},
		{"dsec-aether", true, "make build", tryAether},
		{"data-folder", true, "name a folder on a disk of this machine with --data", tryDataDir},
		{"images", false, "make setup", tryImages},
		{"leftovers", false, "remove /run/dsec/idranges.json when no DSec runs on this machine", tryLeftovers},
		{"pid-max", false, noSuchLimit, tryLimits("kernel.pid_max", "kernel.threads-max")},
		{"inotify", false, noSuchLimit, tryLimits("fs.inotify.")},
		{"open-files", false, "ulimit -n 1048576   # LimitNOFILE=1048576 in a service", tryNoFile},
		{"machine-files", false, noSuchLimit, tryLimits("fs.file-max", "fs.nr_open", "fs.aio-max-nr")},
		{"terminals", false, noSuchLimit, tryLimits("kernel.pty.")},
		{"namespace-limits", false, noSuchLimit, tryLimits("user.")},
		{"mounts", false, noSuchLimit, tryLimits("fs.mount-max")},
		{"mappings", false, noSuchLimit, tryLimits("vm.max_map_count")},
		{"kvm", false, "a machine with a hypervisor; only microVMs need it", tryKVM},
	}
}

func tryRoot(context.Context, *machine) (string, error) {
	if uid := os.Geteuid(); uid != 0 {
		return "", fmt.Errorf("running as uid %d", uid)
	}
	return "uid 0", nil
}

func tryMemfd(_ context.Context, m *machine) (string, error) {
	c, err := m.child(0, -1)
	if err != nil {
		return "", err
	}
	return "a sealed program in memory runs", c.end()
}

func tryUserNS(_ context.Context, m *machine) (string, error) {
	ns, err := m.userNS()
	if err != nil {
		return "", err
	}
	return "made, with a map of 65,536 ids", unix.Close(ns)
}

// userNS makes a user namespace that maps 65,536 ids.
func (m *machine) userNS() (fd int, err error) {
	c, err := m.child(unix.CLONE_NEWUSER, -1)
	if err != nil {
		return -1, err
	}
	defer func() { err = errors.Join(err, c.end()) }()
	for _, file := range []string{"uid_map", "gid_map"} {
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/%s", c.pid, file), []byte("0 1073741824 65536\n"), 0); err != nil {
			return -1, fmt.Errorf("map ids: %w", err)
		}
	}
	fd, err = unix.Open(fmt.Sprintf("/proc/%d/ns/user", c.pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open the namespace: %w", err)
	}
	return fd, nil
}

func tryNamespaces(_ context.Context, m *machine) (string, error) {
	c, err := m.child(allNamespaces, -1)
	if err != nil {
		return "", err
	}
	return "user, mount, pid, network, ipc, uts and cgroup in one clone3", c.end()
}

func tryEROFS(_ context.Context, m *machine) (string, error) {
	fd, err := m.erofs()
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	f, err := unix.Openat(fd, "probe", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open a file of the image: %w", err)
	}
	defer unix.Close(f)
	var b [64]byte
	n, err := unix.Read(f, b[:])
	if err != nil || string(b[:n]) != probeContent {
		return "", fmt.Errorf("read a file of the image: %q, %w", b[:n], err)
	}
	return "an image file mounted without a loop device", nil
}

const probeContent = "dsec doctor probe\n"

func (m *machine) erofs() (int, error) {
	path, err := m.image()
	if err != nil {
		return -1, err
	}
	return mount.New("erofs", unix.MOUNT_ATTR_RDONLY, mount.Option{Key: "source", Value: path})
}

// idMapped is a mount of the image with its owners mapped.
func (m *machine) idMapped() (int, error) {
	lower, err := m.erofs()
	if err != nil {
		return -1, err
	}
	defer unix.Close(lower)
	ns, err := m.userNS()
	if err != nil {
		return -1, err
	}
	defer unix.Close(ns)
	clone, err := mount.Clone(lower, "")
	if err != nil {
		return -1, err
	}
	if err := mount.IDMap(clone, ns); err != nil {
		unix.Close(clone)
		return -1, err
	}
	return clone, nil
}

func tryIDMap(_ context.Context, m *machine) (string, error) {
	fd, err := m.idMapped()
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstatat(fd, "probe", &st, 0); err != nil {
		return "", fmt.Errorf("stat a mapped file: %w", err)
	}
	if st.Uid != 1073741824 {
		return "", fmt.Errorf("a mapped file belongs to %d, not 1073741824", st.Uid)
	}
	return "on erofs", nil
}

// tryOverlay puts a writable layer of the data folder over a detached, idmapped lower one, as a sandbox has it.
func tryOverlay(_ context.Context, m *machine) (string, error) {
	if m.dir == "" {
		return "", fmt.Errorf("no folder to try it in: see data-folder (%w)", m.noDir)
	}
	lower, err := m.idMapped()
	if err != nil {
		return "", err
	}
	defer unix.Close(lower)
	upper, work := filepath.Join(m.dir, "u"), filepath.Join(m.dir, "w")
	if err := errors.Join(os.Mkdir(upper, 0o700), os.Mkdir(work, 0o700)); err != nil {
		return "", err
	}
	fd, err := overlay(lower, upper, work)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	f, err := unix.Openat(fd, "probe", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("write to a file of the lower layer: %w", err)
	}
	return "over a lower layer given as a descriptor, with its upper on " + fsName(m.dir), unix.Close(f)
}

func overlay(lower int, upper, work string) (int, error) {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open file system overlay: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigSetFd(fs, "lowerdir+", lower); err != nil {
		return -1, fmt.Errorf("overlay with a lower layer by descriptor (6.13 or later): %w", err)
	}
	err = errors.Join(unix.FsconfigSetString(fs, "upperdir", upper), unix.FsconfigSetString(fs, "workdir", work),
		unix.FsconfigSetFlag(fs, "volatile"), unix.FsconfigCreate(fs))
	if err != nil {
		return -1, fmt.Errorf("overlay with its upper layer on %s: %w", fsName(filepath.Dir(upper)), err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("mount overlay: %w", err)
	}
	return fd, nil
}

func trySeccomp(_ context.Context, m *machine) (string, error) {
	program, err := seccomp.Default()
	if err != nil {
		return "", err
	}
	c, err := m.child(0, -1, func(s *spawn.Script) {
		s.Call(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, program.Addr()).As("load the filter")
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("the sandboxes' filter loads (%d instructions)", program.Len()), c.end()
}

// tryPidfd ends a process by its pidfd, and asks a reaped one how it ended.
func tryPidfd(ctx context.Context, m *machine) (found string, err error) {
	c, err := m.child(0, -1)
	if err != nil {
		return "", err
	}
	defer unix.Close(c.pidfd)
	if err := errors.Join(pidfd.Kill(c.pidfd), pidfd.Wait(ctx, c.pidfd), reaped(c.pid)); err != nil {
		return "", err
	}
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	if err := unix.IoctlPidfdInfo(c.pidfd, &info); err != nil || info.Mask&unix.PIDFD_INFO_EXIT == 0 {
		return "processes are held by descriptor, but a reaped one doesn't tell its status",
			&limitedError{"use Linux 6.15 or later: else a status may be lost when shard and keeper die together"}
	}
	return "processes are held by descriptor, and a reaped one tells its status", nil
}

// fsName names the file system of a folder, by its place in mountinfo.
func fsName(dir string) string {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return dir
	}
	name, longest := dir, -1
	for line := range strings.Lines(string(b)) {
		left, right, _ := strings.Cut(line, " - ")
		f := strings.Fields(left)
		if len(f) < 5 || len(f[4]) < longest {
			continue
		}
		if f[4] == "/" || dir == f[4] || strings.HasPrefix(dir, f[4]+"/") {
			name, longest = strings.Fields(right)[0], len(f[4])
		}
	}
	return name
}

func parent(path string) string { return filepath.Dir(path) }
