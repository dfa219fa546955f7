package devcmd

import (
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"time"

	"github.com/lmittmann/tint"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/internal/devmode"
	"github.com/dsec-io/dsec/internal/edge"
)

// devFlags are dsec dev's.
type devFlags struct {
	data       string
	listen     string
	keep       bool
	noContext  bool
	hosts      []string
	registries []string
	images     string
	idRanges   string
	pool       int
	orphans    time.Duration
	profiles   string
	logLevel   string
	logFormat  string
	capacity   edge.Capacity
}

func (a app) command() *cobra.Command {
	var f devFlags
	cmd := &cobra.Command{
		Use:        "dev",
		SuggestFor: []string{"serve", "server", "start", "up"},
		Short:      "Run a whole DSec on this machine",
		Long: "Runs the API server and an edge in one process, and prints `ready http://…` when it answers. It writes its\n" +
			"address and token to context.json in the data folder, and makes that the current context if there's none or its\n" +
			"server is dead. At the end (Ctrl-C) it stops its sandboxes, unless --keep. After a crash sandboxes go on, and the\n" +
			"next start with the same data folder finds them again.\n\nSandboxes may be promised more than the machine has, since most of them wait most of the time: --memory-ratio,\n" +
			"--cpu-ratio, --pid-ratio and --max-sandboxes say how much; --memory-reserve stays free whatever was promised. Beyond\n" +
			"that a create is refused with no_capacity.\n\nNeeds root on Linux; `dsec doctor` tells whether this machine will do.",
		Example: "  dsec dev\n  dsec dev --data /srv/dsec --listen 127.0.0.1:0 --no-context\n  dsec dev --keep      # sandboxes stay at the end\n" +
			"  dsec dev --memory-ratio 1 --memory-reserve 4g        # promise no more memory than there is",
		Args: cli.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			logger, err := a.logger(f.logLevel, f.logFormat)
			if err != nil {
				return err
			}
			return a.serveDev(cmd.Context(), &f, logger)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.data, "data", a.DefaultDataDir(), "data `FOLDER`; made if missing, used by one dsec dev at a time")
	fs.StringVar(&f.listen, "listen", "127.0.0.1:7080", "`ADDRESS` to listen on; port 0 picks one")
	fs.BoolVar(&f.keep, "keep", false, "leave the sandboxes running at the end")
	fs.BoolVar(&f.noContext, "no-context", false, "never make this server the current context")
	fs.StringArrayVar(&f.registries, "registry", nil, "registry `HOST` that images may come from and go to (repeatable; default: any)")
	fs.StringArrayVar(&f.hosts, "host", nil, "further host `NAME` to answer to (repeatable)")
	fs.StringVar(&f.images, "images", "", "`FOLDER` of the machine-wide image store (default /var/lib/dsec/images)")
	fs.StringVar(&f.idRanges, "id-ranges", "", "machine-wide `FILE` of id ranges (default /run/dsec/idranges.json)")
	fs.StringVar(&f.profiles, "pprof", "", "serve profiles of this process on a Unix `SOCKET` (curl --unix-socket SOCKET http://dsec/debug/pprof/)")
	fs.IntVar(&f.pool, "pool", devmode.DefaultPool, "`NUMBER` of user namespaces and roots kept ready per shard, and half as many whole sandboxes of the kind asked for last; 0: none")
	fs.DurationVar(&f.orphans, "orphan-limit", time.Hour, "how long sandboxes go on when nobody looks after them: after this server's death, or its end with --keep")
	addCapacityFlags(fs, &f.capacity)
	addLogFlags(cmd, &f.logLevel, &f.logFormat)
	cli.TakesFolder(cmd, "data", "images")
	cli.TakesFile(cmd, "id-ranges", "pprof")
	return cmd
}

// addCapacityFlags adds what is promised to sandboxes in all.
func addCapacityFlags(fs *pflag.FlagSet, k *edge.Capacity) {
	ratio := func(into *float64) pflag.Value {
		return &cli.Optional[float64]{Parse: parseRatio, Kind: "times", Then: func(v float64) { *into = v }}
	}
	fs.Var(&cli.Optional[int64]{Parse: cli.ParseCount, Kind: "number", Then: func(n int64) { k.Sandboxes = int(n) }},
		"max-sandboxes", "how many sandboxes may live at a time (default 10000)")
	fs.Var(ratio(&k.MemoryRatio), "memory-ratio", "what memory limits may add up to: times the machine's memory (default 25)")
	fs.Var(ratio(&k.CPURatio), "cpu-ratio", "what CPU limits may add up to: times the machine's cores (default 1000)")
	fs.Var(ratio(&k.PIDRatio), "pid-ratio", "what process limits may add up to: times kernel.pid_max (default 20)")
	fs.Var(&cli.Optional[int64]{Parse: cli.ParseMemory, Kind: "size", Then: func(mb int64) { k.ReserveMB = mb }},
		"memory-reserve", "refuse creates while less memory is available (512m, 2g; default 5 %, at least 256m)")
}

func addLogFlags(cmd *cobra.Command, level, format *string) {
	cmd.Flags().StringVar(level, "log-level", "info", "debug, info, warn or error")
	cmd.Flags().StringVar(format, "log-format", "", "text or json (default: text at a terminal, else json)")
	cli.Complete(cmd, "log-level", cobra.FixedCompletions([]string{"debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp))
	cli.Complete(cmd, "log-format", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
}

// logger logs to stderr.
func (a app) logger(level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, api.FieldError(api.CodeInvalid, "--log-level", "debug, info, warn or error", "no level %q", level)
	}
	_, tty := cli.Terminal(a.Stderr)
	if format == "" {
		format = "json"
		if tty {
			format = "text"
		}
	}
	switch format {
	case "json":
		return slog.New(slog.NewJSONHandler(a.Stderr, &slog.HandlerOptions{Level: l})), nil
	case "text":
		colour := tty && a.Getenv("NO_COLOR") == ""
		return slog.New(tint.NewTextHandler(a.Stderr, &tint.Options{Level: l, TimeFormat: time.TimeOnly, NoColor: !colour})), nil
	}
	return nil, api.FieldError(api.CodeInvalid, "--log-format", "text or json", "no format %q", format)
}

func parseRatio(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(v) || v <= 0 || v > 1e6 {
		return 0, fmt.Errorf("%q isn't a number above 0", s)
	}
	return v, nil
}
