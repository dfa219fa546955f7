// Package record is what has to be known of a container to find it again, in the record that the edge keeps of it.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/dsec-io/dsec/internal/linux/pidfd"
	"github.com/dsec-io/dsec/internal/linux/proc"
	"golang.org/x/sys/unix"
)

// State is what has to be known to find a sandbox again. PID is 0 until its init is born.
type State struct {
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
	Ends      int64  `json:"ends,omitempty"` // when its longest time is over, in ns of the machine's clock since its start; 0: never
}

// Encode is s as it is kept.
func (s *State) Encode() json.RawMessage {
	b, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("encode state: %v", err)) // strings and numbers only: can't fail
	}
	return b
}

// Decode reads what Encode wrote; nothing is an empty State.
func Decode(raw json.RawMessage) (*State, error) {
	s := &State{}
	if len(raw) == 0 || string(raw) == "null" {
		return s, nil
	}
	if err := json.Unmarshal(raw, s); err != nil {
		return nil, fmt.Errorf("decode the sandbox's state: %w", err)
	}
	return s, nil
}

// Open finds the init that s describes, and returns its pidfd: ErrGone when it has ended, or when its number is another process's by now.
func (s *State) Open(boot string) (int, error) {
	if s.PID == 0 || s.Boot != boot {
		return -1, ErrGone
	}
	fd, err := pidfd.Open(s.PID)
	if errors.Is(err, unix.ESRCH) {
		return -1, ErrGone
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
		return -1, ErrGone
	}
	return -1, err
}

// ErrGone says that the init that was asked for has ended.
var ErrGone = errors.New("init has ended")
