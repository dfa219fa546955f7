package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/show"
)

// Exit codes of dsec itself. They are a contract with scripts.
const (
	exitTimedOut  = 124
	ExitFailed    = 125
	ExitSignalled = 128 // plus the signal's number
)

// ErrDetached is the error of a command that was let go of and goes on: no failure.
var ErrDetached = errors.New("detached")

// InterruptedError says that a signal ended the command.
type InterruptedError struct{ Signal os.Signal }

func (e *InterruptedError) Error() string { return "interrupted" }

// StatusError carries an exit code of dsec's own, such as doctor's; nothing is printed for it.
type StatusError struct{ Code int }

func (e *StatusError) Error() string { return fmt.Sprintf("exit status %d", e.Code) }

// ExitCode maps an error to what the process exits with.
func ExitCode(err error) int {
	if errors.Is(err, ErrDetached) {
		return 0
	}
	if e, ok := errors.AsType[*StatusError](err); ok {
		return e.Code
	}
	if e, ok := errors.AsType[*InterruptedError](err); ok {
		if s, ok := e.Signal.(syscall.Signal); ok {
			return ExitSignalled + int(s)
		}
		return ExitFailed
	}
	// A command that didn't start, where a shell has a code for it.
	if e, ok := errors.AsType[*api.Error](err); ok && e.ExitCode != nil {
		return *e.ExitCode
	}
	return ExitFailed
}

// StatusCode maps the way a command ended to what the process exits with.
func StatusCode(st api.ExitStatus) int {
	switch {
	case st.TimedOut:
		return exitTimedOut
	case st.ExitCode != nil:
		return *st.ExitCode
	case st.Signal != "":
		if n, ok := api.SignalNumber(st.Signal); ok {
			return ExitSignalled + n
		}
	}
	return ExitFailed
}

// StatusNote tells, in an error for people, why a command ended when its exit code alone doesn't say; nil otherwise.
func StatusNote(st api.ExitStatus) error {
	switch {
	case st.InfraError != "":
		return api.Errorf(api.CodeInternal, "the command's status is unknown: %s", st.InfraError)
	case st.TimedOut:
		return api.FieldError(api.CodeTimeout, "", "give it more with --timeout", "the command timed out and was killed")
	case st.OOMKilled:
		return api.FieldError(api.CodeImpossible, "", "give it more with --memory", "the command was killed: out of memory")
	}
	return nil
}

// Report prints an error on stderr: one line that says what went wrong, then one that says what to do about it.
func (a *App) Report(err error) {
	if _, quiet := errors.AsType[*StatusError](err); quiet || errors.Is(err, ErrDetached) {
		return
	}
	fmt.Fprintf(a.Stderr, "dsec: %s\n", show.Line(strings.TrimSpace(err.Error())))
	if hint := hintOf(err); hint != "" {
		fmt.Fprintf(a.Stderr, "hint: %s\n", show.Line(hint))
	}
}

func hintOf(err error) string {
	e, ok := errors.AsType[*api.Error](err)
	switch {
	case !ok:
		return ""
	case e.Hint != "":
		return e.Hint
	case e.Code == api.CodeUnauthenticated:
		return "check DSEC_TOKEN, or choose a context with `dsec config use`"
	case e.Code == api.CodeNotFound:
		return "`dsec sandbox ls` lists the sandboxes"
	case e.Code == api.CodeCommandNotExecutable:
		return "`chmod +x` it, or name its interpreter: sh FILE, python3 FILE"
	case e.Code == api.CodeCommandNotFound:
		return "is it in the image, and on its PATH?"
	case e.RetryMS > 0:
		return fmt.Sprintf("try again in %d ms", e.RetryMS)
	}
	return ""
}
