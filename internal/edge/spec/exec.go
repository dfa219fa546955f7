package spec

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

const (
	maxProcessID = 63
	maxTag       = 256
)

// CheckExec checks a command as a client sent it.
func CheckExec(x *aether.ExecStart) error {
	if err := checkCommand(x); err != nil {
		return err
	}
	if err := checkSettings(x); err != nil {
		return err
	}
	if err := checkWords("argv", x.Argv); err != nil {
		return err
	}
	if err := checkWords("env", x.Env); err != nil {
		return err
	}
	for _, kv := range x.Env {
		if bytes.IndexByte(kv, '=') <= 0 {
			return bad("env", "", "%q isn't NAME=VALUE", Clip(string(kv)))
		}
	}
	return nil
}

func bad(field, hint, format string, args ...any) error {
	return api.FieldError(api.CodeInvalid, field, hint, format, args...)
}

func checkCommand(x *aether.ExecStart) error {
	switch {
	case len(x.Argv) == 0 && len(x.Shell) == 0:
		return bad("argv", "give argv or shell", "there is no command")
	case len(x.Argv) > 0 && len(x.Shell) > 0:
		return bad("argv", "give argv or shell", "argv and shell are both given")
	case bytes.IndexByte(x.Shell, 0) >= 0:
		return bad("shell", "", "contains a NUL byte")
	case bytes.IndexByte(x.Cwd, 0) >= 0 || len(x.Cwd) > maxPath:
		return bad("cwd", "", "contains a NUL byte or is longer than %d bytes", maxPath)
	case strings.ContainsAny(x.User, "\x00\n") || len(x.User) > maxUser:
		return bad("user", "use a name, a uid, name:group or uid:gid", "%q isn't a user", Clip(x.User))
	}
	return nil
}

func checkSettings(x *aether.ExecStart) error {
	switch {
	case x.TimeoutMS < 0:
		return bad("timeout_ms", "leave it out for no limit", "%d is negative", x.TimeoutMS)
	case x.MaxOutput < 0 || x.MaxOutput > api.MaxMaxOutput:
		return bad("max_output_bytes", "", "%d isn't between 1 and %d", x.MaxOutput, api.MaxMaxOutput)
	case x.ID != "" && !validProcessID(x.ID):
		return bad("id", "use up to 63 letters, digits, '-' and '_'", "%q isn't a process id", Clip(x.ID))
	case len(x.Tag) > maxTag || strings.IndexByte(x.Tag, 0) >= 0:
		return bad("tag", "", "is longer than %d bytes or contains a NUL byte", maxTag)
	case x.TTY && (x.Rows == 0 || x.Cols == 0 || x.Rows > 65535 || x.Cols > 65535):
		return bad("tty", "", "%d rows and %d columns aren't between 1 and 65535", x.Rows, x.Cols)
	}
	return nil
}

func checkWords(field string, words [][]byte) error {
	for i, w := range words {
		if bytes.IndexByte(w, 0) >= 0 {
			return api.FieldError(api.CodeInvalid, fmt.Sprintf("%s[%d]", field, i), "", "contains a NUL byte, which no program can be given")
		}
		if len(w) > api.MaxArgument {
			return api.FieldError(api.CodeTooLarge, fmt.Sprintf("%s[%d]", field, i), "send it as stdin", "is %d bytes long; Linux passes at most %d in one word", len(w), api.MaxArgument)
		}
	}
	return nil
}

func validProcessID(id string) bool {
	if len(id) > maxProcessID {
		return false
	}
	return !strings.ContainsFunc(id, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	})
}
