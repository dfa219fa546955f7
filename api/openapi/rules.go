package openapi

import (
	"maps"

	"github.com/dsec-io/dsec/api"
)

// rule is what is true of a type or field and can't be seen in Go.
type rule struct {
	strict    bool // of a struct: other members are refused
	enum      []any
	minimum   *float64
	above     *float64 // exclusive
	maximum   *float64
	pattern   string
	minLength int
	maxLength int
	minItems  int
	absent    any // what holds when it is left out
	of        any // describe it as this value's type
}

// Patterns of ids.
const (
	sandboxPattern = `^[a-z][a-z0-9]{19,30}$`
	projectPattern = `^[a-z][a-z0-9-]{0,62}$`
	imagePattern   = `^[a-z0-9][a-z0-9._-]{0,127}$`
)

func words(s ...any) []any { return s }

func scopes() []any {
	var all []any
	for _, s := range api.Scopes() {
		all = append(all, string(s))
	}
	return all
}

func atLeast(n float64) rule { return rule{minimum: &n} }

func between(low, high float64) rule { return rule{minimum: &low, maximum: &high} }

// rules are keyed by TYPE, for struct types and strings of few words, and TYPE.FIELD. One that applies to nothing fails
// a test.
func rules() map[string]rule {
	all := rulesOfRequests()
	maps.Copy(all, rulesOfAnswers())
	return all
}

func rulesOfRequests() map[string]rule {
	const decade, year = 10 * 366 * 24 * 3600, 366 * 24 * 3600 * 1000
	strict := rule{strict: true}
	return map[string]rule{
		"Spec": strict, "Resources": strict, "TTL": strict, "Mount": strict, "Network": strict, "Integrity": strict, "SecretReference": strict,
		"Patch": strict, "ExecRequest": strict, "StartRequest": strict, "Size": strict, "SignalRequest": strict, "SessionRequest": strict,
		"ProcessInput": strict, "ImagePull": strict, "ImagePush": strict, "RegistryAuth": strict, "ProjectSpec": strict, "TokenSpec": strict, "Grant": strict, "Extension": strict, "Resumption": strict,

		"Role":                {enum: words("admin", "developer", "reader")},
		"Scope":               {enum: scopes()},
		"Decision":            {enum: words("allow", "deny")},
		"ProjectSpec.Name":    {pattern: projectPattern},
		"TokenSpec.Label":     {maxLength: 100},
		"TokenSpec.ExpiresIn": between(1, 10*365*86400),

		"State": {enum: words("creating", "running", "pausing", "paused", "resuming", "snapshotting", "forking", "stopping", "stopped", "failed")},

		"Spec.Backend":   {enum: words("container", "fncall", "microvm", "vm", "sim"), absent: "container"},
		"Spec.Image":     {pattern: imagePattern},
		"Spec.Hostname":  {maxLength: 64, absent: "sandbox"},
		"Spec.Workdir":   {pattern: "^/", maxLength: 4095},
		"Spec.User":      {maxLength: 256},
		"Spec.Job":       {maxLength: 128},
		"Spec.Isolation": {enum: words("shared", "own", "microvm", "vm"), absent: "shared"},
		"Spec.QoS":       {enum: words("be", "ls"), absent: "be"},
		"Spec.OnIdle":    {enum: words("stop", "pause"), absent: "stop"},
		"Spec.OnExpire":  {enum: words("stop", "pause"), absent: "stop"},
		"Spec.Runtime":   {enum: words("native", "crun", "gvisor"), absent: "native"},

		"Resources.CPU":      {minimum: new(0.01), maximum: new(1e6), absent: 1},
		"Resources.MemoryMB": {minimum: new(1.0), maximum: new(float64(1 << 40)), absent: 512},
		"Resources.DiskMB":   between(1, 1<<40),
		"Resources.PIDs":     {minimum: new(3.0), maximum: new(4194304.0), absent: 512},

		"TTL.IdleS": between(1, decade), "TTL.RunningS": between(1, decade), "TTL.PausedS": between(1, decade), "TTL.MaxS": between(1, decade),

		"Sandbox.ID": {pattern: sandboxPattern}, "Event.Seq": atLeast(1), "Extension.RunningS": between(1, decade), "Resumption.RunningS": between(1, decade),

		"ExecRequest.Argv":           {minItems: 1},
		"ExecRequest.TimeoutMS":      between(1, year),
		"ExecRequest.MaxOutputBytes": {minimum: new(1.0), maximum: new(float64(api.MaxMaxOutput)), absent: api.DefaultMaxOutput},
		"StartRequest.Tag":           {maxLength: 256},
		"Size.Rows":                  between(1, 65535),
		"Size.Cols":                  between(1, 65535),
		"SessionRequest.ID":          {pattern: `^[A-Za-z0-9_-]{1,64}$`},
		"ProcessInput.Type":          {enum: words("stdin", "stdin_close", "signal", "resize")},
	}
}

func rulesOfAnswers() map[string]rule {
	return map[string]rule{
		"Encoding":               {enum: words("utf8", "base64")},
		"ExitStatus.ExitCode":    between(0, 255),
		"ExitStatus.StdoutTotal": atLeast(0),
		"ExitStatus.StderrTotal": atLeast(0),
		"ExitStatus.DurationMS":  atLeast(0),
		"Process.PID":            atLeast(0),
		"StreamEvent.Type":       {enum: words("started", "stdout", "stderr", "gap", "exit", "error")},
		"StreamEvent.Stream":     {enum: words("stdout", "stderr")},
		"Written.Written":        atLeast(0),
		"Usage.MemoryBytes":      atLeast(0),
		"Usage.CPUNanos":         atLeast(0),
		"Usage.PIDs":             atLeast(0),
		"Usage.OOMKills":         atLeast(0),
		"Usage.CacheBytes":       atLeast(0),
		"Usage.PeakBytes":        atLeast(0),
		"Usage.ThrottledNanos":   atLeast(0),
		"Usage.PIDsRefused":      atLeast(0),
		"OOM.LimitBytes":         atLeast(0),
		"OOM.PeakBytes":          atLeast(0),

		"FileInfo.Type":   {enum: words("file", "directory", "symlink", "fifo", "socket", "device")},
		"FileInfo.Size":   atLeast(0),
		"FileInfo.Mode":   between(0, 0o7777),
		"FileInfo.SHA256": {pattern: "^[0-9a-f]{64}$"},

		"FileEvent.Type": {enum: words("ready", "create", "modify", "closed_write", "attrib", "delete", "rename", "overflow", "skipped", "gone", "error")},

		"Image.Digest":            {pattern: "^sha256:[0-9a-f]{64}$"},
		"Image.SizeBytes":         atLeast(0),
		"ImagePushed.SizeBytes":   atLeast(0),
		"Image.InUse":             atLeast(0),
		"ImageEvent.Type":         {enum: words("progress", "done", "error")},
		"ImageEvent.Phase":        {enum: words("downloading", "reading", "building", "packing", "uploading")},
		"ImageEvent.Bytes":        atLeast(0),
		"ImageEvent.Total":        atLeast(0),
		"ImageRemoved.FreedBytes": atLeast(0),

		"Error.HTTP":     between(400, 599),
		"Error.Code":     {},
		"Error.RetryMS":  atLeast(1),
		"Error.ExitCode": between(126, 127),
	}
}
