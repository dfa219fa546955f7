package container

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/dsec-io/dsec/internal/fault"
	"github.com/dsec-io/dsec/internal/linux/mount"
	"golang.org/x/sys/unix"
)

// upper is the folder of a sandbox's own files: u, the overlay's upper layer, and w, its work folder.
type upper struct{ dir string }

// topDir is FS_TOPDIR_FL of linux/fs.h.
const topDir = 0x20000

// spread asks the file system to keep the folders in dir apart. ext4 doesn't give out an inode again within seconds of
// its removal, and looks at every one of those in a group of inodes for one that it may: with thousands of short lives in
// one group that was a third of all work. Other file systems don't know the flag, and don't need it.
func spread(dir string) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if flags, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS); err == nil && flags&topDir == 0 {
		_ = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, flags|topDir)
	}
}

// make makes the folder. Both parts belong to the sandbox's root.
func (u upper) make(base uint32, faults *fault.Set) error {
	for _, d := range []string{u.dir, u.dir + "/u", u.dir + "/w"} {
		if err := faults.At("create:upper"); err != nil {
			return fmt.Errorf("make upper: %w", err)
		}
		mode := os.FileMode(0o755)
		if d == u.dir {
			mode = 0o700
		}
		if err := os.Mkdir(d, mode); err != nil {
			return fmt.Errorf("make upper: %w", err)
		}
	}
	for _, d := range []string{"/u", "/w"} {
		if err := os.Lchown(u.dir+d, int(base), int(base)); err != nil {
			return fmt.Errorf("give upper to the sandbox: %w", err)
		}
	}
	return nil
}

// overlay mounts upper over the image over the skeleton, detached. The layers are named by descriptors, because the
// tenant reads the names in its mountinfo.
func (u upper) overlay(image, skeleton int) (int, error) {
	dir, err := unix.Open(u.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open upper: %w", err)
	}
	defer unix.Close(dir)
	// No devices: an image may hold the node of a disk. The few that a sandbox gets are bound from elsewhere.
	return mount.New("overlay", unix.MOUNT_ATTR_NODEV,
		mount.Option{Key: "lowerdir+", Value: mount.FDPath(image)},
		mount.Option{Key: "lowerdir+", Value: mount.FDPath(skeleton)},
		mount.Option{Key: "upperdir", Value: mount.FDPath(dir) + "/u"},
		mount.Option{Key: "workdir", Value: mount.FDPath(dir) + "/w"},
		mount.Option{Key: "volatile"})
}

// identify makes the sandbox know its hostname: /etc/hosts names it (sudo and others look it up) and /etc/hostname is
// it. What the image says already is left alone; for the default name the skeleton has both files.
func (u upper) identify(image int, hostname string) error {
	etc, err := openBeneath(image, "etc", unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) {
		if hostname == defaultHostname {
			return nil
		}
		return errors.Join(
			u.etcFile(nil, "hosts", hostsFile(hostname)),
			u.etcFile(nil, "hostname", hostname+"\n"))
	}
	if err != nil {
		return nil // a link or a file: the image wants it otherwise
	}
	defer unix.Close(etc)
	var st unix.Stat_t
	if err := unix.Fstat(etc, &st); err != nil {
		return fmt.Errorf("stat the image's etc: %w", err)
	}
	hosts, have := readBeneath(etc, "hosts")
	switch {
	case !have && hostname != defaultHostname:
		err = u.etcFile(&st, "hosts", hostsFile(hostname))
	case have && !namesHost(hosts, hostname):
		err = u.etcFile(&st, "hosts", strings.TrimRight(hosts, "\n")+"\n127.0.0.1\tlocalhost "+hostname+"\n")
	}
	name, have := readBeneath(etc, "hostname")
	if have && strings.TrimSpace(name) != hostname || !have && hostname != defaultHostname {
		err = errors.Join(err, u.etcFile(&st, "hostname", hostname+"\n"))
	}
	return err
}

// namesHost tells if a hosts file has an address for the name.
func namesHost(hosts, name string) bool {
	for line := range strings.Lines(hosts) {
		line, _, _ = strings.Cut(line, "#")
		for i, word := range strings.Fields(line) {
			if i > 0 && word == name {
				return true
			}
		}
	}
	return false
}

// etcFile writes a file into the upper's etc, which it makes like the image's (st) or as root's.
func (u upper) etcFile(st *unix.Stat_t, name, content string) error {
	etc := filepath.Join(u.dir, "u/etc")
	mode, uid, gid := os.FileMode(0o755), -1, -1
	owner, err := os.Lstat(filepath.Join(u.dir, "u"))
	if err != nil {
		return fmt.Errorf("stat upper: %w", err)
	}
	if sys, ok := owner.Sys().(*syscall.Stat_t); ok {
		uid, gid = int(sys.Uid), int(sys.Gid)
	}
	dirUID, dirGID := uid, gid
	if st != nil {
		mode, dirUID, dirGID = os.FileMode(st.Mode&0o777), int(st.Uid), int(st.Gid)
	}
	if err := os.Mkdir(etc, 0o700); err == nil {
		err = errors.Join(os.Chmod(etc, mode), os.Lchown(etc, dirUID, dirGID))
		if err != nil {
			return fmt.Errorf("make etc: %w", err)
		}
	} else if !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make etc: %w", err)
	}
	file := filepath.Join(etc, name)
	if err := errors.Join(os.WriteFile(file, []byte(content), 0o600), os.Chmod(file, 0o644), os.Lchown(file, uid, gid)); err != nil {
		return fmt.Errorf("write etc/%s: %w", name, err)
	}
	return nil
}

// openBeneath opens a path of an image without following links, out of it or within.
func openBeneath(dir int, path string, flags uint64) (int, error) {
	return unix.Openat2(dir, path, &unix.OpenHow{
		Flags:   flags | unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// readBeneath reads a small file; a link or other thing in its place counts as there and saying nothing.
func readBeneath(dir int, path string) (string, bool) {
	fd, err := openBeneath(dir, path, 0)
	if err != nil {
		return "", !errors.Is(err, unix.ENOENT)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return "", true
	}
	const most = 64 << 10
	b, err := io.ReadAll(io.LimitReader(f, most))
	return string(b), err == nil
}
