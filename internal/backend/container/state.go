package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/dsec-io/dsec/internal/linux/pidfd"
	"github.com/dsec-io/dsec/internal/linux/proc"
	"golang.org/x/sys/unix"
)

// state is what has to be known to find a sandbox again. PID is 0 until its init is born.
type state struct {
	Boot      string `json:"boot"`
	Shard     string `json:"shard"`
	Project   string `json:"project"`
	Own       bool   `json:"own,omitempty"`
	Owner     uint32 `json:"owner"` // uid of the shard
	Base      uint32 `json:"base"`  // first id of the sandbox's range
	PID       int    `json:"pid,omitempty"`
	StartTime uint64 `json:"start_time,omitempty"`
	User      string `json:"user,omitempty"`
	Hostname  string `json:"hostname,omitempty"`
	CPUs      int32  `json:"cpus,omitempty"`
}

func (s *state) encode() json.RawMessage {
	b, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("encode state: %v", err)) // strings and numbers only: can't fail
	}
	return b
}

func decodeState(raw json.RawMessage) (*state, error) {
	s := &state{}
	if len(raw) == 0 || string(raw) == "null" {
		return s, nil
	}
	if err := json.Unmarshal(raw, s); err != nil {
		return nil, fmt.Errorf("decode the sandbox's state: %w", err)
	}
	return s, nil
}

// open finds the init that s describes: errGone when it has ended, or when its number is another process's by now.
func (s *state) open(boot string) (int, error) {
	if s.PID == 0 || s.Boot != boot {
		return -1, errGone
	}
	fd, err := pidfd.Open(s.PID)
	if errors.Is(err, unix.ESRCH) {
		return -1, errGone
	}
	if err != nil {
		return -1, err
	}
	// In this order: the start time is read for as long as the pidfd's process can't have been replaced.
	start, err := proc.StartTime(s.PID)
	ended := errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
	if err == nil && start == s.StartTime {
		ended, err = pidfd.Exited(fd)
	} else if err == nil {
		ended = true
	}
	if err == nil && !ended {
		return fd, nil
	}
	_ = unix.Close(fd)
	if ended {
		return -1, errGone
	}
	return -1, err
}

// errGone says that the init that was asked for has ended.
var errGone = errors.New("init has ended")
