package edge

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// uptime is the machine's clock since its start.
func uptime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(fmt.Sprintf("clock: %v", err)) // every kernel that we run on has it
	}
	return time.Duration(t.Nano())
}
