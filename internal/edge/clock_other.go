//go:build !linux

package edge

import "time"

// uptime is never asked for: there is no backend but on Linux.
func uptime() time.Duration { return 0 }
