package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/internal/aetherbin"
	"github.com/dsec-io/dsec/internal/linux/limits"
)

// What a machine with thousands of sandboxes needs. Less works, with fewer.
const (
	wantNoFile   = 65536
	wantFreeDisk = 1 << 30
	// kvmCreateVM and kvmCreateVCPU are ioctls of linux/kvm.h.
	kvmCreateVM   = 0xae01
	kvmCreateVCPU = 0xae41
)

// tryLimits makes a probe of the limits of the kernel whose names begin with one of these.
func tryLimits(prefixes ...string) func(context.Context, *machine) (string, error) {
	return func(context.Context, *machine) (string, error) {
		all, err := limits.Read()
		if err != nil {
			return "", err
		}
		var found, fix []string
		for _, l := range all {
			if !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(l.Name, p) }) {
				continue
			}
			found = append(found, fmt.Sprintf("%s is %d", l.Name, l.Have))
			if l.Low() {
				fix = append(fix, fmt.Sprintf("sysctl -w %s=%d", l.Name, l.Want))
			}
		}
		switch {
		case len(found) == 0:
			return "", fmt.Errorf("this kernel has no %s", strings.Join(prefixes, ", "))
		case len(fix) > 0:
			return strings.Join(found, ", "), &limitedError{strings.Join(fix, " && ") + "   # dsec dev raises what isn't zero by itself"}
		}
		return strings.Join(found, ", "), nil
	}
}

func tryNoFile(context.Context, *machine) (string, error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return "", err
	}
	found := fmt.Sprintf("up to %d", l.Max)
	if l.Max >= wantNoFile {
		return found, nil
	}
	if !mayRaiseNoFile(l) {
		return found + ", and this process may not raise it", &limitedError{"whoever starts this container or session must allow more: docker run --ulimit nofile=1048576:1048576"}
	}
	return found, &limitedError{"ulimit -n 1048576   # LimitNOFILE=1048576 in a service"}
}

// mayRaiseNoFile tries whether the limit can be raised, for an instant.
func mayRaiseNoFile(now unix.Rlimit) bool {
	more := unix.Rlimit{Cur: now.Cur, Max: 1 << 20}
	if unix.Prlimit(0, unix.RLIMIT_NOFILE, &more, nil) != nil {
		return false
	}
	return unix.Prlimit(0, unix.RLIMIT_NOFILE, &now, nil) == nil
}

func tryAether(context.Context, *machine) (string, error) {
	b, err := aetherbin.Program()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("embedded, %d KiB", len(b)>>10), nil
}

func tryDataDir(_ context.Context, m *machine) (string, error) {
	if m.dir == "" {
		return "", fmt.Errorf("no folder can be made in %s: %w", existingParent(m.opts.DataDir), m.noDir)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(m.dir, &st); err != nil {
		return "", err
	}
	free := int64(st.Bavail) * st.Bsize
	found := fmt.Sprintf("%s: %s, %d MiB free", existingParent(m.opts.DataDir), fsName(m.dir), free>>20)
	if free < wantFreeDisk {
		return found, &limitedError{"free some space, or name another folder with --data"}
	}
	return found, nil
}

// tryImages lists the images of the data folder and of the machine.
func tryImages(_ context.Context, m *machine) (string, error) {
	var names []string
	for _, store := range []string{filepath.Join(m.opts.DataDir, "images"), m.opts.ImageStore} {
		entries, err := os.ReadDir(store)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		for _, e := range entries {
			if _, err := os.Stat(filepath.Join(store, e.Name(), "image.erofs")); err == nil {
				names = append(names, e.Name())
			}
		}
	}
	if len(names) == 0 {
		return "", fmt.Errorf("none in %s", m.opts.ImageStore)
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", "), nil
}

// tryKVM makes a virtual machine with a processor. That proves a hypervisor, not that every kernel boots in it.
func tryKVM(context.Context, *machine) (string, error) {
	dev, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer dev.Close()
	vm, err := unix.IoctlRetInt(int(dev.Fd()), kvmCreateVM)
	if err != nil {
		return "", fmt.Errorf("make a virtual machine: %w", err)
	}
	defer unix.Close(vm)
	cpu, err := unix.IoctlRetInt(vm, kvmCreateVCPU)
	if err != nil {
		return "", fmt.Errorf("make a virtual processor: %w", err)
	}
	return "a virtual machine with a processor can be made; no kernel was booted in it", unix.Close(cpu)
}
