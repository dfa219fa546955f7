package bench

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/dsec-io/dsec/internal/spawn"
	"golang.org/x/sys/unix"
)

// Names in the image that is measured with: the machine's busybox image, and two programs without a libc.
const (
	sourceImage = "busybox"
	benchImage  = "dsec-bench"
	tinyTrue    = "/bench/true"  // exits with 0 and does nothing else
	tinyPause   = "/bench/pause" // what the containers of peers run
	realTrue    = "/bin/true"    // busybox's
)

// place is a mount namespace of its own, with the image mounted once by EROFS. The unified cgroup hierarchy isn't
// mounted there: crun takes a machine that has both for one with a wrong set-up.
type place struct {
	ns    int
	root  string // where the image is mounted, in the place only
	image string // the image's file
}

// openPlace makes the image from the busybox image, and the place.
func openPlace(ctx context.Context, work, source string) (*place, error) {
	p := &place{ns: -1, root: filepath.Join(work, "root"), image: filepath.Join(work, "image.erofs")}
	made := make(chan error, 1) // one result
	go func() {
		// Never unlocked: the thread ends with the goroutine, because its mounts aren't the process's.
		runtime.LockOSThread()
		made <- p.build(ctx, work, source)
	}()
	if err := <-made; err != nil {
		p.close()
		return nil, fmt.Errorf("prepare the bench image: %w", err)
	}
	return p, nil
}

func (p *place) build(ctx context.Context, work, source string) error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	_ = unix.Unmount("/sys/fs/cgroup/unified", unix.MNT_DETACH) // where there is none, all the better
	from, tree := filepath.Join(work, "source"), filepath.Join(work, "tree")
	for _, dir := range []string{from, p.root} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(work, 0o755); err != nil { // the users of a container have to get to its root
		return err
	}
	if err := unix.Mount(source, from, "erofs", unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("mount %s: %w (run `make setup`)", source, err)
	}
	if out, err := exec.CommandContext(ctx, "cp", "-a", from, tree).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the image: %w: %s", err, out)
	}
	if err := addPrograms(tree); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "mkfs.erofs", "--quiet", "-T0", p.image, tree).CombinedOutput(); err != nil {
		return fmt.Errorf("mkfs.erofs: %w: %s", err, out)
	}
	if err := unix.Mount(p.image, p.root, "erofs", unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("mount the image: %w", err)
	}
	if err := unix.Unmount(from, unix.MNT_DETACH); err != nil {
		return err
	}
	var err error
	p.ns, err = unix.Open("/proc/thread-self/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	return err
}

func addPrograms(tree string) error {
	pause, err := spawn.TinyInit(runtime.GOARCH)
	if err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(tree, "bench"), 0o755); err != nil {
		return err
	}
	for name, text := range map[string][]byte{tinyPause: pause, tinyTrue: trueELF(runtime.GOARCH)} {
		if err := os.WriteFile(filepath.Join(tree, name), text, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// enter moves the calling goroutine, with a thread of its own from now on, into the place.
func (p *place) enter() error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	return unix.Setns(p.ns, unix.CLONE_NEWNS)
}

func (p *place) close() { _ = unix.Close(p.ns) }

// offer puts the image into a store, until the returned function is called.
func (p *place) offer(store string) (withdraw func() error, err error) {
	dir := filepath.Join(store, benchImage)
	withdraw = func() error { return os.RemoveAll(dir) }
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	b, err := os.ReadFile(p.image)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "image.erofs"), b, 0o644)
	}
	if err == nil {
		b, err = json.Marshal(map[string]any{"env": []string{"PATH=/bin:/usr/bin"}, "digest": fmt.Sprintf("sha256:%x", sha256.Sum256(b))})
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "config.json"), b, 0o644)
	}
	return withdraw, err
}

// trueELF is a program that exits with 0, in as few bytes as the kernel takes: what is measured with it is the way to a
// command and back, not the start of a C library.
func trueELF(arch string) []byte {
	const (
		base    = 0x400000
		headers = 64 + 56
	)
	machine, text := uint16(62), []byte{
		0xB8, 231, 0, 0, 0, // mov eax, exit_group
		0x31, 0xFF, // xor edi, edi
		0x0F, 0x05, // syscall
	}
	le := binary.LittleEndian
	if arch == "arm64" {
		machine, text = 183, nil
		for _, code := range []uint32{0xD2800000, 0xD2800000 | 94<<5 | 8, 0xD4000001} { // x0 = 0, x8 = exit_group, svc
			text = le.AppendUint32(text, code)
		}
	}
	b := make([]byte, headers, headers+len(text))
	copy(b, "\x7fELF\x02\x01\x01") // 64 bit, little endian, version 1
	le.PutUint16(b[16:], 2)        // executable
	le.PutUint16(b[18:], machine)
	le.PutUint32(b[20:], 1)
	le.PutUint64(b[24:], base+headers) // entry
	le.PutUint64(b[32:], 64)           // program headers
	le.PutUint16(b[52:], 64)
	le.PutUint16(b[54:], 56)
	le.PutUint16(b[56:], 1)
	p := b[64:]
	le.PutUint32(p, 1)     // PT_LOAD
	le.PutUint32(p[4:], 5) // read, execute
	le.PutUint64(p[16:], base)
	le.PutUint64(p[24:], base)
	le.PutUint64(p[32:], uint64(headers+len(text)))
	le.PutUint64(p[40:], uint64(headers+len(text)))
	le.PutUint64(p[48:], 0x10000)
	return append(b, text...)
}
