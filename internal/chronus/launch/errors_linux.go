package launch

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/linux/cgroup"
	"github.com/dsec-io/dsec/internal/spawn"
)

// execError tells why no attempt to exec worked, or nil if one did.
func (w *work) execError(c *Command) *api.Error {
	worst := unix.ENOENT
	for _, t := range w.tries {
		switch e := t.Errno(); e {
		case 0:
			return nil
		case unix.ENOENT, unix.ENOTDIR, unix.ENAMETOOLONG:
		default:
			if worst == unix.ENOENT {
				worst = e
			}
		}
	}
	name := Shorten(c.Argv[0])
	switch worst {
	case unix.ENOENT:
		err := api.Errorf(api.CodeCommandNotFound, "%q: no such command, or its interpreter doesn't exist", name)
		err.Hint = "give the path of an executable file, or a name that is on the command's PATH"
		return err
	case unix.EACCES:
		return api.Errorf(api.CodeCommandNotExecutable, "%q: not an executable file, or not permitted", name)
	case unix.ENOEXEC, unix.EINVAL, unix.ELIBBAD, unix.EISDIR, unix.ETXTBSY, unix.EPERM, unix.ELOOP:
		return api.Errorf(api.CodeCommandNotExecutable, "%q: %v", name, worst)
	case unix.E2BIG:
		return TooLarge("arguments and environment", Size(c.Argv)+Size(c.Env), MaxArgs)
	default:
		return api.Errorf(api.CodeNotStarted, "exec %q: %v", name, worst)
	}
}

// Limits of execve: of one string, and of all of them together, which is a quarter of the stack limit.
const (
	MaxString = 128<<10 - 1
	MaxArgs   = 2 << 20
)

// TooLarge says that something is over a limit of execve.
func TooLarge(what string, size, limit int) *api.Error {
	err := api.Errorf(api.CodeTooLarge, "%s of %d bytes are over the limit of %d", what, size, limit)
	err.Hint = "put large data into a file or into stdin; a script may be given as shell text of up to 16 MiB"
	return err
}

// Size is what execve counts for a list of strings.
func Size(v [][]byte) int {
	n := 0
	for _, b := range v {
		n += len(b) + 1
	}
	return n
}

// Shorten makes untrusted text fit for an error.
func Shorten(b []byte) string {
	const most = 200
	if len(b) > most {
		return string(b[:most]) + "…"
	}
	return string(b)
}

// stepError turns a failed step of either script into what the caller is told. Nothing was started.
func stepError(c *Command, f *spawn.Failure) *api.Error {
	switch f.Name {
	case stepWorkdir:
		err := api.FieldError(api.CodeWorkdirNotFound, "cwd", "give the cwd of a directory that exists", "working directory %q: %v", Shorten(c.Cwd), f.Errno)
		if errors.Is(f.Errno, unix.EACCES) {
			err.Hint = fmt.Sprintf("uid %d may not enter it", c.Who.UID)
		}
		return err
	case stepEnter:
		if c.Box.Dead() {
			return api.Errorf(api.CodeSandboxDied, "the sandbox's first process has ended")
		}
	}
	if f.Name == stepClone && errors.Is(f.Errno, unix.EAGAIN) {
		return tooManyProcesses()
	}
	return api.Errorf(api.CodeNotStarted, "nothing was started: %v", f)
}

func tooManyProcesses() *api.Error {
	err := api.Errorf(api.CodeQuota, "the sandbox has as many processes as its limit allows")
	err.Hint = "end some, or raise resources.pids"
	return err
}

// notStarted is an infrastructure failure before anything ran.
func notStarted(c *Command, doing string, err error) *api.Error {
	if errors.Is(err, unix.ENOENT) && c.Box.Dead() || errors.Is(err, unix.ENODEV) {
		return api.Errorf(api.CodeSandboxDied, "the sandbox has ended")
	}
	if errors.Is(err, cgroup.ErrName) {
		return api.Errorf(api.CodeInvalid, "%v", err)
	}
	return api.Errorf(api.CodeNotStarted, "%s", fmt.Errorf("%s: %w", doing, err))
}
