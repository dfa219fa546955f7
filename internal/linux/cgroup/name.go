package cgroup

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrName says that a name isn't one that a group may have.
var ErrName = errors.New("not a name for a group")

// checkName refuses what could leave the directory or name one of the kernel's files. Those have a dot in their names,
// but for the three old ones of v1.
func checkName(name string) error {
	reserved := []string{"tasks", "notify_on_release", "release_agent", "self", "keeper"}
	if len(name) == 0 || len(name) > 64 || name[0] == '-' || slices.Contains(reserved, name) {
		return fmt.Errorf("%w: %.80q", ErrName, name)
	}
	for _, c := range []byte(name) {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_') {
			return fmt.Errorf("%w: %.80q", ErrName, name)
		}
	}
	return nil
}

func checkShard(name string) error {
	if !strings.HasPrefix(name, "shard-") {
		return fmt.Errorf("%w: %.80q doesn't begin with shard-", ErrName, name)
	}
	return checkName(name)
}

// execPath is BOX/EXEC.
func execPath(box, exec string) (string, error) {
	if err := checkName(box); err != nil {
		return "", err
	}
	if err := checkName(exec); err != nil {
		return "", err
	}
	return box + "/" + exec, nil
}
