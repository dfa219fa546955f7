package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Version is the version of the interface through which a controller is used: 1 or 2.
type Version int

// Layout tells where this machine has the controllers.
type Layout struct {
	Memory, CPU, PIDs Version
	OwnMount          bool // cgroup2 wasn't mounted anywhere, so that the driver holds a detached mount of its own
}

// ControllerError says that a controller is to be had neither through v2 nor through v1.
type ControllerError struct {
	Controller string
	Err        error // why v2 doesn't give it
}

func (e *ControllerError) Error() string {
	return fmt.Sprintf("cgroup controller %s: no v1 mount, and cgroup2 doesn't give it: %v", e.Controller, e.Err)
}

func (e *ControllerError) Unwrap() error { return e.Err }

// errNoController is why v2 doesn't give a controller that isn't in its list.
var errNoController = errors.New("not in cgroup.controllers")

// mountPoint is a mount of a cgroup hierarchy.
type mountPoint struct {
	path    string
	v2      bool
	options []string // of the superblock: v1 names its controllers there
}

// parseMounts finds the cgroup mounts in the text of /proc/self/mountinfo.
func parseMounts(r io.Reader) ([]mountPoint, error) {
	var found []mountPoint
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 1<<20) // overlay options may be long
	for sc.Scan() {
		// 36 35 98:0 /root /mount/point options [optional...] - type source super-options
		before, after, ok := strings.Cut(sc.Text(), " - ")
		head, tail := strings.Fields(before), strings.Fields(after)
		if !ok || len(head) < 5 || len(tail) < 3 || tail[0] != "cgroup" && tail[0] != "cgroup2" {
			continue
		}
		path, err := unescape(head[4])
		if err != nil {
			return nil, fmt.Errorf("mountinfo: %w", err)
		}
		found = append(found, mountPoint{path: path, v2: tail[0] == "cgroup2", options: strings.Split(tail[2], ",")})
	}
	return found, sc.Err()
}

// unescape undoes the kernel's way to write blanks and backslashes in mountinfo: \040.
func unescape(s string) (string, error) {
	var b strings.Builder
	for {
		plain, rest, ok := strings.Cut(s, `\`)
		b.WriteString(plain)
		if !ok {
			return b.String(), nil
		}
		if len(rest) < 3 {
			return "", fmt.Errorf("bad escape in %q", s)
		}
		n, err := strconv.ParseUint(rest[:3], 8, 8)
		if err != nil {
			return "", fmt.Errorf("bad escape in %q: %w", s, err)
		}
		b.WriteByte(byte(n))
		s = rest[3:]
	}
}

func systemMounts() ([]mountPoint, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseMounts(f)
}

// roots are the tops of the hierarchies. An entry of at that is -1 is a controller without a v1 mount.
type roots struct {
	at  Dirs
	own bool
}

func openRoots(mounts []mountPoint) (roots, error) {
	r := roots{at: Dirs{V2: -1, Memory: -1, CPU: -1, PIDs: -1}}
	open := func(to *int, path string) (err error) {
		if *to < 0 {
			if *to, err = openDir(unix.AT_FDCWD, path); err != nil {
				return fmt.Errorf("open %s: %w", path, err)
			}
		}
		return nil
	}
	for _, m := range mounts {
		var err error
		switch {
		case m.v2:
			err = open(&r.at.V2, m.path)
		case slices.Contains(m.options, "memory"):
			err = open(&r.at.Memory, m.path)
		case slices.Contains(m.options, "cpu"):
			err = open(&r.at.CPU, m.path)
		case slices.Contains(m.options, "pids"):
			err = open(&r.at.PIDs, m.path)
		}
		if err != nil {
			return roots{}, errors.Join(err, r.at.close())
		}
	}
	if r.at.V2 < 0 {
		var err error
		if r.at.V2, err = mountV2(); err != nil {
			return roots{}, errors.Join(err, r.at.close())
		}
		r.own = true
	}
	return r, nil
}

// mountV2 makes a detached mount of the v2 hierarchy, for hosts that mount only v1. Every mount shows the same tree.
func mountV2() (int, error) {
	ctx, err := unix.Fsopen("cgroup2", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen cgroup2: %w", err)
	}
	defer unix.Close(ctx)
	if err := unix.FsconfigCreate(ctx); err != nil {
		return -1, fmt.Errorf("create cgroup2 superblock: %w", err)
	}
	fd, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return -1, fmt.Errorf("mount cgroup2: %w", err)
	}
	return fd, nil
}

// choose decides for each controller whether v2 gives it, by enabling it there, and closes the v1 roots that aren't
// needed. The layout it returns has no zero in it.
func (r *roots) choose() (Layout, error) {
	l := Layout{OwnMount: r.own}
	for _, c := range r.at.controllers(&l) {
		err := enable(r.at.V2, ".", c.name)
		switch {
		case err == nil:
			*c.version = 2
			if *c.fd >= 0 {
				unix.Close(*c.fd)
				*c.fd = -1
			}
		case *c.fd >= 0:
			*c.version = 1
		default:
			return Layout{}, &ControllerError{Controller: c.name, Err: err}
		}
	}
	return l, nil
}

// controller ties the name of a controller to its place in a Dirs and in a Layout.
type controller struct {
	name    string
	fd      *int
	version *Version
}

func (d *Dirs) controllers(l *Layout) []controller {
	return []controller{{"memory", &d.Memory, &l.Memory}, {"cpu", &d.CPU, &l.CPU}, {"pids", &d.PIDs, &l.PIDs}}
}

// enable gives the children of a v2 group a controller.
func enable(dir int, path, name string) error {
	b, err := readFile(dir, path+"/cgroup.controllers")
	if err != nil {
		return err
	}
	if !slices.Contains(strings.Fields(string(b)), name) {
		return errNoController
	}
	if b, err = readFile(dir, path+"/cgroup.subtree_control"); err != nil {
		return err
	}
	if slices.Contains(strings.Fields(string(b)), name) {
		return nil
	}
	return writeFile(dir, path+"/cgroup.subtree_control", "+"+name)
}
