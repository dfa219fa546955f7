package container

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/linux/cgroup"
	"github.com/dsec-io/dsec/internal/spawn"
	"golang.org/x/sys/unix"
)

const atFDCWD = ^uintptr(99) // AT_FDCWD, -100

// plan is what the create script works on: descriptors of this process, and a few words.
type plan struct {
	node     *node
	userns   int
	root     int // the overlay, detached
	join     cgroup.Join
	hostname string
	workdir  string
	uid, gid uint32 // owner of a workdir that has to be made
	cpus     int    // processors that the sandbox is shown; 0: all
}

// create makes the sandbox's init and returns its process number.
//
// Two children are needed. The first, X, joins the sandbox's cgroups while it still has the power to, then its user
// namespace, and becomes root there. The second, P, is cloned by X with all other namespaces, which so belong to that
// user namespace, and as a child of ours (CLONE_PARENT). P builds its root and becomes init.
func (p *plan) create(watch *spawn.Watch) (int, error) {
	var x, c spawn.Script
	p.initScript(&c)
	zero := x.String("0")
	for _, fd := range p.join.Procs {
		x.Call(unix.SYS_WRITE, uintptr(fd), zero, 1).As("join cgroup")
	}
	x.Call(unix.SYS_SETNS, uintptr(p.userns), unix.CLONE_NEWUSER).As("enter user namespace")
	x.Call(unix.SYS_SETRESGID, 0, 0, 0).As("setresgid")
	x.Call(unix.SYS_SETGROUPS, 0, 0).As("setgroups")
	x.Call(unix.SYS_SETRESUID, 0, 0, 0).As("setresuid")
	// The cgroup namespace comes after the joins, so its root is the sandbox's group.
	const namespaces = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP
	x.Clone(unix.CLONE_PARENT|namespaces, &c).As("clone with namespaces")
	x.Exit()
	out, err := spawn.Run(spawn.Attr{Cgroup: p.join.V2, Watch: watch}, &x)
	if err != nil {
		return 0, err
	}
	if out.Failed == nil && out.ChildTID > 0 {
		// X has nothing left to do but to exit, and nobody needs to wait for that.
		go func() { _, _ = spawn.Wait(out.PID) }()
		return out.ChildTID, nil
	}
	_, _ = spawn.Wait(out.PID)
	if out.ChildTID > 0 {
		_, _ = spawn.Wait(out.ChildTID)
	}
	if out.Failed != nil {
		return 0, ofImage(out.Failed)
	}
	return 0, fmt.Errorf("the child that makes init was killed")
}

// initScript is P. Paths are relative to the new root from the first chdir on.
func (p *plan) initScript(s *spawn.Script) {
	s.Call(unix.SYS_SETSID).As("setsid")
	s.Call(unix.SYS_UMASK, 0)
	s.Call(unix.SYS_MOUNT, 0, s.String("/"), 0, unix.MS_REC|unix.MS_PRIVATE, 0).As("make mounts private")
	// The root may be put on any directory that the sandbox's root may reach: nothing of the old tree stays.
	moveMount(s, uintptr(p.root), "/dev").As("place root")
	s.Call(unix.SYS_FCHDIR, uintptr(p.root)).As("enter root")
	// Up to the pivot a link in the image would lead into the host's tree.
	for _, dir := range []string{"dev", "proc", "sys"} {
		how := s.Word(unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
		s.Call(unix.SYS_OPENAT2, atFDCWD, s.String(dir), how, 24).As(imageStep + dir)
	}
	for _, d := range devices() {
		p.cover(s, "nodes/"+d.name, "dev/"+d.name, false)
	}
	const quiet = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	s.Call(unix.SYS_MOUNT, s.String("proc"), s.String("proc"), s.String("proc"), quiet, 0).As("mount proc")
	// Before the pivot: the kernel gives a sysfs only to who can see all of one already. Where this process can't, the
	// sandbox has an empty /sys.
	s.Call(unix.SYS_MOUNT, s.String("sysfs"), s.String("sys"), s.String("sysfs"), quiet|unix.MS_RDONLY, 0).As("mount sysfs").Ignore()
	if p.cpus > 0 {
		p.cover(s, "cpus/"+strconv.Itoa(p.cpus), "sys/devices/system/cpu/online", true)
	}
	for _, m := range p.node.masks {
		switch {
		case m.readOnly:
			selfReadOnly(s, m.path)
		case m.dir:
			p.cover(s, "empty", m.path, true)
		default:
			p.cover(s, "nodes/null", m.path, true)
		}
	}
	dot := s.String(".")
	s.Call(unix.SYS_PIVOT_ROOT, dot, dot).As("pivot_root")
	s.Call(unix.SYS_UMOUNT2, dot, unix.MNT_DETACH).As("unmount the old root")
	s.Call(unix.SYS_CHDIR, s.String("/")).As("chdir")
	s.Call(unix.SYS_SETHOSTNAME, s.String(p.hostname), uintptr(len(p.hostname))).As("sethostname")
	loopbackUp(s)
	p.makeWorkdir(s)
	// Init keeps nothing but its program, and that is closed by the exec.
	s.Call(unix.SYS_DUP3, uintptr(p.node.initProgram), 0, unix.O_CLOEXEC).As("dup3")
	s.Call(unix.SYS_CLOSE_RANGE, 1, ^uintptr(0)>>32, 0).As("close_range")
	s.Call(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, s.Word(0), 0, 8).As("sigprocmask")
	s.Call(unix.SYS_EXECVEAT, 0, s.String(""), s.Strings([][]byte{[]byte("init")}), s.Strings(nil), unix.AT_EMPTY_PATH).As("exec init")
}

// imageStep begins the names of steps that fail where the image has something else than a directory.
const imageStep = "use the image's /"

// ofImage is the error of a step of init's, as one of the image where it is in the way.
func ofImage(f *spawn.Failure) error {
	path, ok := strings.CutPrefix(f.Name, imageStep)
	if !ok {
		return f
	}
	return api.FieldError(api.CodeImpossible, "image", "have the image leave it out, or make it a directory", "the image's /%s is no directory: %v", path, f.Errno)
}

const (
	moveFromEmptyPath = 0x4 // MOVE_MOUNT_F_EMPTY_PATH
	cloneFlags        = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_SYMLINK_NOFOLLOW
)

func moveMount(s *spawn.Script, fd uintptr, to string) *spawn.Step {
	return s.Call(unix.SYS_MOVE_MOUNT, fd, s.String(""), atFDCWD, s.String(to), moveFromEmptyPath)
}

// cover binds a file or directory of the shared tmpfs over a path. It is read-only unless it is a device, and where
// mayLack is set a missing path is no failure.
func (p *plan) cover(s *spawn.Script, from, to string, mayLack bool) {
	clone := s.Call(unix.SYS_OPEN_TREE, uintptr(p.node.tmpfs), s.String(from), cloneFlags).As("clone " + from)
	move := moveMount(s, 0, to).As("place " + to)
	clone.SaveTo(move, 0)
	if mayLack {
		move.Ignore()
	}
}

// selfReadOnly binds a directory or file over itself, read-only.
func selfReadOnly(s *spawn.Script, path string) {
	attrs := s.Word(unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC, 0, 0, 0)
	clone := s.Call(unix.SYS_OPEN_TREE, atFDCWD, s.String(path), cloneFlags)
	set := s.Call(unix.SYS_MOUNT_SETATTR, 0, s.String(""), unix.AT_EMPTY_PATH, attrs, 32).As("make read-only " + path)
	move := moveMount(s, 0, path).As("place " + path)
	clone.SaveTo(set, 0).SaveTo(move, 0)
	// A path that has gone since the start of this program is skipped whole.
	clone.Else(s.Call(unix.SYS_GETPID))
}

// loopbackUp brings the network namespace's lo up, which also gives it 127.0.0.1 and ::1.
func loopbackUp(s *spawn.Script) {
	var req [5]uint64 // struct ifreq: the name, then flags
	copy(bytesOf(&req), "lo")
	binary.NativeEndian.PutUint16(bytesOf(&req)[unix.IFNAMSIZ:], unix.IFF_UP|unix.IFF_RUNNING)
	sock := s.Call(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0).As("socket")
	up := s.Call(unix.SYS_IOCTL, 0, unix.SIOCSIFFLAGS, s.Word(req[:]...)).As("bring lo up")
	sock.SaveTo(up, 0)
}

// makeWorkdir makes the working directory and what is missing above it, without any tool of the image. What it makes
// is empty; the directory itself then belongs to the sandbox's user.
func (p *plan) makeWorkdir(s *spawn.Script) {
	dir := strings.Trim(p.workdir, "/")
	if dir == "" {
		return
	}
	parts := strings.Split(dir, "/")
	for i := range parts {
		path := s.String("/" + strings.Join(parts[:i+1], "/"))
		mkdir := s.Call(unix.SYS_MKDIRAT, atFDCWD, path, 0o755).As("make workdir")
		if i < len(parts)-1 || p.uid == 0 && p.gid == 0 {
			mkdir.Ignore() // it exists; anything else shows when a command wants to go there
			continue
		}
		s.Call(unix.SYS_FCHOWNAT, atFDCWD, path, uintptr(p.uid), uintptr(p.gid), unix.AT_SYMLINK_NOFOLLOW).As("give workdir to its user")
		mkdir.Else(s.Call(unix.SYS_GETPID))
	}
}
