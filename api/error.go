package api

import (
	"errors"
	"fmt"
	"strings"
)

// Code names a kind of failure. Clients branch on it; the text beside it is for people.
type Code string

// The codes a client can meet, with the HTTP status that carries each (see [Code.Status]).
const (
	CodeInvalid               Code = "invalid"                // 400: a field is malformed or out of range
	CodeUnknownField          Code = "unknown_field"          // 400: the body has a field that the API doesn't know
	CodeUnauthenticated       Code = "unauthenticated"        // 401: no token, or one that isn't valid
	CodeForbidden             Code = "forbidden"              // 403: the token doesn't allow this
	CodeNotFound              Code = "not_found"              // 404: no such object, or one of another project
	CodeNoSuchImage           Code = "no_such_image"          // 404: the image isn't in any store of this node
	CodeNoSuchProcess         Code = "no_such_process"        // 404: the process isn't known, or its record has expired
	CodeNoSuchSession         Code = "no_such_session"        // 404: the session isn't known
	CodeFileNotFound          Code = "file_not_found"         // 404: no such file or directory in the sandbox
	CodePermissionDenied      Code = "permission_denied"      // 403: the sandbox's user may not do this to the file
	CodeMethodNotAllowed      Code = "method_not_allowed"     // 405: the path exists, the method doesn't
	CodeConflict              Code = "conflict"               // 409: in the way of something that exists
	CodeWrongState            Code = "wrong_state"            // 409: the sandbox's state doesn't allow this
	CodeKeyReused             Code = "idempotency_key_reused" // 409: the key was used for another request
	CodeResultGone            Code = "result_gone"            // 409: the request under this key isn't repeated, and its answer can't be given again
	CodeFrozen                Code = "frozen"                 // 409: the sandbox's processes are frozen
	CodeExists                Code = "exists"                 // 409: the file exists
	CodeIsDirectory           Code = "is_a_directory"         // 409
	CodeNotDirectory          Code = "not_a_directory"        // 409
	CodeNotEmpty              Code = "not_empty"              // 409: the directory isn't empty
	CodeNotRegular            Code = "not_a_regular_file"     // 409: a FIFO, socket or device, or a file that can't be read
	CodeLinkLoop              Code = "link_loop"              // 409: too many symlinks on the way
	CodeTooLarge              Code = "too_large"              // 413: the body or a value in it is over its limit
	CodeUnsupportedMedia      Code = "unsupported_media_type" // 415: not JSON
	CodeRange                 Code = "range_not_satisfiable"  // 416: the file ends before the range begins
	CodeUnsupportedConstraint Code = "unsupported_constraint" // 422: known, but can't be enforced here
	CodeImpossible            Code = "impossible"             // 422: can't be met by this machine at any time
	CodeCommandNotFound       Code = "command_not_found"      // 422: exit_code 127
	CodeCommandNotExecutable  Code = "command_not_executable" // 422: exit_code 126
	CodeWorkdirNotFound       Code = "workdir_not_found"      // 422: the working directory doesn't exist or isn't one
	CodeNoShell               Code = "no_shell"               // 422: the image has no /bin/sh
	CodeNoSuchUser            Code = "no_such_user"           // 422: the user isn't in the sandbox's /etc/passwd
	CodeQuota                 Code = "quota_exceeded"         // 429
	CodeTooMany               Code = "too_many_requests"      // 429: rate or concurrency limit; see retry_after_ms
	CodeInternal              Code = "internal"               // 500: a bug of ours
	CodeNotImplemented        Code = "not_implemented"        // 501: the route exists, this build can't do it yet
	CodeSandboxDied           Code = "sandbox_died"           // 502: the sandbox ended while the request ran
	CodePortUnreachable       Code = "port_unreachable"       // 502: nothing in the sandbox listens on the port
	CodePortFailed            Code = "port_failed"            // 502: the program behind the port broke off, or its answer isn't HTTP
	CodeNotStarted            Code = "not_started"            // 503: an infrastructure failure before anything ran; safe to repeat
	CodeNoCapacity            Code = "no_capacity"            // 503: the machine is full; see retry_after_ms
	CodeUnavailable           Code = "unavailable"            // 503: a component can't be reached; see retry_after_ms
	CodePauseFailed           Code = "pause_failed"           // 503: the sandbox couldn't be made to stand still; it goes on as before
	CodeResumeFailed          Code = "resume_failed"          // 503: the sandbox couldn't be made to go on; it is paused as before
	CodeTimeout               Code = "timeout"                // 504
	CodeDiskFull              Code = "disk_full"              // 507
)

// Status is the HTTP status that carries c; 500 for a code that isn't listed.
func (c Code) Status() int {
	if s, ok := statuses()[c]; ok {
		return s
	}
	return 500
}

func statuses() map[Code]int {
	return map[Code]int{
		CodeInvalid: 400, CodeUnknownField: 400, CodeUnauthenticated: 401, CodeForbidden: 403,
		CodeNotFound: 404, CodeNoSuchImage: 404, CodeNoSuchProcess: 404, CodeNoSuchSession: 404, CodeMethodNotAllowed: 405,
		CodeConflict: 409, CodeWrongState: 409, CodeFrozen: 409, CodeTooLarge: 413, CodeUnsupportedMedia: 415,
		CodeUnsupportedConstraint: 422, CodeImpossible: 422, CodeCommandNotFound: 422, CodeCommandNotExecutable: 422,
		CodeWorkdirNotFound: 422, CodeNoShell: 422, CodeNoSuchUser: 422, CodeQuota: 429, CodeTooMany: 429,
		CodeInternal: 500, CodeNotImplemented: 501, CodeSandboxDied: 502, CodePortUnreachable: 502, CodePortFailed: 502, CodeNotStarted: 503, CodeNoCapacity: 503,
		CodeFileNotFound: 404, CodePermissionDenied: 403, CodeExists: 409, CodeIsDirectory: 409, CodeNotDirectory: 409,
		CodePauseFailed: 503, CodeResumeFailed: 503, CodeNotEmpty: 409, CodeNotRegular: 409, CodeLinkLoop: 409, CodeRange: 416,
		CodeKeyReused: 409, CodeResultGone: 409, CodeUnavailable: 503, CodeTimeout: 504, CodeDiskFull: 507,
	}
}

// Error is a problem document (RFC 9457) and the Go error of every DSec component that a client can meet.
type Error struct {
	Type      string `json:"type,omitempty"`   // a URI reference that names the code: "/problems/CODE"
	Title     string `json:"title,omitempty"`  // the code in words
	HTTP      int    `json:"status,omitempty"` // the HTTP status
	Detail    string `json:"detail"`           // what went wrong, with the value that was wrong
	Code      Code   `json:"code"`
	Field     string `json:"field,omitempty"`          // the body field, path or query parameter at fault
	Hint      string `json:"hint,omitempty"`           // what to do about it
	RetryMS   int64  `json:"retry_after_ms,omitempty"` // when a repeat may succeed, in milliseconds
	ExitCode  *int   `json:"exit_code,omitempty"`      // what a shell would exit with: 127, 126
	RequestID string `json:"request_id,omitempty"`
}

// Errorf makes an Error with a formatted detail.
func Errorf(code Code, format string, args ...any) *Error {
	e := &Error{Code: code, Detail: fmt.Sprintf(format, args...)}
	if exit, ok := shellExits()[code]; ok {
		e.ExitCode = &exit
	}
	return e.Complete()
}

// shellExits are what a shell exits with when it can't start a command.
func shellExits() map[Code]int {
	return map[Code]int{CodeCommandNotFound: 127, CodeCommandNotExecutable: 126}
}

// FieldError makes an Error about one field.
func FieldError(code Code, field, hint, format string, args ...any) *Error {
	e := Errorf(code, format, args...)
	e.Field, e.Hint = field, hint
	return e
}

// Complete fills the RFC 9457 members that follow from the code and returns e.
func (e *Error) Complete() *Error {
	e.HTTP = e.Code.Status()
	e.Type = "/problems/" + string(e.Code)
	e.Title = strings.ReplaceAll(string(e.Code), "_", " ")
	return e
}

// Error tells the detail, and the field where one is at fault.
func (e *Error) Error() string {
	if e.Field != "" {
		return e.Field + ": " + e.Detail
	}
	return e.Detail
}

// AsError finds the *Error in err's chain; any other error becomes one with [CodeInternal]. AsError(nil) is nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return Errorf(CodeInternal, "%v", err)
}

// IsCode tells whether err's chain holds an *Error with this code.
func IsCode(err error, code Code) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == code
}
