// Package transfer copies files and directories between the local file system and sandboxes.
//
// A sandbox isn't trusted: whatever the names and links of what it sends say, nothing is made outside the destination. What
// can't be copied is an error, never left out in silence. Memory doesn't grow with what is copied. A [Copy] is one
// goroutine's; its [Meter] may be read by others meanwhile.
package transfer
