package chronus

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
)

// plan fills in what is run: arguments, environment, directory, and the script's file where there is one.
func (x *execution) plan(w *work) error {
	r, c := &x.req, &x.cmd
	c.tty, c.cwd, c.cwdCreate = r.TTY, r.Cwd, r.CwdCreate
	if x.session != nil {
		return x.planSession()
	}
	if len(c.cwd) == 0 {
		c.cwd = []byte("/")
	}
	if c.cwd[0] != '/' {
		return relative(c.cwd)
	}
	c.env = completeEnv(r.Env, c.who, r.TTY)
	switch {
	case len(r.Argv) > 0:
		c.argv = r.Argv
		path, ok := lookupEnv(c.env, "PATH")
		if !ok {
			path = defaultPath
		}
		w.paths = candidates(w.paths[:0], string(r.Argv[0]), path)
		c.paths = w.paths
	case len(r.Shell) <= maxString:
		c.argv, c.paths = [][]byte{[]byte(shellPath), []byte("-c"), r.Shell}, []string{shellPath}
	default:
		return x.planScript(scriptNumber, append([]byte("exec 3<&-;"), r.Shell...))
	}
	return nil
}

// planScript makes the shell read its script from a file in memory, in which it may be as long as it likes.
func (x *execution) planScript(number int, script []byte) error {
	fd, err := memfdWith("script", script)
	if err != nil {
		return api.Errorf(api.CodeNotStarted, "%v", err)
	}
	x.state, x.cmd.fds[3], x.cmd.extra = fd, fd, number
	source := fmt.Sprintf(". /proc/self/fd/%d", number)
	x.cmd.argv = [][]byte{[]byte(shellPath), []byte("-c"), []byte(source)}
	x.cmd.paths = []string{shellPath}
	return nil
}

func relative(cwd []byte) error {
	return api.FieldError(api.CodeWorkdirNotFound, "cwd", "give an absolute path", "working directory %q is relative", shorten(cwd))
}

// planSession runs the command in the session's shell, with its user, directory and variables.
func (x *execution) planSession() error {
	r, c, se := &x.req, &x.cmd, x.session
	if r.User == "" && se.user != "" {
		who, err := x.box.account(se.user)
		if err != nil {
			return err
		}
		c.who = who
	}
	if len(c.cwd) == 0 {
		se.mu.Lock()
		c.cwd = bytes.Clone(se.cwd)
		se.mu.Unlock()
	}
	if c.cwd[0] != '/' {
		return relative(c.cwd)
	}
	command := r.Shell
	if len(r.Argv) > 0 {
		for i, a := range r.Argv {
			if i > 0 {
				command = append(command, ' ')
			}
			command = append(command, quote(a)...)
		}
	}
	script, env := se.script(command, completeEnv(r.Env, c.who, false), c.cwd)
	c.env = env
	return x.planScript(stateNumber, script)
}

// memfdWith makes a file in memory that any user of a sandbox may open, read and write: it is only ever handed to one
// command, whose own it is.
func memfdWith(name string, content []byte) (int, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("make memory file: %w", err)
	}
	for rest := content; len(rest) > 0; {
		n, err := unix.Write(fd, rest)
		if err != nil {
			_ = unix.Close(fd)
			return -1, fmt.Errorf("write memory file: %w", err)
		}
		rest = rest[n:]
	}
	if err := unix.Fchmod(fd, 0o666); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("mode of memory file: %w", err)
	}
	if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("rewind memory file: %w", err)
	}
	return fd, nil
}
