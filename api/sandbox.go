package api

import "time"

// State is where a sandbox is in its life.
type State string

// The states of DESIGN §2. Creating, pausing, resuming, snapshotting, forking and stopping are short.
const (
	StateCreating     State = "creating"
	StateRunning      State = "running"
	StatePausing      State = "pausing"
	StatePaused       State = "paused"
	StateResuming     State = "resuming"
	StateSnapshotting State = "snapshotting"
	StateForking      State = "forking"
	StateStopping     State = "stopping"
	StateStopped      State = "stopped"
	StateFailed       State = "failed"
)

// States lists all states, in the order of a life.
func States() []State {
	return []State{
		StateCreating, StateRunning, StatePausing, StatePaused, StateResuming,
		StateSnapshotting, StateForking, StateStopping, StateStopped, StateFailed,
	}
}

// Ended tells whether a sandbox in this state is over: it refuses everything but reads and a repeated stop.
func (s State) Ended() bool { return s == StateStopped || s == StateFailed }

// Spec is what a create request asks for. An absent field means its documented default; GET answers with the effective
// spec, defaults filled in. Fields that this build can't enforce are known, so that they are refused with
// [CodeUnsupportedConstraint] and never dropped.
type Spec struct {
	Backend   string            `json:"backend,omitempty"` // "container" (default)
	Image     string            `json:"image"`             // name of an image in the node's store
	Command   []string          `json:"command,omitempty"` // optional start process; its output is the sandbox's log
	Resources Resources         `json:"resources,omitzero"`
	Env       map[string]string `json:"env,omitempty"`      // added to the image's; a value here wins
	User      string            `json:"user,omitempty"`     // name, uid, name:group or uid:gid; default: the image's, else root
	Workdir   string            `json:"workdir,omitempty"`  // absolute; default: the image's, else "/"; created if missing
	Hostname  string            `json:"hostname,omitempty"` // default: "sandbox"
	Labels    map[string]string `json:"labels,omitempty"`
	Job       string            `json:"job,omitempty"` // groups the sandboxes of one training job
	TTL       TTL               `json:"ttl,omitzero"`
	Isolation string            `json:"isolation,omitempty"` // "shared" (default) or "own": an aether process of its own

	Layers    []string          `json:"layers,omitempty"`
	Mounts    []Mount           `json:"mounts,omitempty"`
	QoS       string            `json:"qos,omitempty"`
	OnIdle    string            `json:"on_idle,omitempty"`
	OnExpire  string            `json:"on_expire,omitempty"`
	Network   *Network          `json:"network,omitempty"`
	Integrity *Integrity        `json:"integrity,omitempty"`
	Priority  int               `json:"priority,omitempty"`
	Runtime   string            `json:"runtime,omitempty"` // "native" (default)
	Burst     bool              `json:"burst,omitempty"`
	Secrets   []SecretReference `json:"secrets,omitempty"`
}

// What [Spec.OnIdle] and [Spec.OnExpire] have done with a sandbox when ttl.idle_s or ttl.running_s is over.
const (
	ThenStop  = "stop"
	ThenPause = "pause"
)

// Resources are a sandbox's limits. Nil means the default, which GET shows; zero and below are refused.
type Resources struct {
	CPU      *float64 `json:"cpu,omitempty"`       // cores; default 1
	MemoryMB *int64   `json:"memory_mb,omitempty"` // MiB of memory, swap off; default 512
	DiskMB   *int64   `json:"disk_mb,omitempty"`   // MiB of the writable layer; default: no limit of its own
	PIDs     *int64   `json:"pids,omitempty"`      // processes and threads; default 512
}

// TTL bounds a sandbox's life, in seconds.
type TTL struct {
	IdleS    *int64 `json:"idle_s,omitempty"`
	RunningS *int64 `json:"running_s,omitempty"`
	PausedS  *int64 `json:"paused_s,omitempty"`
	MaxS     *int64 `json:"max_s,omitempty"`
}

// Mount places a volume or host directory in the sandbox.
type Mount struct {
	Path     string `json:"path"`
	Source   string `json:"source"`
	ReadOnly bool   `json:"readonly,omitempty"`
}

// Network is the egress policy of a sandbox.
type Network struct {
	Allow []string `json:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty"`
}

// Integrity lists paths that a stage hides, freezes or only verifies.
type Integrity struct {
	Hidden     []string `json:"hidden,omitempty"`
	ReadOnly   []string `json:"readonly,omitempty"`
	VerifyOnly []string `json:"verify_only,omitempty"`
}

// SecretReference names a secret and the variable that receives it.
type SecretReference struct {
	Name string `json:"name"`
	Env  string `json:"env,omitempty"`
}

// Sandbox is a sandbox as GET answers it.
type Sandbox struct {
	ID        string     `json:"id"`
	State     State      `json:"state"`
	Reason    string     `json:"reason,omitempty"` // why it is paused or stopped, or has failed
	Project   string     `json:"project"`
	Spec      Spec       `json:"spec"` // the effective spec
	CreatedAt time.Time  `json:"created_at"`
	StartedAt *time.Time `json:"started_at,omitempty"` // when it first answered
	PausedAt  *time.Time `json:"paused_at,omitempty"`  // while it is paused: since when
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"` // when ttl.running_s (of a paused one: ttl.paused_s) or ttl.max_s will be over, extensions included
	Already   bool       `json:"already,omitempty"`    // of a stop, a pause or a resume: it had ended, or was so, before
}

// Extension asks for more time.
type Extension struct {
	RunningS *int64 `json:"running_s"` // ttl.running_s isn't over before so many seconds from now; what was set or asked for before is never shortened
}

// Resumption lets a paused sandbox go on.
type Resumption struct {
	RunningS *int64 `json:"running_s,omitempty"` // as of an [Extension], from the end of the pause; absent: what was left goes on
}

// Patch changes a sandbox. A nil field stays as it is; a non-nil Env or Labels replaces the whole map, and a
// key with a null value in EnvSet or LabelsSet is removed.
type Patch struct {
	Env       *map[string]string `json:"env,omitempty"`
	Labels    *map[string]string `json:"labels,omitempty"`
	Resources *Resources         `json:"resources,omitempty"`
}

// SandboxList is one page of sandboxes, newest first.
type SandboxList struct {
	Items  []Sandbox `json:"items"`
	Cursor string    `json:"cursor,omitempty"` // absent on the last page
}

// Event is one thing that happened to a sandbox.
type Event struct {
	Seq     int64          `json:"seq"` // per sandbox, from 1, without gaps
	Time    time.Time      `json:"time"`
	Sandbox string         `json:"sandbox"`
	Type    string         `json:"type"` // created, running, exec_started, exec_ended, updated, extended, pausing, paused, pause_failed, resuming, resumed, resume_failed, stopping, stopped, failed, adopted, aether_lost, aether_back, oom, pids_limit
	Message string         `json:"message,omitempty"`
	Data    map[string]any `json:"data,omitempty"`
}
