package pause

import (
	"errors"
	"strings"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/linux/cgroup"
)

// Refusal is the error of a pause for who asked for it. Program tells what is run as a process; empty: it has ended.
func Refusal(err error, program func(process string) string) *api.Error {
	e := api.Errorf(api.CodeConflict, "the sandbox can't be paused: %v", err)
	e.Hint, e.RetryMS = "it goes on; ask again", 1000
	moving, ok := errors.AsType[*cgroup.MovingError](err)
	if !ok || len(moving.Groups) == 0 {
		return e
	}
	var who []string
	for _, g := range moving.Groups {
		switch name := program(g); {
		case g == "":
			who = append(who, "the sandbox's first process")
		case name == "":
			who = append(who, "what process "+g+" has left")
		default:
			who = append(who, "process "+g+" ("+name+") or a child of its")
		}
	}
	e.Detail = "the sandbox can't be paused: a process doesn't stop: " + strings.Join(who, ", ")
	return e
}
