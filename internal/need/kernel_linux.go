package need

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Feature is something that the kernel can do from a version on. Probe tries it; the version only decides what a failed
// probe means.
type Feature struct {
	Name         string
	Major, Minor int
	Probe        func() error
}

// Kernel returns when the feature's probe succeeds. A failed probe skips the test on a kernel older than the feature
// and fails it on any other, so that no skip can hide a broken probe.
func Kernel(t testing.TB, f Feature) {
	t.Helper()
	err := f.Probe()
	if err == nil {
		return
	}
	release, older := olderThan(t, f.Major, f.Minor)
	if !older {
		t.Fatalf("kernel %s should have %s (since %d.%d): %v", release, f.Name, f.Major, f.Minor, err)
	}
	skip(t, f.Name, fmt.Sprintf("kernel %s is older than %d.%d: %v", release, f.Major, f.Minor, err))
}

// kvmCreateVM and kvmCreateVCPU are ioctls of linux/kvm.h.
const (
	kvmCreateVM   = 0xae01
	kvmCreateVCPU = 0xae41
)

// KVM skips the test unless a virtual machine with one processor can be made. The device node alone proves nothing:
// it may be there without a hypervisor behind it.
func KVM(t testing.TB) {
	t.Helper()
	if err := probeKVM(); err != nil {
		skip(t, "kvm", err.Error())
	}
}

func probeKVM() error {
	dev, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer dev.Close()
	vm, err := unix.IoctlRetInt(int(dev.Fd()), kvmCreateVM)
	if err != nil {
		return fmt.Errorf("create vm: %w", err)
	}
	defer unix.Close(vm)
	vcpu, err := unix.IoctlRetInt(vm, kvmCreateVCPU)
	if err != nil {
		return fmt.Errorf("create vcpu: %w", err)
	}
	return unix.Close(vcpu)
}

// olderThan compares the running kernel's release with a version.
func olderThan(t testing.TB, major, minor int) (release string, older bool) {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatalf("uname: %v", err)
	}
	release = unix.ByteSliceToString(u.Release[:])
	var haveMajor, haveMinor int
	if _, err := fmt.Sscanf(release, "%d.%d", &haveMajor, &haveMinor); err != nil {
		t.Fatalf("kernel release %q: %v", release, err)
	}
	return release, haveMajor < major || haveMajor == major && haveMinor < minor
}
