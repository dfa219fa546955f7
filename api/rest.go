package api

// SignalRequest is the body of a signal to a process.
type SignalRequest struct {
	Signal string `json:"signal"`         // its name, with or without SIG, or its number
	Tree   bool   `json:"tree,omitempty"` // to all of the process's tree, not only itself
}

// SessionRequest is the body of a request for a session. All of it may be left out.
type SessionRequest struct {
	ID   string `json:"id,omitempty"`   // a name of the caller's own; default: one is made
	Cwd  string `json:"cwd,omitempty"`  // default: the sandbox's workdir
	User string `json:"user,omitempty"` // default: the sandbox's
}

// Written is how much of a body was written to a process.
type Written struct {
	Written int64 `json:"written"` // in bytes
}

// ProcessInput is one text message that a client of a process's WebSocket sends.
type ProcessInput struct {
	Type   string `json:"type"`             // stdin, stdin_close, signal or resize
	Data   []byte `json:"data,omitempty"`   // stdin: what to write, base64
	Signal string `json:"signal,omitempty"` // signal: its name or number
	Tree   bool   `json:"tree,omitempty"`   // signal: to the whole tree
	Rows   uint16 `json:"rows,omitempty"`   // resize
	Cols   uint16 `json:"cols,omitempty"`   // resize
}

// Usage is what a sandbox uses now, and has used.
type Usage struct {
	MemoryBytes    int64     `json:"memory_bytes"`      // now, with what the kernel holds for it, without the cache
	CacheBytes     int64     `json:"cache_bytes"`       // contents of files that the kernel keeps as long as nobody needs the memory
	PeakBytes      int64     `json:"memory_peak_bytes"` // the most of both together since its start; 0: not known
	CPUNanos       int64     `json:"cpu_ns"`            // processor time since its start, in nanoseconds
	ThrottledNanos int64     `json:"cpu_throttled_ns"`  // how long its limit has held it back
	PIDs           int64     `json:"pids"`              // processes and threads now
	PIDsRefused    int64     `json:"pids_refused"`      // how often one was refused because of the limit
	OOMKills       int64     `json:"oom_kills"`         // how often a process was killed because memory was full
	Limits         Resources `json:"limits"`            // in force now
}
