// Package doctor finds out what this machine can do for DSec, by trying: never by a version or by a device node alone.
//
// Each probe says what it found and, where something is missing, a command or a step that helps. A probe leaves nothing
// behind: what it makes (mounts, cgroups, processes, files) is gone when it returns, also when it fails halfway. Probes
// run one after another; [Run] may be called concurrently.
package doctor

import (
	"fmt"
	"strings"
)

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
	Fix      string `json:"fix,omitempty"` // what to do; a shell command where there is one, with a comment perhaps
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
	IDRanges   string // the machine-wide id range file; default /run/dsec/idranges.json
}

// Leftover is what an instance without a server has in this machine's kernel and in its machine-wide files.
type Leftover struct {
	Instance  string `json:"instance"`
	DataDir   string `json:"data_dir"`  // where it was when it began
	Groups    bool   `json:"groups"`    // it has cgroups
	Processes int    `json:"processes"` // that live in them: its sandboxes, and what looks after them
	RunDir    string `json:"run_dir"`   // a folder of sockets away from the data folder; empty: none
	Claim     bool   `json:"claim"`     // it has id ranges
	Folder    bool   `json:"folder"`    // the data folder is there, so that a server may take the rest over
}

// Bare tells whether nothing is left but a line in the machine-wide file of id ranges, which a later server takes back.
func (l Leftover) Bare() bool { return !l.Folder && !l.Groups && l.Processes == 0 && l.RunDir == "" }

// Kept tells whether sandboxes go on that a server on the same data folder would take over, as after dsec dev --keep.
func (l Leftover) Kept() bool { return l.Folder && l.Processes > 0 }

// String says what there is in one line.
func (l Leftover) String() string {
	var what []string
	if l.Processes > 0 {
		what = append(what, fmt.Sprintf("%d processes", l.Processes))
	}
	if l.Groups {
		what = append(what, "cgroups dsec-"+l.Instance)
	}
	if l.RunDir != "" {
		what = append(what, l.RunDir)
	}
	if !l.Folder && l.Claim {
		what = append(what, "id ranges")
	}
	where := "its data folder " + l.DataDir + " is gone"
	if l.Folder {
		where = "its server on " + l.DataDir + " has ended"
	}
	return fmt.Sprintf("instance %s: %s; %s", l.Instance, strings.Join(what, ", "), where)
}
