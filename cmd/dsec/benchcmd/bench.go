package benchcmd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
)

// benchFlags are dsec bench's.
type benchFlags struct {
	json        bool
	quick       bool
	n           int
	concurrency []int
	peers       []string
	sandboxes   int
	memoryMB    int64
	originals   string
	profile     bool
	out         string
	images      string
}

func (a app) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure a server as its clients meet it",
		Long: "Measures the server of the current context over HTTP, from this process. Where a benchmark needs other settings,\n" +
			"or no server answers, it starts a `dsec dev --no-context` of its own and says so. Peers do the same steps in the\n" +
			"same run, block by block in turns. Failures and progress go to stderr, the figures to stdout; the exit code is 1\n" +
			"when anything failed. Needs root on Linux, and the images of `make setup`.",
		Example: "  dsec bench create --quick\n  dsec bench exec --json --peers crun --out /tmp/bench",
		Args:    cli.Subcommand,
		RunE:    cli.Group,
	}
	cmd.AddCommand(
		a.oneBench("create", "Measure lives: create, first command, stop", "  dsec bench create --concurrency 1,8 --peers crun,runc,bwrap"),
		a.oneBench("exec", "Measure commands in running sandboxes", "  dsec bench exec --n 5000 --concurrency 16"),
		a.densityBench(),
		a.plainBench("codec", "Measure the Aether protocol's codec, in this process", "  dsec bench codec --quick"),
		a.plainBench("stream", "Measure 1 GiB of output, of upload and of download", "  dsec bench stream --n 10 --json"),
		a.rlBench())
	return cmd
}

// densityBench fills the machine's memory, so it has a server of its own and few choices.
func (a app) densityBench() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "density",
		Short: "Measure how many idle sandboxes fit, and what each takes",
		Long: "Starts a server of its own and makes idle sandboxes until they use as much memory as told, then measures what each\n" +
			"takes, has every one answer, and stops all. Says which limit stopped it: memory, --n, admission, or an error. It\n" +
			"leaves 3 GiB of the machine available.",
		Example: "  dsec bench density --n 1000\n  dsec bench density --memory 12g --json",
		Args:    cli.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			return a.bench(cmd.Context(), "density", &f)
		},
	}
	f.common(cmd)
	cmd.Flags().Var(&cli.Optional[int64]{Parse: cli.ParseMemory, Kind: "size", Then: func(mb int64) { f.memoryMB = mb }},
		"memory", "how much memory the sandboxes may use (512m, 12g; default 12g)")
	return cmd
}

// plainBench is a benchmark without peers and levels.
func (a app) plainBench(name, short, example string) *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:     name,
		Short:   short,
		Example: example,
		Args:    cli.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			return a.bench(cmd.Context(), name, &f)
		},
	}
	f.common(cmd)
	f.profiled(cmd)
	return cmd
}

// rlBench measures learning, which is in this process, and needs a server for --sandboxes only.
func (a app) rlBench() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "rl",
		Short: "Measure reinforcement learning: environments, advantages, training",
		Long: "Measures steps of the environments in memory, advantages, and whole training on squared, all on one core by processor\n" +
			"time. With --sandboxes it measures steps of so many sandboxes at once instead, against one after another.\n\n" +
			"--originals compares environments with the C originals, where you have them: the folder pufferlib/ocean of PufferLib 3.0,\n" +
			"with raylib.h in it or where gcc finds it. They are compiled and take turns with ours, sample by sample.",
		Example: "  dsec bench rl --quick\n  dsec bench rl --originals PufferLib/pufferlib/ocean\n  dsec bench rl --sandboxes 16 --json",
		Args:    cli.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.sandboxes < 0 || f.sandboxes > 1024 || f.n < 0 {
				return api.FieldError(api.CodeInvalid, "--sandboxes", "a number from 1 to 1024, and --n above 0", "nothing can be measured with that")
			}
			if f.originals != "" && f.sandboxes > 0 {
				return api.FieldError(api.CodeInvalid, "--originals", "leave one out", "with --sandboxes nothing is measured that has an original")
			}
			return a.bench(cmd.Context(), "rl", &f)
		},
	}
	f.common(cmd)
	cmd.Flags().StringVar(&f.originals, "originals", "", "folder of the C originals to compare environments with")
	cli.TakesFolder(cmd, "originals")
	cmd.Flags().IntVar(&f.sandboxes, "sandboxes", 0, "measure steps of so many real sandboxes")
	return cmd
}

// common are the flags that all benchmarks have.
func (f *benchFlags) common(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.BoolVar(&f.json, "json", false, "print one JSON document and nothing else")
	fs.BoolVar(&f.quick, "quick", false, "fewer operations, on the same path")
	fs.IntVar(&f.n, "n", 0, "how many operations (default: the benchmark's)")
	fs.StringVar(&f.out, "out", "", "folder for raw samples and plots")
	fs.StringVar(&f.images, "images", "", "machine-wide image store (default /var/lib/dsec/images)")
	cli.TakesFolder(cmd, "out", "images")
}

func (a app) oneBench(name, short, example string) *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:     name,
		Short:   short,
		Example: example,
		Args:    cli.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			known := []string{"crun", "runc", "bwrap"}
			for _, p := range f.peers {
				if !slices.Contains(known, p) {
					return api.FieldError(api.CodeInvalid, "--peers", "some of "+strings.Join(known, ", "), "no peer %q", p)
				}
			}
			return a.bench(cmd.Context(), name, &f)
		},
	}
	f.common(cmd)
	f.profiled(cmd)
	fs := cmd.Flags()
	fs.IntSliceVar(&f.concurrency, "concurrency", nil, "how many operations at once, one run each (default: the benchmark's)")
	fs.StringSliceVar(&f.peers, "peers", nil, "compare with crun, runc, bwrap")
	cli.Complete(cmd, "peers", cobra.FixedCompletions([]string{"crun", "runc", "bwrap"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// profiled adds the flag of benchmarks that can be profiled.
func (f *benchFlags) profiled(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.profile, "profile", false, "then draw flame graphs of client, server and shards into --out, and list their functions")
}

// check finds what can't be measured.
func (f *benchFlags) check() error {
	switch {
	case f.n < 0 || slices.ContainsFunc(f.concurrency, func(c int) bool { return c < 1 || c > 4096 }):
		return api.FieldError(api.CodeInvalid, "--concurrency", "numbers from 1 to 4096, and --n above 0", "nothing can be measured with that")
	case f.profile && f.out == "":
		return api.FieldError(api.CodeInvalid, "--out", "--profile --out DIR", "flame graphs need a folder")
	}
	return nil
}

// typed is the command line that prints the figures again.
func (f *benchFlags) typed(name string) string {
	words := []string{"dsec bench", name}
	if f.quick {
		words = append(words, "--quick")
	}
	if f.sandboxes > 0 {
		words = append(words, fmt.Sprintf("--sandboxes %d", f.sandboxes))
	}
	if f.memoryMB > 0 {
		words = append(words, fmt.Sprintf("--memory %dm", f.memoryMB))
	}
	if f.originals != "" {
		words = append(words, "--originals "+f.originals)
	}
	if f.n > 0 {
		words = append(words, fmt.Sprintf("--n %d", f.n))
	}
	if len(f.concurrency) > 0 {
		words = append(words, "--concurrency "+strings.Trim(strings.Join(strings.Fields(fmt.Sprint(f.concurrency)), ","), "[]"))
	}
	if len(f.peers) > 0 {
		words = append(words, "--peers "+strings.Join(f.peers, ","))
	}
	return strings.Join(words, " ")
}
