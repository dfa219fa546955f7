package rlcmd

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/envs"
	"github.com/dsec-io/dsec/rl/train"
	"github.com/dsec-io/dsec/rl/train/plot"
	"github.com/dsec-io/dsec/rl/vec"
)

// curves is one `dsec rl curves`.
type curves struct {
	Host
	env      string
	policies []string
	seeds    int
	out      string
	json     bool
	settings
}

// learnt is what the runs of one policy came to.
type learnt struct {
	Env    string    `json:"env"`
	Policy string    `json:"policy"`
	Steps  int64     `json:"steps"` // of each run
	Scores []float64 `json:"scores"`
	Mean   float64   `json:"mean"`
	Spread float64   `json:"spread"` // standard deviation of the seeds
	SPS    float64   `json:"sps"`    // steps per second on the wall, of all runs together
}

func curvesCommand(h Host) *cobra.Command {
	c := &curves{Host: h}
	cmd := &cobra.Command{
		Use:   "curves ENV",
		Short: "Train with several seeds and draw how they learn",
		Long: "Trains ENV once for each seed, from 0 up, with its usual settings or those given, and writes to a folder: ENV.svg and ENV.png\n" +
			"with the mean of the seeds and one standard deviation around it, and ENV.tsv with each run's scores. What is printed\n" +
			"is the score of the policies at the end, on 256 episodes of their own.",
		Example:           "  dsec rl curves squared --out curves\n  dsec rl curves memory --policies mlp,lstm --seeds 10 --out curves",
		Args:              oneEnv,
		ValidArgsFunction: completeEnvs,
		RunE: func(cmd *cobra.Command, args []string) error {
			c.env = args[0]
			if c.seeds < 1 || c.seeds > 1000 {
				return invalid("--seeds", "give a number from 1 to 1000", "%d seeds", c.seeds)
			}
			if cmd.Flags().Changed("seed") || cmd.Flags().Changed("policy") {
				return invalid("--seed", "use --seeds and --policies", "curves have several seeds, and maybe several policies")
			}
			return c.draw(cmd)
		},
	}
	c.add(cmd)
	f := cmd.Flags()
	for _, one := range []string{"seed", "policy", "checkpoint-every"} {
		if err := f.MarkHidden(one); err != nil {
			panic(err) // there's no such flag
		}
	}
	f.StringSliceVar(&c.policies, "policies", nil, "a curve for each: mlp, lstm (default: the environment's usual one)")
	f.IntVar(&c.seeds, "seeds", 5, "how many")
	f.StringVar(&c.out, "out", "curves", "folder for ENV.svg, ENV.png and ENV.tsv")
	f.BoolVar(&c.json, "json", false, "print one JSON document")
	return cmd
}

func (c *curves) draw(cmd *cobra.Command) error {
	maker, err := envs.Maker(c.env)
	if err != nil {
		return err
	}
	if len(c.policies) == 0 {
		c.policies = []string{""}
	}
	cfgs := make([]train.Config, len(c.policies))
	for i, policy := range c.policies {
		c.policy = policy
		if cfgs[i], err = c.over(cmd, usual(c.env)); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(c.out, 0o755); err != nil {
		return fmt.Errorf("folder of the curves: %w", err)
	}
	var all []learnt
	var runs []plot.Run
	for _, cfg := range cfgs {
		l, of, err := c.learn(cmd.Context(), cfg, maker)
		if err != nil {
			return err
		}
		all, runs = append(all, l), append(runs, of...)
	}
	if err := plot.Write(c.out, c.env, "score", runs); err != nil {
		return err
	}
	fmt.Fprintf(c.Stderr, "wrote %s.svg, .png and .tsv\n", filepath.Join(c.out, c.env))
	if c.json {
		return wrote(encode(c.Host, all))
	}
	t := tabwriter.NewWriter(c.Stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "ENV\tPOLICY\tSTEPS\tSEEDS\tSCORE\tSPREAD\tWORST\tBEST\tSTEPS/S")
	for _, l := range all {
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%.4f\t%.4f\t%.4f\t%.4f\t%.0f\n", l.Env, l.Policy, l.Steps, len(l.Scores), l.Mean, l.Spread,
			slices.Min(l.Scores), slices.Max(l.Scores), l.SPS)
	}
	return wrote(t.Flush())
}

// learn trains with each seed, and tries what came of it.
func (c *curves) learn(ctx context.Context, cfg train.Config, maker vec.Maker) (learnt, []plot.Run, error) {
	l := learnt{Env: c.env, Policy: policyMLP}
	if cfg.Net.LSTM > 0 {
		l.Policy = policyLSTM
	}
	var runs []plot.Run
	var took time.Duration
	for seed := range uint64(c.seeds) {
		cfg.Seed = seed
		run := plot.Run{Curve: fmt.Sprintf("%s %s", l.Policy, times(cfg.Net.Hidden)), Seed: seed}
		began := time.Now()
		result, err := train.Run(ctx, cfg, maker, train.Hooks{Update: func(p train.Progress) error {
			if p.Episodes.Episodes > 0 {
				run.Points = append(run.Points, plot.Point{X: float64(p.Steps), Y: p.Episodes.Score})
			}
			return nil
		}})
		if err != nil {
			return l, nil, err
		}
		took += time.Since(began)
		stats, err := train.Eval(ctx, result.Policy, maker, train.EvalConfig{Seed: env.SeedOf(seed, 1)})
		if err != nil {
			return l, nil, err
		}
		fmt.Fprintf(c.Stderr, "%s, %s, seed %d: score %.4f\n", c.env, l.Policy, seed, stats.Score)
		l.Scores, l.Steps = append(l.Scores, stats.Score), result.Steps
		runs = append(runs, run)
	}
	for _, s := range l.Scores {
		l.Mean += s / float64(len(l.Scores))
	}
	for _, s := range l.Scores {
		l.Spread += (s - l.Mean) * (s - l.Mean) / float64(len(l.Scores))
	}
	l.Spread = math.Sqrt(l.Spread)
	l.SPS = float64(l.Steps) * float64(len(l.Scores)) / took.Seconds()
	return l, runs, nil
}
