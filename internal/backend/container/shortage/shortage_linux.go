// Package shortage tells what a machine had too little of when its kernel refused to make a sandbox.
//
// Admission counts what it can; the rest (namespaces, ranges of ids, descriptors) is known when it is refused, and then
// everything is taken back and the client is told, as if it had been refused before.
package shortage

import (
	"errors"
	"strings"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/idrange"
	"github.com/dsec-io/dsec/internal/spawn"
	"golang.org/x/sys/unix"
)

// retryMS is when a create may be tried again that the kernel had no room for.
const retryMS = 1000

// Refusal is the error of a create as a client is told it: an *api.Error with [api.CodeNoCapacity] that names what there
// was too little of; any other error as it is.
func Refusal(err error) error {
	what := of(err)
	if what == "" || errors.As(err, new(*api.Error)) {
		return err
	}
	e := api.FieldError(api.CodeNoCapacity, "", "try again later, or stop sandboxes; dsec doctor tells the machine's limits", "the machine has no %s left: %v", what, err)
	e.RetryMS = retryMS
	return e
}

// of tells what there is too little of; empty: nothing that is known.
func of(err error) string {
	if errors.Is(err, idrange.ErrExhausted) {
		return "ranges of user ids"
	}
	step, _ := errors.AsType[*spawn.Failure](err)
	switch {
	case errors.Is(err, unix.ENOSPC) && step != nil && step.NR == unix.SYS_UNSHARE, // the only one that makes this one
		errors.Is(err, unix.EUSERS):
		return "user namespaces (user.max_user_namespaces)"
	case errors.Is(err, unix.ENOSPC) && step != nil && isClone(step):
		return "namespaces (user.max_*_namespaces)"
	case errors.Is(err, unix.EMFILE):
		return "descriptors for the edge (RLIMIT_NOFILE)"
	case errors.Is(err, unix.ENFILE):
		return "open files (fs.file-max)"
	case errors.Is(err, unix.ENOMEM):
		return "memory for the kernel"
	case errors.Is(err, unix.EAGAIN) && (step == nil || isClone(step)):
		return "processes (kernel.pid_max, kernel.threads-max)"
	}
	return ""
}

func isClone(step *spawn.Failure) bool {
	return step.NR == unix.SYS_CLONE || step.NR == unix.SYS_CLONE3 || strings.HasPrefix(step.Name, "clone with")
}
