package chronus

import (
	"bytes"
	"fmt"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/chronus/account"
	"github.com/dsec-io/dsec/internal/chronus/launch"
	"github.com/dsec-io/dsec/internal/chronus/remember"
)

// plan fills in what is run: arguments, environment, directory, and the script's file where there is one.
func (x *execution) plan() error {
	r, c := &x.req, &x.cmd
	c.TTY, c.Cwd, c.CwdCreate = r.TTY, r.Cwd, r.CwdCreate
	if x.session != nil {
		return x.planSession()
	}
	if len(c.Cwd) == 0 {
		c.Cwd = []byte("/")
	}
	if c.Cwd[0] != '/' {
		return relative(c.Cwd)
	}
	c.Env = account.CompleteEnv(r.Env, c.Who, r.TTY)
	switch {
	case len(r.Argv) > 0:
		c.Argv = r.Argv
		path, ok := account.LookupEnv(c.Env, "PATH")
		if !ok {
			path = account.DefaultPath
		}
		c.Paths = launch.Candidates(nil, string(r.Argv[0]), path)
	case len(r.Shell) <= launch.MaxString:
		c.Argv, c.Paths = [][]byte{[]byte(shellPath), []byte("-c"), r.Shell}, []string{shellPath}
	default:
		return x.planScript(scriptNumber, append([]byte("exec 3<&-;"), r.Shell...))
	}
	return nil
}

// planScript makes the shell read its script from a file in memory, in which it may be as long as it likes.
func (x *execution) planScript(number int, script []byte) error {
	fd, err := launch.MemFile("script", script)
	if err != nil {
		return api.Errorf(api.CodeNotStarted, "%v", err)
	}
	x.state, x.cmd.FDs[3], x.cmd.Extra = fd, fd, number
	source := fmt.Sprintf(". /proc/self/fd/%d", number)
	x.cmd.Argv = [][]byte{[]byte(shellPath), []byte("-c"), []byte(source)}
	x.cmd.Paths = []string{shellPath}
	return nil
}

func relative(cwd []byte) error {
	return api.FieldError(api.CodeWorkdirNotFound, "cwd", "give an absolute path", "working directory %q is relative", launch.Shorten(cwd))
}

// planSession runs the command in the session's shell, with its user, directory and variables.
func (x *execution) planSession() error {
	r, c, se := &x.req, &x.cmd, x.session
	if r.User == "" && se.user != "" {
		who, err := x.box.accountOf(se.user)
		if err != nil {
			return err
		}
		c.Who = who
	}
	if len(c.Cwd) == 0 {
		se.mu.Lock()
		c.Cwd = bytes.Clone(se.memory.Cwd)
		se.mu.Unlock()
	}
	if c.Cwd[0] != '/' {
		return relative(c.Cwd)
	}
	command := r.Shell
	if len(r.Argv) > 0 {
		for i, a := range r.Argv {
			if i > 0 {
				command = append(command, ' ')
			}
			command = append(command, remember.Quote(a)...)
		}
	}
	se.mu.Lock()
	script, env := se.memory.Script(stateNumber, command, account.CompleteEnv(r.Env, c.Who, false), c.Cwd)
	closed := se.closed
	if closed {
		se.memory.Forget()
	}
	se.mu.Unlock()
	if closed {
		return se.hasClosed()
	}
	c.Env = env
	return x.planScript(stateNumber, script)
}
