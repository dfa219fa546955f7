package knobs

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/internal/need"
)

func testKnobs(t testing.TB) *Knobs {
	k := New()
	t.Cleanup(k.Close)
	return k
}

// TestKnobsAreRenewed: no mount of /proc is used for more than a few namespaces, and what one left is gone with it.
func TestKnobsAreRenewed(t *testing.T) {
	need.Root(t)
	k := testKnobs(t)
	used := map[uint64]int{}
	for i := range 3 * uses {
		fd, err := k.Take()
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			t.Fatal(err)
		}
		used[st.Dev]++
		inside, err := unix.Openat(fd, "sys/user/max_user_namespaces", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Close(inside); err != nil {
			t.Fatal(err)
		}
		if i%uses > 0 {
			err = unix.Close(fd)
		} else {
			defer unix.Close(fd) // as long as one holds a mount, its device number isn't given to another
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var host unix.Stat_t
	if err := unix.Stat("/proc", &host); err != nil {
		t.Fatal(err)
	}
	for dev, n := range used {
		if n > uses || dev == host.Dev {
			t.Errorf("one mount was used %d times; the host's: %v", n, dev == host.Dev)
		}
	}
	k.Close()
	if fd, err := k.Take(); err != nil {
		t.Error(err)
	} else if err := unix.Close(fd); err != nil {
		t.Error(err)
	}
}
