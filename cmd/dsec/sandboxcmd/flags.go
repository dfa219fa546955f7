package sandboxcmd

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
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
	running  time.Duration
	idle     time.Duration
	paused   time.Duration
	onIdle   string
	onExpire string
}

func (f *specFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	f.resourceFlags.add(fs)
	f.envFlags.add(cmd)
	fs.StringArrayVarP(&f.labels, "label", "l", nil, "label `KEY=VALUE` (repeatable)")
	fs.StringVarP(&f.user, "user", "u", "", "`USER` to run as: name, uid, name:group or uid:gid (default: the image's)")
	fs.StringVarP(&f.workdir, "workdir", "w", "", "working directory `DIR`, made if missing (default: the image's)")
	fs.StringVar(&f.hostname, "hostname", "", "host `NAME` inside")
	fs.StringVar(&f.job, "job", "", "training `JOB` that the sandbox belongs to")
	fs.Var((*cli.Seconds)(&f.maxLife), "max-life", "stop the sandbox after this time (90s, 2h), whatever happens")
	fs.Var((*cli.Seconds)(&f.running), "max-running", "stop it when it has run for this time, which dsec sandbox extend moves")
	fs.Var((*cli.Seconds)(&f.idle), "max-idle", "stop it when for this time no command ran, nobody was connected and it used no CPU")
	fs.Var((*cli.Seconds)(&f.paused), "max-paused", "stop it when it was paused for this time")
	fs.StringVar(&f.onIdle, "on-idle", "", "what --max-idle does: `stop|pause` (default stop)")
	fs.StringVar(&f.onExpire, "on-expire", "", "what --max-running does: `stop|pause` (default stop)")
	ends := cobra.FixedCompletions([]string{api.ThenStop, api.ThenPause}, cobra.ShellCompDirectiveNoFileComp)
	for _, name := range []string{"on-idle", "on-expire"} {
		cli.Complete(cmd, name, ends)
	}
}

// spec builds what create is asked for.
func (f *specFlags) spec(image string, lookup func(string) (string, bool)) (api.Spec, error) {
	env, err := f.env(lookup)
	if err != nil {
		return api.Spec{}, err
	}
	labels, err := cli.Pairs("--label", f.labels)
	if err != nil {
		return api.Spec{}, err
	}
	s := api.Spec{
		Image: image, Resources: f.resources(), Env: env, Labels: labels, User: f.user, Workdir: f.workdir,
		Hostname: f.hostname, Job: f.job, OnIdle: f.onIdle, OnExpire: f.onExpire,
	}
	for _, t := range []struct {
		given time.Duration
		into  **int64
	}{{f.maxLife, &s.TTL.MaxS}, {f.running, &s.TTL.RunningS}, {f.idle, &s.TTL.IdleS}, {f.paused, &s.TTL.PausedS}} {
		if t.given > 0 {
			*t.into = new(int64(math.Ceil(t.given.Seconds())))
		}
	}
	return s, nil
}

// addKey adds the flag of an idempotency key.
func addKey(cmd *cobra.Command, key *string) {
	cmd.Flags().StringVar(key, "idempotency-key", "", "do it once: a repeat with the same `KEY` within a day finds what the first has made")
}

// resourceFlags are limits. Unset ones stay absent, so that the server's documented default holds.
type resourceFlags struct {
	cpu    cli.Optional[float64]
	memory cli.Optional[int64]
	pids   cli.Optional[int64]
}

func (f *resourceFlags) add(fs *pflag.FlagSet) {
	f.cpu.Parse, f.cpu.Kind = parseCPU, "cores"
	f.memory.Parse, f.memory.Kind = cli.ParseMemory, "size"
	f.pids.Parse, f.pids.Kind = cli.ParseCount, "number"
	fs.Var(&f.cpu, "cpu", "CPU limit in cores (0.5, 2)")
	fs.VarP(&f.memory, "memory", "m", "memory limit (512m, 2g)")
	fs.Var(&f.pids, "pids", "limit of processes and threads")
}

func (f *resourceFlags) resources() api.Resources {
	return api.Resources{CPU: f.cpu.Value, MemoryMB: f.memory.Value, PIDs: f.pids.Value}
}

func (f *resourceFlags) given() bool {
	return f.cpu.Value != nil || f.memory.Value != nil || f.pids.Value != nil
}

// envFlags are variables from the command line and from files; a later one wins, and --env wins over files.
type envFlags struct {
	vars  []string
	files []string
}

func (f *envFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringArrayVarP(&f.vars, "env", "e", nil, "variable `KEY=VALUE`, or KEY alone to take it from here (repeatable)")
	fs.StringArrayVar(&f.files, "env-file", nil, "`FILE` of variables, one KEY=VALUE a line (repeatable)")
	cli.TakesFile(cmd, "env-file")
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

// maxEnvFile is the most that is read of a file of variables, in bytes.
const maxEnvFile = 1 << 20

// readEnvFile reads lines of KEY=VALUE (or KEY); empty lines and those that begin with # are skipped. Values are taken
// as they are, without quotes or escapes.
func readEnvFile(file string, lookup func(string) (string, bool), env map[string]string) error {
	f, err := os.Open(file)
	if err != nil {
		return api.FieldError(api.CodeInvalid, "--env-file", "", "%v", err)
	}
	defer f.Close()
	limited := &io.LimitedReader{R: f, N: maxEnvFile + 1} // it may be a device without end
	sc := bufio.NewScanner(limited)
	sc.Buffer(nil, maxEnvFile)
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
	if limited.N == 0 {
		return api.FieldError(api.CodeInvalid, "--env-file", "", "%s: larger than %d bytes", file, maxEnvFile)
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

// flagHints are for flags that container engines have and making a sandbox hasn't.
const flagHints = `p=a port is reached later: dsec sandbox port-forward
publish=a port is reached later: dsec sandbox port-forward
v=files are copied: dsec sandbox cp
volume=files are copied: dsec sandbox cp
mount=files are copied: dsec sandbox cp
d=to leave it running: dsec sandbox create, or --keep
detach=to leave it running: dsec sandbox create, or --keep
name=the id is its name; for a mark of your own: --label name=NAME
network=a sandbox has no network; its ports are reached with dsec sandbox port-forward
net=a sandbox has no network; its ports are reached with dsec sandbox port-forward
entrypoint=name the command after IMAGE
ttl=say --max-life, --max-running, --max-idle or --max-paused
cpus=did you mean ` + "`--cpu`" + `?
`
