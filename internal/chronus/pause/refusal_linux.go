package pause

import (
	"errors"
	"strings"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/linux/cgroup"
)

// Refusal is the error of a pause for who asked for it. Process finds the one whose group it is; "": it has ended.
func Refusal(err error, process func(group string) (id, program string)) *api.Error {
	e := api.Errorf(api.CodeConflict, "the sandbox can't be paused: %v", err)
	e.Hint, e.RetryMS = "it goes on; ask again", 1000
	moving, ok := errors.AsType[*cgroup.MovingError](err)
	if !ok || len(moving.Groups) == 0 {
		return e
	}
	var who []string
	for _, g := range moving.Groups {
		switch id, program := process(g); {
		case g == "":
			who = append(who, "the sandbox's first process")
		case id == "":
			who = append(who, "a child of a command that isn't known any more")
		default:
			who = append(who, "process "+id+" ("+program+") or a child of its")
		}
	}
	e.Detail = "the sandbox can't be paused: a process doesn't stop: " + strings.Join(who, ", ")
	return e
}
