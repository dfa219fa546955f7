package api

import "time"

// ExecRequest runs one command: Argv or Shell. With neither it is the image's ENTRYPOINT and CMD, else /bin/sh; in a
// session one of the two must be given.
type ExecRequest struct {
	Argv           []string          `json:"argv,omitempty"`             // found on PATH as execvp does
	Shell          string            `json:"shell,omitempty"`            // a script for the sandbox's /bin/sh
	Env            map[string]string `json:"env,omitempty"`              // added to the sandbox's
	Cwd            string            `json:"cwd,omitempty"`              // default: the sandbox's workdir
	User           string            `json:"user,omitempty"`             // default: the sandbox's
	Stdin          []byte            `json:"stdin_b64,omitempty"`        // base64; neither this nor StdinText means EOF at once
	StdinText      *string           `json:"stdin,omitempty"`            // text
	TimeoutMS      *int64            `json:"timeout_ms,omitempty"`       // absent: no limit
	MaxOutputBytes *int64            `json:"max_output_bytes,omitempty"` // per stream; default 1 MiB, at most 64 MiB
	Session        string            `json:"session,omitempty"`          // run in this session: its cwd and env, kept after
	RLimits        map[string]int64  `json:"rlimits,omitempty"`          // known, not supported yet
}

// StartRequest starts a process that is attached to, written to and waited for by id.
type StartRequest struct {
	ExecRequest
	StdinOpen bool   `json:"stdin_open,omitempty"` // keep stdin open for later writes
	TTY       *Size  `json:"tty,omitempty"`        // run on a terminal of this size
	Lossless  bool   `json:"lossless,omitempty"`   // the process waits for its one reader instead of output being dropped
	Tag       string `json:"tag,omitempty"`        // a name of the caller's own
}

// Size is a terminal's size in characters.
type Size struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// Encoding says how an output string is encoded.
type Encoding string

// Output is utf8 when all of it is valid UTF-8, else base64.
const (
	EncodingUTF8   Encoding = "utf8"
	EncodingBase64 Encoding = "base64"
)

// ExitStatus is how a process that started came to its end. Exactly one of ExitCode and Signal is set, but for an
// infrastructure error that lost the status: then neither is.
type ExitStatus struct {
	ExitCode         *int      `json:"exit_code"`        // null when a signal ended it
	Signal           string    `json:"signal,omitempty"` // "SIGKILL"
	TimedOut         bool      `json:"timed_out"`
	OOMKilled        bool      `json:"oom_killed"`
	OOM              *OOM      `json:"oom,omitempty"` // with oom_killed: what there was
	Cancelled        bool      `json:"cancelled"`
	InfraError       string    `json:"infra_error,omitempty"` // what of ours failed; empty: nothing
	StdinClosedEarly bool      `json:"stdin_closed_early"`    // it ended or closed stdin before all input was taken
	StdoutTotal      int64     `json:"stdout_total"`          // bytes written by the process
	StderrTotal      int64     `json:"stderr_total"`
	Truncated        bool      `json:"truncated"`      // some of the output isn't here; see the totals
	LeftProcesses    bool      `json:"left_processes"` // background children go on
	StartedAt        time.Time `json:"started_at"`
	DurationMS       float64   `json:"duration_ms"`
	TimeoutMS        *int64    `json:"timeout_ms,omitempty"` // the limit that was in force
}

// OOM is what there was when a sandbox had no memory left.
type OOM struct {
	LimitBytes int64 `json:"limit_bytes"` // of the sandbox; 0: none of its own
	PeakBytes  int64 `json:"peak_bytes"`  // the most that it has used since its start; 0: the kernel doesn't tell
}

// ExecResult is the answer to an [ExecRequest] whose command started. A truncated stream holds its first and its last
// max_output_bytes/2 bytes.
type ExecResult struct {
	ExitStatus
	Stdout         string   `json:"stdout"`
	StdoutEncoding Encoding `json:"stdout_encoding"`
	Stderr         string   `json:"stderr"`
	StderrEncoding Encoding `json:"stderr_encoding"`
}

// Process is a started process as the process list shows it.
type Process struct {
	ID        string      `json:"id"`
	Argv      []string    `json:"argv"`
	Tag       string      `json:"tag,omitempty"`
	Session   string      `json:"session,omitempty"`
	TTY       bool        `json:"tty,omitempty"`
	PID       int         `json:"pid"` // its number inside the sandbox; 0 when that isn't known
	Running   bool        `json:"running"`
	StartedAt time.Time   `json:"started_at"`
	Exit      *ExitStatus `json:"exit,omitempty"`
}

// Session is a chronus: a shell session with its own working directory and environment.
type Session struct {
	ID      string `json:"id"`
	Cwd     string `json:"cwd"`
	User    string `json:"user,omitempty"`
	Busy    bool   `json:"busy"` // a command is running in it
	Process string `json:"process,omitempty"`
}

// StreamEvent is one line of a process stream over NDJSON, and one text message over WebSocket. Data is base64.
type StreamEvent struct {
	Type   string      `json:"type"`             // started, stdout, stderr, gap, exit, error
	ID     string      `json:"id,omitempty"`     // started: the process id
	Offset int64       `json:"offset,omitempty"` // stdout, stderr: where the data stands in its stream; gap: where it begins
	Length int64       `json:"length,omitempty"` // gap: how many bytes are missing
	Stream string      `json:"stream,omitempty"` // gap: which stream
	Data   []byte      `json:"data,omitempty"`
	Exit   *ExitStatus `json:"exit,omitempty"`
	Error  *Error      `json:"error,omitempty"`
}
