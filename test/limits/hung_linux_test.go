package limits

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
	"golang.org/x/sys/unix"
)

// hungFiles serves a file system by FUSE whose one file, hang, never answers a read: who reads it waits where no signal
// reaches, not even SIGKILL, until the device is closed.
type hungFiles struct {
	dev  *os.File
	dir  string
	read chan struct{} // closed at the first read
}

// Numbers of linux/fuse.h.
const (
	fuseLookup, fuseGetattr, fuseOpen, fuseRead, fuseInit = 1, 3, 14, 15, 26
	fuseInHeader, fuseOutHeader                           = 40, 16
)

func mountHungFiles(t *testing.T) *hungFiles {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	h := &hungFiles{dev: os.NewFile(uintptr(fd), "fuse"), dir: t.TempDir(), read: make(chan struct{})}
	options := "fd=" + strconv.Itoa(fd) + ",rootmode=40000,user_id=0,group_id=0,allow_other"
	if err := unix.Mount("hung", h.dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Unmount(h.dir, unix.MNT_DETACH)
		h.letGo()
	})
	go h.serve()
	return h
}

// letGo ends the connection: every request fails, and who waits goes on.
func (h *hungFiles) letGo() { _ = h.dev.Close() }

func (h *hungFiles) serve() {
	in := make([]byte, 1<<20)
	fd := int(h.dev.Fd())
	for {
		n, err := unix.Read(fd, in)
		if err != nil || n < fuseInHeader {
			return
		}
		var body []byte
		refused := int32(0)
		switch binary.NativeEndian.Uint32(in[4:]) {
		case fuseInit:
			body = make([]byte, 64)
			binary.NativeEndian.PutUint32(body, 7)
			binary.NativeEndian.PutUint32(body[4:], 31)
			binary.NativeEndian.PutUint32(body[20:], 1<<16) // max_write
		case fuseGetattr:
			body = append(make([]byte, 16), attributes(binary.NativeEndian.Uint64(in[16:]))...)
		case fuseLookup:
			body = append(make([]byte, 40), attributes(2)...)
			body[0] = 2
		case fuseOpen:
			body = make([]byte, 16)
		case fuseRead:
			close(h.read)
			return // and nobody answers this one, or any other
		default:
			refused = -int32(unix.ENOSYS)
		}
		out := make([]byte, fuseOutHeader, fuseOutHeader+len(body))
		binary.NativeEndian.PutUint32(out, uint32(fuseOutHeader+len(body)))
		binary.NativeEndian.PutUint32(out[4:], uint32(refused))
		copy(out[8:], in[8:16])
		if _, err := unix.Write(fd, append(out, body...)); err != nil {
			return
		}
	}
}

// attributes are those of the root (1) or of the file.
func attributes(node uint64) []byte {
	a := make([]byte, 88)
	binary.NativeEndian.PutUint64(a, node)
	binary.NativeEndian.PutUint64(a[8:], 4096) // size
	mode := uint32(unix.S_IFREG | 0o444)
	if node == 1 {
		mode = unix.S_IFDIR | 0o755
	}
	binary.NativeEndian.PutUint32(a[60:], mode)
	binary.NativeEndian.PutUint32(a[64:], 1) // links
	return a
}

// bind shows the file system in a sandbox.
func (h *hungFiles) bind(t *testing.T, n *testbed.Node, sb *libdsec.Sandbox, at string) {
	t.Helper()
	pid := initOf(t, n, sb)
	done := make(chan error, 1) // one result
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread, which is in another place then, ends
		done <- func() error {
			tree, err := unix.OpenTree(unix.AT_FDCWD, h.dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
			if err != nil {
				return err
			}
			defer unix.Close(tree)
			ns, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(ns)
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return err
			}
			if err := unix.Setns(ns, unix.CLONE_NEWNS); err != nil {
				return err
			}
			return unix.MoveMount(tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestCase65WhatNothingCanKill: a process waits where SIGKILL doesn't reach it. The sandbox can't be gone before it is,
// and the node doesn't say so: it keeps the room that is taken, works on for everybody else, and when the wait is over
// the rest goes by itself. With DSEC_TEST_LONG=1 the wait is longer than a stop is patient.
func TestCase65WhatNothingCanKill(t *testing.T) {
	n := testbed.Start(t, testbed.Options{Pool: -1})
	sb, neighbour := n.Create(t, small(64, 64)), n.Create(t, small(64, 64))
	testbed.Output(t, sb, "mkdir /hung")
	h := mountHungFiles(t)
	h.bind(t, n, sb, "/hung")
	if _, err := sb.Start(t.Context(), libdsec.Cmd{Argv: []string{"cat", "/hung/hang"}}, libdsec.StartOptions{Detach: true}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-h.read:
	case <-time.After(hang):
		t.Fatal("nobody reads")
	}
	type answer struct {
		info api.Sandbox
		err  error
	}
	stopped := make(chan answer, 1) // one answer
	go func() {
		info, err := n.Client.Sandbox(sb.ID()).Stop(t.Context())
		stopped <- answer{info, err}
	}()
	testbed.Until(t, hang, "it is being stopped", func() bool {
		info, err := sb.Refresh(t.Context())
		return err == nil && info.State == api.StateStopping
	})
	for range 10 {
		if got := testbed.Output(t, neighbour, "echo works"); got != "works" {
			t.Errorf("the neighbour says %q", got)
		}
	}
	if len(groups(t, n, sb)) == 0 {
		t.Error("its groups are gone, with a process in them")
	}
	var a answer
	if long() {
		a = <-stopped
		if a.err != nil || a.info.State != api.StateFailed || !strings.Contains(a.info.Reason, "stop") {
			t.Errorf("stopped: %+v, %v", a.info, a.err)
		}
		h.letGo()
	} else {
		select {
		case a = <-stopped:
			t.Errorf("it was stopped with a process in it: %+v, %v", a.info, a.err)
		default:
		}
		h.letGo()
		if a = <-stopped; a.err != nil || a.info.State != api.StateStopped {
			t.Errorf("stopped: %+v, %v", a.info, a.err)
		}
	}
	testbed.Until(t, hang, "nothing of it is left", func() bool {
		upper, err := filepath.Glob(n.Dir + "/upper/" + sb.ID())
		return err == nil && len(upper) == 0 && len(groups(t, n, sb)) == 0
	})
}
