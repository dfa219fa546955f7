package caps

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDefaultIsItsMask(t *testing.T) {
	var mask uint64
	for _, c := range Default() {
		mask |= 1 << c
	}
	if mask != DefaultMask || len(Default()) != 14 {
		t.Errorf("Default() = %d capabilities, mask %#x; want 14, %#x", len(Default()), mask, DefaultMask)
	}
}

func TestDropCoversAllThatTheKernelKnows(t *testing.T) {
	b, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	if err != nil {
		t.Fatal(err)
	}
	want, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	last, err := Last()
	if err != nil || int(last) != want {
		t.Fatalf("Last() = %d, %v; cap_last_cap says %d", last, err, want)
	}
	drop, err := Drop()
	if err != nil {
		t.Fatal(err)
	}
	seen := DefaultMask
	for _, c := range drop {
		if seen&(1<<c) != 0 {
			t.Errorf("%v is dropped twice, or is one of the default set", c)
		}
		seen |= 1 << c
	}
	if want := uint64(1)<<(want+1) - 1; seen != want {
		t.Errorf("default and drop together are %#x, want %#x", seen, want)
	}
}

func TestNames(t *testing.T) {
	for c, want := range map[Cap]string{
		unix.CAP_CHOWN: "CAP_CHOWN", unix.CAP_SYS_ADMIN: "CAP_SYS_ADMIN", unix.CAP_SETFCAP: "CAP_SETFCAP",
		unix.CAP_CHECKPOINT_RESTORE: "CAP_CHECKPOINT_RESTORE", unix.CAP_SYSLOG: "CAP_SYSLOG",
		unix.CAP_MKNOD: "CAP_MKNOD", unix.CAP_NET_RAW: "CAP_NET_RAW", 63: "CAP_63",
	} {
		if got := c.String(); got != want {
			t.Errorf("Cap(%d).String() = %q, want %q", uint8(c), got, want)
		}
	}
}
