package apiserver

import (
	"context"
	"errors"
	"strings"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// asProblem makes an error tellable. Errors of the transport say that an answer was lost, not that nothing happened: so
// the problem has no retry_after_ms, which is the sign that a repeat is safe.
func asProblem(err error) *api.Error {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return api.Errorf(api.CodeTimeout, "no answer from the edge in time")
	case errors.Is(err, aether.ErrConnLost), errors.Is(err, aether.ErrClosed), errors.Is(err, aether.ErrReset):
		e := api.Errorf(api.CodeUnavailable, "the connection to the edge was lost: %v", err)
		e.Hint = "it isn't known whether the request was carried out"
		return e
	}
	return api.AsError(err)
}

// repeatable marks a lost answer as safe to ask for again, for requests that only read.
func repeatable(err error) error {
	if e := asProblem(err); e.Code == api.CodeUnavailable && e.RetryMS == 0 {
		again := *e
		again.RetryMS, again.Hint = 200, ""
		return &again
	}
	return err
}

// clip keeps what a client sent from filling an answer.
func clip(s string) string {
	const most = 80
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "?")
}
