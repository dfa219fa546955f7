package sandboxcmd

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTerminalIsRestoredByAPanic: what a bug leaves is a terminal that can be used.
func TestTerminalIsRestoredByAPanic(t *testing.T) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	modes := func() unix.Termios {
		t.Helper()
		tio, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		return *tio
	}
	before := modes()
	raw := rawTerminal{fd: int(slave.Fd())}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		defer raw.rescue()
		if err := raw.enter(); err != nil {
			t.Fatal(err)
		}
		if modes() == before {
			t.Error("the terminal isn't raw")
		}
		panic("bug")
	}()
	if after := modes(); after != before {
		t.Errorf("the terminal is left with %+v", after)
	}
}
