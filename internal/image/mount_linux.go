package image

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// mountFile mounts an EROFS image and returns the detached mount, with looped set if that took a loop device: kernels
// before 6.12 can't mount a file itself, and some file systems can't carry one.
func mountFile(f *os.File, forceLoop bool) (fd int, looped bool, err error) {
	if !forceLoop {
		// By descriptor, so that the file that was looked at is the one that gets mounted, and that no path of the host
		// becomes the mount's visible source.
		fd, err = mountSource(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
		refused := errors.Is(err, unix.ENOTBLK) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
		if !refused {
			return fd, false, err
		}
	}
	loop, loopErr := attachLoop(f)
	if loopErr != nil {
		return -1, false, errors.Join(err, loopErr)
	}
	defer loop.Close() // the mount holds it from here on; the kernel detaches the file with the last user
	fd, loopErr = mountSource(loop.Name())
	if loopErr != nil {
		return -1, false, errors.Join(err, loopErr)
	}
	return fd, true, nil
}

func mountSource(source string) (int, error) {
	ctx, err := unix.Fsopen("erofs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen erofs: %w", err)
	}
	defer unix.Close(ctx)
	if err := unix.FsconfigSetString(ctx, "source", source); err != nil {
		return -1, fmt.Errorf("set source: %w%s", err, complaints(ctx))
	}
	// A read-only loop device is refused without it.
	if err := unix.FsconfigSetFlag(ctx, "ro"); err != nil {
		return -1, fmt.Errorf("set ro: %w%s", err, complaints(ctx))
	}
	if err := unix.FsconfigCreate(ctx); err != nil {
		return -1, fmt.Errorf("mount erofs: %w%s", err, complaints(ctx))
	}
	fd, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return -1, fmt.Errorf("fsmount erofs: %w", err)
	}
	return fd, nil
}

// complaints reads what the file system has to say about an error.
func complaints(ctx int) string {
	var s strings.Builder
	b := make([]byte, 1024)
	for {
		n, err := unix.Read(ctx, b) // one message each, then ENODATA
		if err != nil || n <= 0 {
			return s.String()
		}
		s.WriteString("; " + strings.TrimSpace(string(b[:n])))
	}
}

// attachLoop puts a read-only loop device over f.
func attachLoop(f *os.File) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for range 20 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		dev, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		c := unix.LoopConfig{Fd: uint32(f.Fd())}
		c.Info.Flags = unix.LO_FLAGS_READ_ONLY | unix.LO_FLAGS_AUTOCLEAR
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &c)
		if err == nil {
			return dev, nil
		}
		dev.Close()
		if !errors.Is(err, unix.EBUSY) { // somebody else took it in between
			return nil, fmt.Errorf("configure %s: %w", dev.Name(), err)
		}
	}
	return nil, fmt.Errorf("find a free loop device: %w", unix.EBUSY)
}

// cloneMount makes a detached copy of a detached mount, with owners mapped by the user namespace.
func cloneMount(mount, userns int) (int, error) {
	fd, err := unix.OpenTree(mount, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return -1, fmt.Errorf("clone mount: %w", err)
	}
	if err := mapOwners(fd, userns); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func mapOwners(mount, userns int) error {
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns)}
	if err := unix.MountSetattr(mount, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("map the mount's owners: %w", err)
	}
	return nil
}

// The few fields of the EROFS superblock that are looked at here; the kernel checks the rest.
const (
	superOffset = 1024
	superSize   = 128
	superMagic  = 0xe0f5e1e2
)

// checkSuper looks for what the kernel would only find when a command reads the missing part: a file that is shorter
// than its superblock says, as an interrupted copy leaves it.
func checkSuper(f *os.File, size int64) error {
	var b [superSize]byte
	if _, err := f.ReadAt(b[:], superOffset); err != nil {
		return fmt.Errorf("read superblock: %w", err)
	}
	if m := binary.LittleEndian.Uint32(b[:]); m != superMagic {
		return fmt.Errorf("not an EROFS image: magic %#x", m)
	}
	bits, blocks := b[12], int64(binary.LittleEndian.Uint32(b[36:]))
	if bits < 9 || bits > 16 {
		return fmt.Errorf("block size of 2^%d", bits)
	}
	if want := blocks << bits; size < want {
		return fmt.Errorf("truncated: %d of %d bytes", size, want)
	}
	return nil
}

func closeIfOpen(fd int) {
	if fd >= 0 {
		unix.Close(fd)
	}
}
