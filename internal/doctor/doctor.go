// Package doctor finds out what this machine can do for DSec, by trying: never by a version or by a device node alone.
//
// Each probe says what it found and, where something is missing, a command or a step that helps. A probe leaves nothing
// behind: what it makes (mounts, cgroups, processes, files) is gone when it returns, also when it fails halfway. Probes
// run one after another; [Run] may be called concurrently.
package doctor

// Status is how a check came out.
type Status string

// Degraded means that DSec works, but slower or with less; Missing that what the check is about can't be had.
const (
	OK       Status = "ok"
	Degraded Status = "degraded"
	Missing  Status = "missing"
)

// Check is one thing that was tried.
type Check struct {
	Name     string `json:"name"`
	Status   Status `json:"status"`
	Required bool   `json:"required"`      // without it `dsec dev` can't run
	Found    string `json:"found"`         // what was seen, errors included
	Fix      string `json:"fix,omitempty"` // what to do; a command where there is one
}

// Report is all checks. OK is false when a required one is missing.
type Report struct {
	OK     bool    `json:"ok"`
	Kernel string  `json:"kernel"`
	Checks []Check `json:"checks"`
}

// Options say where DSec would keep its things.
type Options struct {
	DataDir    string // the data folder; need not exist
	ImageStore string // the machine-wide image store; default /var/lib/dsec/images
}
