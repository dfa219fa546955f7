package launch

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
)

// Pipes makes pipes for the command's output, and for its input if it has one. The command's ends are in c.FDs, ours are
// returned, those of the output without waiting; -1: not made. On an error, too, both are the caller's to close.
func (c *Command) Pipes(stdin bool) (out [2]int, in int, err error) {
	out, in = [2]int{-1, -1}, -1
	var pipe [2]int
	for i := range out {
		if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
			return out, in, api.Errorf(api.CodeNotStarted, "make an output pipe: %v", err)
		}
		out[i], c.FDs[1+i] = pipe[0], pipe[1]
		openToAll(pipe[1])
		if err := unix.SetNonblock(pipe[0], true); err != nil {
			return out, in, api.Errorf(api.CodeNotStarted, "make an output pipe: %v", err)
		}
	}
	if stdin {
		if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
			return out, in, api.Errorf(api.CodeNotStarted, "make an input pipe: %v", err)
		}
		c.FDs[0], in = pipe[0], pipe[1]
		openToAll(pipe[0])
	}
	return out, in, nil
}

// openToAll lets every user of the sandbox open a pipe again by name (/dev/stdout), which belongs to the shard's user
// otherwise. Whoever can walk to the name in /proc has the descriptor's rights anyway. An error leaves it as it was.
func openToAll(fd int) { _ = unix.Fchmod(fd, 0o666) }

// CloseEnds closes the command's stdin, stdout and stderr here; it has its own by now.
func (c *Command) CloseEnds() {
	fds := slices.Clone(c.FDs[:3])
	slices.Sort(fds)
	for _, fd := range slices.Compact(fds) { // a terminal is all three
		closeFD(fd)
	}
}
