package apiserver

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// execStart is the request as the edge takes it. Strings are copied into byte slices one by one; they are short next to
// what starting a process costs.
func execStart(r *api.ExecRequest) aether.ExecStart {
	m := aether.ExecStart{
		Cwd: []byte(r.Cwd), User: r.User, Session: r.Session, MaxOutput: api.DefaultMaxOutput,
		Stdin: r.Stdin != nil || r.StdinText != nil,
	}
	if r.Shell != "" {
		m.Shell = []byte(r.Shell)
	}
	if len(r.Argv) > 0 {
		m.Argv = make([][]byte, len(r.Argv))
		for i, a := range r.Argv {
			m.Argv[i] = []byte(a)
		}
	}
	if len(r.Env) > 0 {
		m.Env = make([][]byte, 0, len(r.Env))
		for k, v := range r.Env {
			m.Env = append(m.Env, append(append(append(make([]byte, 0, len(k)+1+len(v)), k...), '='), v...))
		}
		slices.SortFunc(m.Env, bytes.Compare) // a map has no order; the same request is the same bytes
	}
	if r.TimeoutMS != nil {
		m.TimeoutMS = *r.TimeoutMS
	}
	if r.MaxOutputBytes != nil {
		m.MaxOutput = *r.MaxOutputBytes
	}
	return m
}

// processStart is the same for a process that outlives its request.
func processStart(r *api.StartRequest) aether.ExecStart {
	m := execStart(&r.ExecRequest)
	m.Keep, m.Lossless, m.Tag = true, r.Lossless, r.Tag
	m.Stdin = m.Stdin || r.StdinOpen
	if r.TTY != nil {
		m.TTY, m.Rows, m.Cols = true, uint32(r.TTY.Rows), uint32(r.TTY.Cols)
	}
	return m
}

// input is the stdin that came with a request.
func input(r *api.ExecRequest) []byte {
	if r.StdinText != nil {
		return []byte(*r.StdinText)
	}
	return r.Stdin
}

// exitStatus is an end as clients are told it.
func exitStatus(m *aether.Exited) api.ExitStatus {
	e := api.ExitStatus{
		Signal: api.SignalName(int(m.Signal)), TimedOut: m.TimedOut, OOMKilled: m.OOMKilled, Cancelled: m.Cancelled,
		InfraError: strings.ToValidUTF8(m.InfraError, "?"), StdinClosedEarly: m.StdinClosedEarly, StdoutTotal: m.StdoutTotal, StderrTotal: m.StderrTotal,
		Truncated: m.Truncated, LeftProcesses: m.LeftProcesses, StartedAt: unixNano(m.StartedAtUnixNano),
		DurationMS: float64(m.DurationNano) / 1e6,
	}
	if m.OOMKilled {
		e.OOM = &api.OOM{LimitBytes: m.MemoryLimit, PeakBytes: m.MemoryPeak}
	}
	if m.HasCode {
		e.ExitCode = new(int(m.Code))
	}
	if m.TimeoutMS > 0 {
		e.TimeoutMS = new(m.TimeoutMS)
	}
	return e
}

// unixNano is a time as the API shows it; 0 is the zero time.
func unixNano(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}
