package main

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
	exitFailed    = 125
	exitSignalled = 128 // plus the signal's number
)

// interruptedError says that a signal ended the command.
type interruptedError struct{ signal os.Signal }

func (e *interruptedError) Error() string { return "interrupted" }

// statusError carries an exit code of dsec's own, such as doctor's; nothing is printed for it.
type statusError struct{ code int }

func (e *statusError) Error() string { return fmt.Sprintf("exit status %d", e.code) }

// exitCode maps an error to what the process exits with.
func exitCode(err error) int {
	if errors.Is(err, errDetached) {
		return 0
	}
	if e, ok := errors.AsType[*statusError](err); ok {
		return e.code
	}
	if e, ok := errors.AsType[*interruptedError](err); ok {
		if s, ok := e.signal.(syscall.Signal); ok {
			return exitSignalled + int(s)
		}
		return exitFailed
	}
	// A command that didn't start, where a shell has a code for it.
	if e, ok := errors.AsType[*api.Error](err); ok && e.ExitCode != nil {
		return *e.ExitCode
	}
	return exitFailed
}

// statusCode maps the way a command ended to what the process exits with.
func statusCode(st api.ExitStatus) int {
	switch {
	case st.TimedOut:
		return exitTimedOut
	case st.ExitCode != nil:
		return *st.ExitCode
	case st.Signal != "":
		if n, ok := api.SignalNumber(st.Signal); ok {
			return exitSignalled + n
		}
	}
	return exitFailed
}

// statusNote tells, in an error for people, why a command ended when its exit code alone doesn't say; nil otherwise.
func statusNote(st api.ExitStatus) error {
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

// report prints an error on stderr: one line that says what went wrong, then one that says what to do about it.
func (a *app) report(err error) {
	if _, quiet := errors.AsType[*statusError](err); quiet || errors.Is(err, errDetached) {
		return
	}
	fmt.Fprintf(a.stderr, "dsec: %s\n", show.Line(strings.TrimSpace(err.Error())))
	if hint := hintOf(err); hint != "" {
		fmt.Fprintf(a.stderr, "hint: %s\n", show.Line(hint))
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
