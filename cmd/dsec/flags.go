package main

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dsec-io/dsec/api"
)

// specFlags are the flags that describe a sandbox.
type specFlags struct {
	resourceFlags
	envFlags
	labels   []string
	user     string
	workdir  string
	hostname string
	job      string
	maxLife  time.Duration
}

func (f *specFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	f.resourceFlags.add(fs)
	f.envFlags.add(fs)
	fs.StringArrayVarP(&f.labels, "label", "l", nil, "label `KEY=VALUE` (repeatable)")
	fs.StringVarP(&f.user, "user", "u", "", "`USER` to run as: name, uid, name:group or uid:gid (default: the image's)")
	fs.StringVarP(&f.workdir, "workdir", "w", "", "working directory `DIR`, made if missing (default: the image's)")
	fs.StringVar(&f.hostname, "hostname", "", "host `NAME` inside")
	fs.StringVar(&f.job, "job", "", "training `JOB` that the sandbox belongs to")
	fs.Var((*seconds)(&f.maxLife), "max-life", "stop the sandbox after this time (90s, 2h)")
}

// spec builds what create is asked for.
func (f *specFlags) spec(image string, lookup func(string) (string, bool)) (api.Spec, error) {
	env, err := f.env(lookup)
	if err != nil {
		return api.Spec{}, err
	}
	labels, err := pairs("--label", f.labels)
	if err != nil {
		return api.Spec{}, err
	}
	s := api.Spec{
		Image: image, Resources: f.resources(), Env: env, Labels: labels, User: f.user, Workdir: f.workdir,
		Hostname: f.hostname, Job: f.job,
	}
	if f.maxLife > 0 {
		s.TTL.MaxS = new(int64(math.Ceil(f.maxLife.Seconds())))
	}
	return s, nil
}

// resourceFlags are limits. Unset ones stay absent, so that the server's documented default holds.
type resourceFlags struct {
	cpu    optional[float64]
	memory optional[int64]
	pids   optional[int64]
}

func (f *resourceFlags) add(fs *pflag.FlagSet) {
	f.cpu.parse, f.cpu.kind = parseCPU, "cores"
	f.memory.parse, f.memory.kind = parseMemory, "size"
	f.pids.parse, f.pids.kind = parseCount, "number"
	fs.Var(&f.cpu, "cpu", "CPU limit in cores (0.5, 2)")
	fs.VarP(&f.memory, "memory", "m", "memory limit (512m, 2g)")
	fs.Var(&f.pids, "pids", "limit of processes and threads")
}

func (f *resourceFlags) resources() api.Resources {
	return api.Resources{CPU: f.cpu.value, MemoryMB: f.memory.value, PIDs: f.pids.value}
}

func (f *resourceFlags) given() bool {
	return f.cpu.value != nil || f.memory.value != nil || f.pids.value != nil
}

// envFlags are variables from the command line and from files; a later one wins, and --env wins over files.
type envFlags struct {
	vars  []string
	files []string
}

func (f *envFlags) add(fs *pflag.FlagSet) {
	fs.StringArrayVarP(&f.vars, "env", "e", nil, "variable `KEY=VALUE`, or KEY alone to take it from here (repeatable)")
	fs.StringArrayVar(&f.files, "env-file", nil, "`FILE` of variables, one KEY=VALUE a line (repeatable)")
}

func (f *envFlags) env(lookup func(string) (string, bool)) (map[string]string, error) {
	env := map[string]string{}
	for _, file := range f.files {
		if err := readEnvFile(file, lookup, env); err != nil {
			return nil, err
		}
	}
	for _, v := range f.vars {
		if err := setVariable(v, lookup, env); err != nil {
			return nil, api.FieldError(api.CodeInvalid, "--env", "write KEY=VALUE", "%v", err)
		}
	}
	if len(env) == 0 {
		return nil, nil //nolint:nilnil // no variables, no map
	}
	return env, nil
}

// setVariable takes KEY=VALUE as it is; of KEY alone the value comes from here, and an unset one is left out.
func setVariable(v string, lookup func(string) (string, bool), env map[string]string) error {
	key, value, found := strings.Cut(v, "=")
	if key == "" {
		return fmt.Errorf("%q has no name", v)
	}
	if !found {
		if value, found = lookup(key); !found {
			return nil
		}
	}
	env[key] = value
	return nil
}

// readEnvFile reads lines of KEY=VALUE (or KEY); empty lines and those that begin with # are skipped. Values are taken
// as they are, without quotes or escapes.
func readEnvFile(file string, lookup func(string) (string, bool), env map[string]string) error {
	f, err := os.Open(file)
	if err != nil {
		return api.FieldError(api.CodeInvalid, "--env-file", "", "%v", err)
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for n := 1; sc.Scan(); n++ {
		line := strings.TrimLeft(sc.Text(), " \t")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := setVariable(line, lookup, env); err != nil {
			return api.FieldError(api.CodeInvalid, "--env-file", "write KEY=VALUE", "%s:%d: %v", file, n, err)
		}
	}
	if err := sc.Err(); err != nil {
		return api.FieldError(api.CodeInvalid, "--env-file", "", "%s: %v", file, err)
	}
	return nil
}

func pairs(flag string, list []string) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil //nolint:nilnil // nothing given, no map
	}
	m := make(map[string]string, len(list))
	for _, s := range list {
		k, v, found := strings.Cut(s, "=")
		if !found || k == "" {
			return nil, api.FieldError(api.CodeInvalid, flag, "write KEY=VALUE", "%q isn't KEY=VALUE", s)
		}
		m[k] = v
	}
	return m, nil
}

// optional is a flag that knows whether it was given.
type optional[T any] struct {
	value *T
	text  string
	kind  string
	parse func(string) (T, error)
	then  func(T) // what is done with it, if anything
}

func (o *optional[T]) String() string { return o.text }
func (o *optional[T]) Type() string   { return o.kind }
func (o *optional[T]) Set(s string) error {
	v, err := o.parse(s)
	if err != nil {
		return err
	}
	o.value, o.text = &v, s
	if o.then != nil {
		o.then(v)
	}
	return nil
}

func parseCPU(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v <= 0 {
		return 0, fmt.Errorf("%q isn't a number of cores above 0", s)
	}
	return v, nil
}

func parseRatio(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(v) || v <= 0 || v > 1e6 {
		return 0, fmt.Errorf("%q isn't a number above 0", s)
	}
	return v, nil
}

func parseCount(s string) (int64, error) {
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v <= 0 {
		return 0, fmt.Errorf("%q isn't a number above 0", s)
	}
	return v, nil
}

// parseMemory reads a size with a unit and gives MiB. A bare number is refused: some tools read it as bytes, some as
// MiB, and either guess may be wrong by a factor of a million.
func parseMemory(s string) (int64, error) {
	t := strings.ToLower(strings.TrimSpace(s))
	t = strings.TrimSuffix(strings.TrimSuffix(t, "b"), "i")
	if t == "" {
		return 0, fmt.Errorf("%q isn't a size", s)
	}
	var unit float64
	switch t[len(t)-1] {
	case 'k':
		unit = 1.0 / 1024
	case 'm':
		unit = 1
	case 'g':
		unit = 1024
	case 't':
		unit = 1024 * 1024
	default:
		return 0, fmt.Errorf("%q has no unit: write %sm for MiB or %sg for GiB", s, t, t)
	}
	v, err := strconv.ParseFloat(t[:len(t)-1], 64)
	mib := v * unit
	switch {
	case err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v <= 0:
		return 0, fmt.Errorf("%q isn't a size", s)
	case mib < 1 || mib != math.Trunc(mib):
		return 0, fmt.Errorf("%q isn't a whole number of MiB", s)
	case mib > 1<<40:
		return 0, fmt.Errorf("%q is too large", s)
	}
	return int64(mib), nil
}

// seconds is a duration flag that also takes a bare number of seconds.
type seconds time.Duration

func (d *seconds) Type() string { return "duration" }
func (d *seconds) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}

func (d *seconds) Set(s string) error {
	v, err := time.ParseDuration(s)
	if err != nil {
		var n float64
		if n, err = strconv.ParseFloat(s, 64); err == nil && n < math.MaxInt64/1e9 {
			v = time.Duration(n * 1e9)
		}
	}
	if err != nil || v <= 0 {
		return fmt.Errorf("%q isn't a time above 0 (30s, 5m, 1h30m)", s)
	}
	*d = seconds(v)
	return nil
}
