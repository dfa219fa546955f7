// Package request checks what a shard is asked to run, before anything is done for it.
package request

import (
	"bytes"
	"crypto/rand"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/chronus/journal"
	"github.com/dsec-io/dsec/internal/chronus/launch"
)

const maxTag = 256

// Check refuses what can't be run, and fills in defaults. Its errors are typed.
func Check(r *aether.ExecStart) error {
	if r.Log || r.TTY {
		r.Keep = true
	}
	if r.ID == "" {
		r.ID = "x" + strings.ToLower(rand.Text())
	}
	if err := checkCommand(r); err != nil {
		return err
	}
	switch {
	case !IsID(r.ID):
		return api.FieldError(api.CodeInvalid, "id", "letters, digits, - and _, at most 64", "process id %q", launch.Shorten([]byte(r.ID)))
	case r.Session != "" && r.TTY:
		return api.FieldError(api.CodeInvalid, "session", "run a shell on the terminal instead", "a session's commands have no terminal")
	case r.TimeoutMS < 0:
		return api.FieldError(api.CodeInvalid, "timeout_ms", "", "a time-out of %d ms", r.TimeoutMS)
	case r.MaxOutput < 0, r.MaxOutput > journal.MaxKeep:
		return api.FieldError(api.CodeInvalid, "max_output_bytes", "", "a limit of %d bytes isn't from 0 to %d", r.MaxOutput, journal.MaxKeep)
	case r.Rows > 1<<16-1, r.Cols > 1<<16-1:
		return api.FieldError(api.CodeInvalid, "tty", "", "a terminal of %d rows and %d columns", r.Rows, r.Cols)
	case len(r.Tag) > maxTag:
		return api.FieldError(api.CodeInvalid, "tag", "", "tag of %d bytes is over %d", len(r.Tag), maxTag)
	}
	return checkSizes(r)
}

// checkCommand refuses what execve can't even be asked for.
func checkCommand(r *aether.ExecStart) error {
	switch {
	case (len(r.Argv) == 0) == (len(r.Shell) == 0):
		return api.FieldError(api.CodeInvalid, "argv", "give one of argv and shell", "%d arguments and a script of %d bytes", len(r.Argv), len(r.Shell))
	case len(r.Argv) > 0 && len(r.Argv[0]) == 0:
		return api.FieldError(api.CodeInvalid, "argv", "", "the command's name is empty")
	}
	for _, list := range [][][]byte{r.Argv, r.Env, {r.Shell, r.Cwd}} {
		for _, v := range list {
			if i := bytes.IndexByte(v, 0); i >= 0 {
				return api.Errorf(api.CodeInvalid, "a NUL byte at %d of %q: no argument, variable, path or script can hold one", i, launch.Shorten(v))
			}
		}
	}
	for _, e := range r.Env {
		if bytes.IndexByte(e, '=') <= 0 {
			return api.FieldError(api.CodeInvalid, "env", "", "variable %q has no name", launch.Shorten(e))
		}
	}
	return nil
}

// checkSizes refuses what execve would refuse.
func checkSizes(r *aether.ExecStart) error {
	for i, list := range [][][]byte{r.Argv, r.Env} {
		what := [...]string{"an argument", "a variable"}[i]
		for _, v := range list {
			if len(v) > launch.MaxString && (i == 1 || r.Session == "") {
				return launch.TooLarge(what, len(v), launch.MaxString)
			}
		}
	}
	if n := launch.Size(r.Argv) + launch.Size(r.Env); n > launch.MaxArgs {
		return launch.TooLarge("arguments and environment", n, launch.MaxArgs)
	}
	if len(r.Cwd) >= unix.PathMax {
		return api.FieldError(api.CodeWorkdirNotFound, "cwd", "", "path of %d bytes is too long", len(r.Cwd))
	}
	return nil
}

// IsID tells whether v may name a process or session.
func IsID(v string) bool {
	for _, c := range []byte(v) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && c != '-' && c != '_' {
			return false
		}
	}
	return v != "" && len(v) <= 64
}
