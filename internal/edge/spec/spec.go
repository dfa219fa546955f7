// Package spec decides what may be asked of a sandbox: it checks create, patch and exec requests, and fills in what they
// leave open. All of it is functions of their arguments, safe for concurrent use.
//
// What is malformed is refused as invalid; what is well-formed but can't be enforced by this build is refused as an
// unsupported constraint, unless it is the weakest value there is. Nothing that was asked for is ever dropped.
package spec

import (
	"math"
	"path"
	"slices"
	"strings"

	"github.com/dsec-io/dsec/api"
)

// The bounds of a spec.
const (
	maxEnvBytes     = 256 << 10 // names and values together, with a byte for each '='
	maxCommandBytes = 1 << 20
	maxLabels       = 64
	maxLabelKey     = 128
	maxLabelValue   = 1024
	maxJob          = 128
	maxUser         = 256
	maxPath         = 4095
	maxSeconds      = 10 * 366 * 24 * 3600
	minCPU          = 0.01 // the least that the kernel's CPU limit can express
	minPIDs         = 3    // the sandbox's first process, a command, and what starts it
)

// The defaults of a spec, beside what the image says.
const (
	defaultBackend  = "container"
	defaultCPU      = 1.0
	defaultMemoryMB = 512
	defaultPIDs     = 512
	defaultHostname = "sandbox"
	defaultUser     = "root"
)

// Image is what an image says about its sandboxes.
type Image struct {
	Env      []string
	User     string
	Workdir  string
	Hostname string
	Digest   string

	Entrypoint []string // what runs in it unless told otherwise, with Cmd behind it
	Cmd        []string
}

// DefaultCommand is what a command that isn't said runs: the image's own, else a shell.
func (i Image) DefaultCommand() []string {
	if own := slices.Concat(i.Entrypoint, i.Cmd); len(own) > 0 {
		return own
	}
	return []string{Shell}
}

// Shell is what every sandbox is expected to have.
const Shell = "/bin/sh"

// faults gathers what is wrong with a request, so that the client is told of all of it at once.
type faults []*api.Error

func (f *faults) add(code api.Code, field, hint, format string, args ...any) {
	*f = append(*f, api.FieldError(code, field, hint, format, args...))
}

func (f *faults) take(err error) {
	if err != nil {
		*f = append(*f, api.AsError(err))
	}
}

// err is the first fault, with the others told in its detail. What is malformed comes before what can't be enforced:
// the latter may change once the former is put right.
func (f *faults) err() error {
	if len(*f) == 0 {
		return nil
	}
	slices.SortStableFunc(*f, func(a, b *api.Error) int { return a.HTTP - b.HTTP })
	first := (*f)[0]
	for _, e := range (*f)[1:] {
		first.Detail += "; also " + e.Error()
	}
	return first
}

// Effective checks a spec and fills in what it leaves open.
func Effective(s api.Spec, img Image) (api.Spec, error) {
	var f faults
	checkNames(&f, s)
	checkResources(&f, s.Resources)
	checkTTL(&f, s.TTL)
	checkChoices(&f, s)
	checkUnsupported(&f, s)
	if err := f.err(); err != nil {
		return s, err
	}
	s.Backend = or(s.Backend, defaultBackend)
	s.User = or(s.User, img.User, defaultUser)
	s.Workdir = or(s.Workdir, path.Join("/", img.Workdir))
	if !validHostname(img.Hostname) {
		img.Hostname = ""
	}
	s.Hostname = or(s.Hostname, img.Hostname, defaultHostname)
	s.QoS = or(s.QoS, "be")
	s.OnIdle, s.OnExpire = or(s.OnIdle, api.ThenStop), or(s.OnExpire, api.ThenStop)
	s.Runtime = or(s.Runtime, "native")
	s.Isolation = or(s.Isolation, "shared")
	s.Resources = Merged(api.Resources{CPU: new(defaultCPU), MemoryMB: new(int64(defaultMemoryMB)), PIDs: new(int64(defaultPIDs))}, s.Resources)
	return s, nil
}

func or(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// Merged is r with what p sets.
func Merged(r, p api.Resources) api.Resources {
	if p.CPU != nil {
		r.CPU = p.CPU
	}
	if p.MemoryMB != nil {
		r.MemoryMB = p.MemoryMB
	}
	if p.PIDs != nil {
		r.PIDs = p.PIDs
	}
	return r
}

func checkNames(f *faults, s api.Spec) {
	if s.Image == "" {
		f.add(api.CodeInvalid, "image", "name an image of the node's store", "it is missing")
	}
	if len(s.Command) > 0 && s.Command[0] == "" {
		f.add(api.CodeInvalid, "command[0]", "name a program", "it is empty")
	}
	f.take(api.ValidateArgv("command", s.Command))
	size := 0
	for _, a := range s.Command {
		size += len(a) + 1
	}
	if size > maxCommandBytes {
		f.add(api.CodeTooLarge, "command", "put it into a file of the sandbox", "it is %d bytes; the limit is %d", size, maxCommandBytes)
	}
	checkEnv(f, "env", s.Env)
	checkLabels(f, s.Labels)
	checkIdentity(f, s)
}

// checkIdentity checks what a sandbox's processes find themselves to be.
func checkIdentity(f *faults, s api.Spec) {
	if len(s.Job) > maxJob || !printable(s.Job) {
		f.add(api.CodeInvalid, "job", "use up to 128 printable characters", "%q isn't a job name", Clip(s.Job))
	}
	if len(s.User) > maxUser || strings.ContainsAny(s.User, "\x00\n") {
		f.add(api.CodeInvalid, "user", "use a name, a uid, name:group or uid:gid", "%q isn't a user", Clip(s.User))
	}
	if s.Workdir != "" && (!strings.HasPrefix(s.Workdir, "/") || len(s.Workdir) > maxPath || strings.ContainsRune(s.Workdir, 0)) {
		f.add(api.CodeInvalid, "workdir", "use an absolute path", "%q isn't one", Clip(s.Workdir))
	}
	if s.Hostname != "" && !validHostname(s.Hostname) {
		f.add(api.CodeInvalid, "hostname", "use labels of letters, digits and hyphens, as RFC 1123 says, 64 characters at most", "%q isn't a host name", Clip(s.Hostname))
	}
}

func checkEnv(f *faults, field string, env map[string]string) {
	f.take(api.ValidateEnv(field, env))
	size := 0
	for k, v := range env {
		size += len(k) + len(v) + 1
	}
	if size > maxEnvBytes {
		f.add(api.CodeTooLarge, field, "put large values into files", "it is %d bytes; the limit is %d", size, maxEnvBytes)
	}
}

func checkLabels(f *faults, labels map[string]string) {
	if len(labels) > maxLabels {
		f.add(api.CodeInvalid, "labels", "use fewer", "there are %d; the limit is %d", len(labels), maxLabels)
	}
	for k, v := range labels {
		if k == "" || len(k) > maxLabelKey || !printable(k) {
			f.add(api.CodeInvalid, "labels", "use keys of 1 to 128 printable characters", "%q isn't a label's key", Clip(k))
		}
		if len(v) > maxLabelValue || !printable(v) {
			f.add(api.CodeInvalid, "labels."+Clip(k), "use up to 1024 printable characters", "%q isn't a label's value", Clip(v))
		}
	}
}

func checkResources(f *faults, r api.Resources) {
	const field = "resources."
	if r.CPU != nil && (math.IsNaN(*r.CPU) || math.IsInf(*r.CPU, 0) || *r.CPU < minCPU || *r.CPU > 1e6) {
		f.add(api.CodeInvalid, field+"cpu", "leave it out for the default of 1 core", "%v isn't a number of cores; the least is %v", *r.CPU, minCPU)
	}
	for _, n := range []struct {
		name  string
		value *int64
		least int64
		most  int64
		hint  string
	}{
		{"memory_mb", r.MemoryMB, 1, 1 << 40, "leave it out for the default of 512"},
		{"disk_mb", r.DiskMB, 1, 1 << 40, "leave it out for no limit of its own"},
		{"pids", r.PIDs, minPIDs, 4_194_304, "leave it out for the default of 512"},
	} {
		if n.value != nil && (*n.value < n.least || *n.value > n.most) {
			f.add(api.CodeInvalid, field+n.name, n.hint, "%d isn't between %d and %d", *n.value, n.least, n.most)
		}
	}
	if r.DiskMB != nil && *r.DiskMB > 0 {
		f.add(api.CodeUnsupportedConstraint, field+"disk_mb", "leave it out", "%d can't be enforced: this build has no disk limits yet", *r.DiskMB)
	}
}

func checkTTL(f *faults, t api.TTL) {
	for _, n := range []struct {
		name  string
		value *int64
	}{
		{"ttl.idle_s", t.IdleS},
		{"ttl.running_s", t.RunningS},
		{"ttl.paused_s", t.PausedS},
		{"ttl.max_s", t.MaxS},
	} {
		if n.value != nil && (*n.value < 1 || *n.value > maxSeconds) {
			f.add(api.CodeInvalid, n.name, "leave it out for no limit", "%d isn't between 1 and %d", *n.value, int64(maxSeconds))
		}
	}
}

// checkChoices checks the fields that have a list of values: what isn't in it is malformed, what is in it beyond the
// supported ones can't be enforced.
func checkChoices(f *faults, s api.Spec) {
	for _, c := range []struct {
		field, value string
		supported    []string
		known        []string
	}{
		{"backend", s.Backend, []string{defaultBackend}, []string{"fncall", "microvm", "vm", "sim"}},
		{"isolation", s.Isolation, []string{"shared", "own"}, []string{"microvm", "vm"}},
		{"qos", s.QoS, []string{"be"}, []string{"ls"}},
		{"on_idle", s.OnIdle, []string{api.ThenStop, api.ThenPause}, nil},
		{"on_expire", s.OnExpire, []string{api.ThenStop, api.ThenPause}, nil},
		{"runtime", s.Runtime, []string{"native"}, []string{"crun", "gvisor"}},
	} {
		hint := "leave it out, or use " + strings.Join(c.supported, " or ")
		switch {
		case c.value == "" || slices.Contains(c.supported, c.value):
		case slices.Contains(c.known, c.value):
			f.add(api.CodeUnsupportedConstraint, c.field, hint, "%q isn't supported by this build yet", c.value)
		default:
			f.add(api.CodeInvalid, c.field, hint, "%q isn't one of %s", Clip(c.value), strings.Join(slices.Concat(c.supported, c.known), ", "))
		}
	}
}

// checkUnsupported refuses every constraint that nothing here would enforce, unless it is the weakest there is.
func checkUnsupported(f *faults, s api.Spec) {
	no := func(set bool, field, what string, value any) {
		if set {
			f.add(api.CodeUnsupportedConstraint, field, "leave it out", "%s (%v) can't be had with this build yet", what, value)
		}
	}
	no(len(s.Layers) > 0, "layers", "layers", len(s.Layers))
	no(len(s.Mounts) > 0, "mounts", "mounts", len(s.Mounts))
	// No network at all is what every sandbox gets, so a policy that allows nothing is kept.
	if n := s.Network; n != nil {
		no(len(n.Allow) > 0, "network.allow", "network access", n.Allow)
	}
	if i := s.Integrity; i != nil {
		no(len(i.Hidden)+len(i.ReadOnly)+len(i.VerifyOnly) > 0, "integrity", "integrity rules", len(i.Hidden)+len(i.ReadOnly)+len(i.VerifyOnly))
	}
	no(s.Priority != 0, "priority", "a priority", s.Priority)
	no(s.Burst, "burst", "overflow to other nodes", s.Burst)
	no(len(s.Secrets) > 0, "secrets", "secrets", len(s.Secrets))
}

// validHostname follows RFC 1123, within the kernel's 64 characters.
func validHostname(s string) bool {
	if len(s) > 64 {
		return false
	}
	alnum := func(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' }
	for label := range strings.SplitSeq(s, ".") {
		n := len(label)
		if n == 0 || n > 63 || !alnum(label[0]) || !alnum(label[n-1]) {
			return false
		}
		if strings.ContainsFunc(label, func(r rune) bool { return r > 0x7f || r != '-' && !alnum(byte(r)) }) {
			return false
		}
	}
	return true
}

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' })
}

// Clip shortens what a client sent, for use in a message to it.
func Clip(s string) string {
	if len(s) > 64 {
		return strings.ToValidUTF8(s[:64], "") + "…"
	}
	return s
}

// CheckPatch checks what a patch sets, by the same rules as a create.
func CheckPatch(p api.Patch) error {
	var f faults
	if p.Env != nil {
		checkEnv(&f, "env", *p.Env)
	}
	if p.Labels != nil {
		checkLabels(&f, *p.Labels)
	}
	if p.Resources != nil {
		checkResources(&f, *p.Resources)
	}
	return f.err()
}

// CheckExtension checks a request for more time.
func CheckExtension(x api.Extension) error {
	if x.RunningS == nil {
		return api.FieldError(api.CodeInvalid, "running_s", moreHint, "it is missing")
	}
	return checkMore(*x.RunningS)
}

// CheckResumption checks a request to go on.
func CheckResumption(x api.Resumption) error {
	if x.RunningS == nil {
		return nil
	}
	return checkMore(*x.RunningS)
}

const moreHint = "say for how many seconds from now on"

func checkMore(running int64) error {
	if running < 1 || running > maxSeconds {
		return api.FieldError(api.CodeInvalid, "running_s", moreHint, "%d isn't between 1 and %d", running, int64(maxSeconds))
	}
	return nil
}
