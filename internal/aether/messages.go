package aether

// Message types.
const (
	MsgReply   uint8 = 1 // the answer of a unary method; body as the method says
	MsgStarted uint8 = 2 // body [Started]
	MsgExited  uint8 = 3 // body [Exited]
	MsgGap     uint8 = 4 // body [Gap]
	MsgSignal  uint8 = 5 // body [Signal]
	MsgResize  uint8 = 6 // body [Resize]
	MsgAck     uint8 = 7 // body [Ack]
	// MsgReplayed says, before anything else, that what follows is the answer to an earlier request with the same key.
	MsgReplayed uint8 = 8
)

// Open is what a stream is opened with.
type Open struct {
	Method    string
	Sandbox   string
	Project   string
	RequestID string
	Trace     [16]byte // zero: none
	Key       string   // idempotency key: the request is carried out once however often it is sent; "": none
	Body      []byte   // at most [MaxMessage]
	FDs       []int    // sent along where the transport can; duplicated by Conn.Open, the caller keeps its own
	Closed    bool     // the opener sends nothing more, as if it called Close at once; it may still Reset
	Hold      bool     // the opener calls Hold at once; not sent
}

// Hello is what a peer says of itself when a connection starts.
type Hello struct {
	MinVersion, MaxVersion uint8
	Features               uint64
	Name                   string
	MaxData                uint32 // largest frame payload it accepts
	Window                 uint32 // credit it gives per stream and channel at the start
	MaxStreams             uint32 // streams it lets us have open at once
}

// ExecStart is the body of method "exec". After Unmarshal its byte slices refer to the input.
type ExecStart struct {
	ID        string   // chosen by the edge
	Argv      [][]byte // this or Shell
	Shell     []byte   // a script for the sandbox's /bin/sh
	Env       [][]byte // "K=V", complete but for HOME, USER, LOGNAME, PATH and TERM
	Cwd       []byte
	CwdCreate bool
	User      string
	Stdin     bool // a stdin flow follows; else it is /dev/null
	TTY       bool
	Rows      uint32
	Cols      uint32
	TimeoutMS int64 // 0: none
	MaxOutput int64 // bytes kept per output: the first and the last half
	Keep      bool  // journaled from birth, listed, attachable
	Lossless  bool  // the process waits for its one reader instead of output being dropped
	Session   string
	Tag       string
	Log       bool // its output is the sandbox's log
}

// Started is the body of [MsgStarted].
type Started struct {
	ID                string
	PIDInside         int32 // 0: unknown
	StartedAtUnixNano int64
}

// Exited is the body of [MsgExited].
type Exited struct {
	HasCode           bool
	Code              int32
	Signal            int32
	TimedOut          bool
	OOMKilled         bool
	Cancelled         bool
	StdinClosedEarly  bool
	Truncated         bool
	LeftProcesses     bool
	InfraError        string
	StdoutTotal       int64
	StderrTotal       int64
	StartedAtUnixNano int64
	DurationNano      int64
	TimeoutMS         int64
	MemoryLimit       int64 // bytes that the sandbox may use, where memory ran out
	MemoryPeak        int64 // bytes that it has used at most since its start
}

// Gap is the body of [MsgGap]: data that isn't there any more.
type Gap struct {
	Channel uint8
	Offset  int64
	Length  int64
}

// Attach is the body of method "attach".
type Attach struct {
	ID           string
	StdoutOffset int64
	StderrOffset int64
	Stdin        bool // take stdin and the terminal; the newest has them, the older is reset with code conflict
	FromNow      bool
	NoFollow     bool // what the process has written so far, then the end of the stream, with MsgExited only if it has ended
}

// Signal is the body of [MsgSignal] and of method "signal".
type Signal struct {
	ID     string
	Signal int32
	Tree   bool
}

// Ack is the body of [MsgAck]. The caller's, which asks for one, is empty.
type Ack struct {
	Dropped bool // some of the input that came before wasn't taken: the process has ended or closed it
}

// Resize is the body of [MsgResize] and of method "resize".
type Resize struct {
	ID   string
	Rows uint32
	Cols uint32
}

// AddBox is the body of method "add"; init's pidfd comes with the stream. Numbers from 16 up are free for later.
type AddBox struct {
	Name     string
	User     string // default user
	Hostname string
	Env      [][]byte
	CPUs     int32 // CPUs that a command is allowed to run on; 0: all
	Ends     int64 // when its longest time is over, in ns of the machine's clock since its start; 0: never
	Fresh    bool  // nothing has been done in it yet
}
