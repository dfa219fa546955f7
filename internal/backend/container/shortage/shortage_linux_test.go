package shortage

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/idrange"
	"github.com/dsec-io/dsec/internal/need"
	"github.com/dsec-io/dsec/internal/spawn"
	"golang.org/x/sys/unix"
)

// shortEnv has the test binary meet a limit in a user namespace of its own, whose limits bind nobody else.
const shortEnv = "SHORTAGE_TEST_OF"

// TestShortages has the kernel refuse what a create needs, and compares what a client is told.
func TestShortages(t *testing.T) {
	if limit := os.Getenv(shortEnv); limit != "" {
		meetLimit(t, limit)
		return
	}
	need.Root(t)
	for limit, want := range map[string]string{
		"user-namespaces": "the machine has no user namespaces (user.max_user_namespaces) left",
		"net-namespaces":  "the machine has no namespaces (user.max_*_namespaces) left",
		"nofile":          "the machine has no descriptors for the edge (RLIMIT_NOFILE) left",
	} {
		t.Run(limit, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestShortages$", "-test.v")
			cmd.Env = append(os.Environ(), shortEnv+"="+limit)
			all := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1 << 31}}
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: all, GidMappings: all}
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "no_capacity 503 1000: "+want) {
				t.Errorf("%v, want %q in\n%s", err, want, out)
			}
		})
	}
}

func meetLimit(t *testing.T, limit string) {
	if name, ok := strings.CutSuffix(limit, "-namespaces"); ok {
		if err := os.WriteFile("/proc/sys/user/max_"+name+"_namespaces", []byte("0"), 0); err != nil {
			t.Fatal(err)
		}
	} else {
		none := unix.Rlimit{Cur: 0, Max: 0}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
			t.Fatal(err)
		}
	}
	var x, c spawn.Script
	var err error
	switch limit {
	case "net-namespaces":
		c.Exit()
		x.Clone(unix.CLONE_NEWNET, &c).As("clone with namespaces")
	case "user-namespaces":
		x.Call(unix.SYS_UNSHARE, unix.CLONE_NEWUSER).As("unshare the user namespace")
	default:
		_, err = os.Open(os.DevNull)
	}
	if err == nil {
		x.Exit()
		out, rerr := spawn.Run(spawn.Attr{Cgroup: -1, Watch: &spawn.Watch{}}, &x)
		if err = rerr; out.Failed != nil {
			err = out.Failed
		}
	}
	e, ok := errors.AsType[*api.Error](Refusal(fmt.Errorf("make: %w", err)))
	if !ok {
		t.Fatalf("refused with %v", err)
	}
	fmt.Printf("%s %d %d: %s\n", e.Code, e.HTTP, e.RetryMS, e.Detail)
}

// TestOtherRefusalsStay: what isn't a shortage is told as what it is.
func TestOtherRefusalsStay(t *testing.T) {
	typed := api.Errorf(api.CodeNoSuchImage, "no image")
	disk := &os.PathError{Op: "mkdir", Path: "upper", Err: unix.ENOSPC}
	for _, err := range []error{nil, typed, disk, errors.New("broken"), &spawn.Failure{NR: unix.SYS_MOUNT, Errno: unix.ENOSPC}, &spawn.Failure{NR: unix.SYS_SETRESUID, Errno: unix.EAGAIN}} {
		if got := Refusal(err); !errors.Is(got, err) || errors.As(got, new(*api.Error)) != errors.Is(err, typed) {
			t.Errorf("%v became %v", err, got)
		}
	}
	for _, err := range []error{idrange.ErrExhausted, unix.ENFILE, unix.ENOMEM, &spawn.Failure{NR: unix.SYS_CLONE, Errno: unix.EAGAIN}} {
		if got := Refusal(fmt.Errorf("start: %w", err)); !api.IsCode(got, api.CodeNoCapacity) {
			t.Errorf("%v became %v", err, got)
		}
	}
}
