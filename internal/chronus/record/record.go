// Package record is what of a shard's processes outlives it: the keeper holds it, as JSON, beside the descriptors.
package record

import (
	"slices"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// Process is what another shard has to know to go on with a process.
type Process struct {
	Box, ID   string
	Group     string   // its cgroup in the box
	Argv      [][]byte `json:",omitempty"` // shortened
	Tag       string   `json:",omitempty"`
	Session   string   `json:",omitempty"`
	TTY       bool     `json:",omitempty"`
	Keep      bool     `json:",omitempty"`
	Lossless  bool     `json:",omitempty"`
	Log       bool     `json:",omitempty"`
	MaxOutput int64    `json:",omitempty"`
	TimeoutMS int64    `json:",omitempty"`
	Started   int64    // Unix time in nanoseconds
	Began     int64    // the same, in the sandbox's own time
	Over      int64    `json:",omitempty"` // and when it ended
	PID       int      // host
	Inside    int      // in the sandbox
	OOMKills  int64    `json:",omitempty"` // of the box, when the command started

	FDs    []string       `json:",omitempty"` // what each of the item's descriptors is, one of the names below
	Result *aether.Exited `json:",omitempty"`
	Ended  int64          `json:",omitempty"`
	Cause  [3]bool        // timed out, cancelled, out of memory
}

// Names of descriptors in an item.
const (
	PID     = "pid"
	State   = "state"
	Stdin   = "in"
	MidR    = "midr"
	MidW    = "midw"
	Source  = "src" // and the number of the output
	Journal = "jrn"
)

// Numbered is the name of an output's descriptor.
func Numbered(name string, i int) string { return name + string(rune('0'+i)) }

// maxMetaArgv is how much of the arguments the list of processes shows.
const maxMetaArgv = 4 << 10

// Short is the arguments as far as they are shown.
func Short(argv [][]byte) [][]byte {
	var out [][]byte
	left := maxMetaArgv
	for _, a := range argv {
		if left <= 0 {
			break
		}
		out = append(out, slices.Clone(a[:min(len(a), left)]))
		left -= len(a)
	}
	return out
}

// Status is r in the shape of the API.
func Status(r *aether.Exited) *api.ExitStatus {
	e := &api.ExitStatus{
		TimedOut: r.TimedOut, OOMKilled: r.OOMKilled, Cancelled: r.Cancelled, InfraError: r.InfraError,
		StdinClosedEarly: r.StdinClosedEarly, StdoutTotal: r.StdoutTotal, StderrTotal: r.StderrTotal,
		Truncated: r.Truncated, LeftProcesses: r.LeftProcesses, StartedAt: time.Unix(0, r.StartedAtUnixNano).UTC(),
		DurationMS: float64(r.DurationNano) / 1e6,
	}
	if r.OOMKilled {
		e.OOM = &api.OOM{LimitBytes: r.MemoryLimit, PeakBytes: r.MemoryPeak}
	}
	if r.HasCode {
		e.ExitCode = new(int(r.Code))
	}
	if r.Signal != 0 {
		e.Signal = api.SignalName(int(r.Signal))
	}
	if r.TimeoutMS > 0 {
		e.TimeoutMS = new(r.TimeoutMS)
	}
	return e
}
