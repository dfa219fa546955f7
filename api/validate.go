package api

import (
	"fmt"
	"strings"
)

// The bounds of an [ExecRequest].
const (
	DefaultMaxOutput = 1 << 20  // bytes kept per output stream when max_output_bytes is absent
	MaxMaxOutput     = 64 << 20 // the most that can be asked for
	// MaxArgument is the longest single argument or environment entry that Linux passes to a program (MAX_ARG_STRLEN
	// without its NUL). A shell script isn't an argument and may be longer.
	MaxArgument  = 32*4096 - 1
	maxTimeoutMS = 366 * 24 * 3600 * 1000
)

// Validate checks what a request says about one command; the error is an [*Error] that names the field.
func (r *ExecRequest) Validate() error {
	if err := r.validateCommand(); err != nil {
		return err
	}
	if err := ValidateEnv("env", r.Env); err != nil {
		return err
	}
	for _, f := range []struct{ name, value string }{{"cwd", r.Cwd}, {"user", r.User}, {"session", r.Session}} {
		if strings.IndexByte(f.value, 0) >= 0 {
			return FieldError(CodeInvalid, f.name, "", "contains a NUL byte")
		}
	}
	switch {
	case r.Stdin != nil && r.StdinText != nil:
		return FieldError(CodeInvalid, "stdin", "give stdin or stdin_b64", "stdin and stdin_b64 are both given")
	case r.TimeoutMS != nil && (*r.TimeoutMS < 1 || *r.TimeoutMS > maxTimeoutMS):
		return FieldError(CodeInvalid, "timeout_ms", "leave it out for no limit", "%d isn't between 1 and %d", *r.TimeoutMS, int64(maxTimeoutMS))
	case r.MaxOutputBytes != nil && (*r.MaxOutputBytes < 1 || *r.MaxOutputBytes > MaxMaxOutput):
		return FieldError(CodeInvalid, "max_output_bytes", "", "%d isn't between 1 and %d", *r.MaxOutputBytes, MaxMaxOutput)
	case len(r.RLimits) > 0:
		return FieldError(CodeUnsupportedConstraint, "rlimits", "leave it out", "resource limits of one command can't be set yet")
	}
	return nil
}

func (r *ExecRequest) validateCommand() error {
	switch {
	case r.Argv != nil && r.Shell != "":
		return FieldError(CodeInvalid, "argv", "give argv or shell", "argv and shell are both given")
	case r.Argv != nil && len(r.Argv) == 0:
		return FieldError(CodeInvalid, "argv", "its first element is the program", "it is empty")
	case strings.IndexByte(r.Shell, 0) >= 0:
		return FieldError(CodeInvalid, "shell", "", "contains a NUL byte")
	}
	return ValidateArgv("argv", r.Argv)
}

// ValidateArgv checks that each argument can be passed to a program.
func ValidateArgv(field string, argv []string) error {
	for i, a := range argv {
		if strings.IndexByte(a, 0) >= 0 {
			return FieldError(CodeInvalid, fmt.Sprintf("%s[%d]", field, i), "", "contains a NUL byte, which no program can be given")
		}
		if len(a) > MaxArgument {
			return FieldError(CodeTooLarge, fmt.Sprintf("%s[%d]", field, i), "send it as stdin, or a script as shell",
				"is %d bytes long; Linux passes at most %d in one argument", len(a), MaxArgument)
		}
	}
	return nil
}

// ValidateEnv checks that each variable can be passed to a program.
func ValidateEnv(field string, env map[string]string) error {
	for k, v := range env {
		name := field + "." + shorten(strings.ToValidUTF8(k, "?"))
		switch {
		case k == "" || strings.ContainsAny(k, "=\x00"):
			return FieldError(CodeInvalid, name, "", "a variable's name is neither empty nor contains '=' or NUL")
		case strings.IndexByte(v, 0) >= 0:
			return FieldError(CodeInvalid, name, "", "the value contains a NUL byte, which no program can be given")
		case len(k)+1+len(v) > MaxArgument:
			return FieldError(CodeTooLarge, name, "send it as stdin", "is %d bytes long; Linux passes at most %d in one variable", len(k)+1+len(v), MaxArgument)
		}
	}
	return nil
}

// Validate checks a start request as [ExecRequest.Validate] does, and its terminal.
func (r *StartRequest) Validate() error {
	if err := r.ExecRequest.Validate(); err != nil {
		return err
	}
	if strings.IndexByte(r.Tag, 0) >= 0 || len(r.Tag) > 256 {
		return FieldError(CodeInvalid, "tag", "", "is longer than 256 bytes or contains a NUL byte")
	}
	if r.TTY != nil {
		return r.TTY.validate("tty.")
	}
	return nil
}

// Validate checks that a terminal of this size can be.
func (s Size) Validate() error { return s.validate("") }

func (s Size) validate(prefix string) error {
	switch {
	case s.Rows == 0:
		return FieldError(CodeInvalid, prefix+"rows", "", "0 isn't between 1 and 65535")
	case s.Cols == 0:
		return FieldError(CodeInvalid, prefix+"cols", "", "0 isn't between 1 and 65535")
	}
	return nil
}
