// Package seccomp holds the system call filter that every command in a sandbox runs under.
//
// The filter is docker's default profile (moby/profiles) for the fourteen capabilities of package caps, and our own
// denials on top. It is compiled ahead of time, for each architecture, into zz_program_*.go by the tests of this
// package, which also hold the result to the profile, so that nothing of the profile's machinery is linked:
//
//	go generate ./internal/linux/seccomp
//
// What costs time in a filter is loading it: the kernel checks and compiles it, and runs it once for every system call
// number to find those that it always allows. That grows with instructions times path length, so the filter is a
// binary tree over ranges of numbers with equal verdicts (+90 us per command on a small machine, where one comparison
// per system call costs +300 to +440).
//
// What differs from docker's profile, and why:
//
//   - Numbers above all that are known here answer ENOSYS and not EPERM, as runc does it too, since libraries fall back
//     from ENOSYS only. So do the x32 numbers, and every call in the ABI of another architecture (int 0x80).
//   - ioctl TIOCSTI and TIOCLINUX answer EPERM: they type into a terminal that the command may share with others.
//   - Arguments that the kernel takes as 32 bits are compared on their low 32 bits; a filter that looks at all 64 can
//     be passed by garbage in the high half.
//   - What we deny for good is denied even if a later profile should allow it; the tests list it.
//
// A Program is immutable and safe for concurrent use.
package seccomp

//go:generate go test -run ^TestProgramIsGenerated$ -update .
