package rlcmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/rl/envs"
	"github.com/dsec-io/dsec/rl/train"
	"github.com/dsec-io/dsec/rl/train/logs"
)

// run is one `dsec rl train`.
type run struct {
	Host
	env         string
	out         string
	resume      bool
	json        bool
	tensorboard bool
	settings
}

func trainCommand(h Host) *cobra.Command {
	r := &run{Host: h}
	cmd := &cobra.Command{
		Use:   "train ENV",
		Short: "Train a policy",
		Long: "Trains a policy by PPO and writes to its folder: checkpoint.safetensors, log.tsv, and learning curves as SVG and PNG.\n" +
			"On a terminal a dashboard shows how it goes; anywhere else stdout gets one line an update, of tab-separated numbers\n" +
			"or of JSON.\n\n" +
			"Ctrl-C goes on to the next checkpoint, writes it and ends (exit code 130); a second one ends at once, and loses what\n" +
			"came after the last checkpoint. A run that goes on by --resume ends with the same bits as one that never stopped.",
		Example: "  dsec rl train squared\n" +
			"  dsec rl train memory --policy lstm --hidden 128 --seed 7 --out runs/memory\n" +
			"  dsec rl train memory --out runs/memory --resume\n" +
			"  dsec rl train cartpole --json | jq .episode_score",
		Args:              oneEnv,
		ValidArgsFunction: completeEnvs,
		RunE: func(cmd *cobra.Command, args []string) error {
			r.env = args[0]
			if r.out == "" {
				r.out = filepath.Join("runs", r.env)
			}
			cfg, err := r.config(cmd)
			if err != nil {
				return err
			}
			return r.train(cmd.Context(), cfg)
		},
	}
	r.add(cmd)
	f := cmd.Flags()
	f.StringVar(&r.out, "out", "", "folder of the run (default runs/ENV)")
	cli.TakesFolder(cmd, "out")
	f.BoolVar(&r.resume, "resume", false, "go on from the folder's checkpoint, with its settings")
	f.BoolVar(&r.json, "json", false, "print one JSON object an update, also on a terminal")
	f.BoolVar(&r.tensorboard, "tensorboard", false, "write TensorBoard's event files to the folder too")
	return cmd
}

// config are the settings of the run: the environment's usual ones or the checkpoint's, under the flags.
func (r *run) config(cmd *cobra.Command) (train.Config, error) {
	cfg, name := usual(r.env), filepath.Join(r.out, train.CheckpointName)
	_, err := os.Stat(name)
	switch {
	case err == nil && !r.resume:
		return cfg, invalid("--out", "give --resume to go on with it, or another folder", "%s has a run already", r.out)
	case errors.Is(err, fs.ErrNotExist) && r.resume:
		return cfg, invalid("--resume", "leave it out to begin", "there's no checkpoint in %s", r.out)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return cfg, fmt.Errorf("checkpoint: %w", err)
	case r.resume:
		_, saved, err := train.Load(name)
		if err != nil {
			return cfg, err
		}
		if saved.Env != r.env {
			return cfg, invalid("--resume", "train that, or give another folder", "the checkpoint in %s is of %s", r.out, saved.Env)
		}
		cfg = saved.Config
	}
	cfg, err = r.over(cmd, cfg)
	cfg.Folder = r.out
	return cfg, err
}

// train runs it, tells of it, and draws what it came to.
func (r *run) train(ctx context.Context, cfg train.Config) (err error) {
	maker, err := envs.Maker(r.env)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return fmt.Errorf("folder of the run: %w", err)
	}
	sinks, err := r.sinks()
	defer func() {
		for _, s := range sinks {
			err = errors.Join(err, s.Close())
		}
	}()
	if err != nil {
		return err
	}
	hooks := logs.All(sinks...)
	stopped, restore := r.stopOnSignal(cfg.CheckpointEvery)
	defer restore()
	hooks.Saved = func(int) error {
		if stopped.Load() != nil {
			return train.ErrStopped
		}
		return nil
	}
	result, err := train.Run(ctx, cfg, maker, hooks)
	if err != nil {
		return err
	}
	if err := drawCurves(r.env, r.out); err != nil {
		return err
	}
	fmt.Fprintf(r.Stderr, "%s: %d steps, %d updates; checkpoint, log and curves in %s\n", r.env, result.Steps, result.Updates, r.out)
	if s := stopped.Load(); s != nil && result.Steps < cfg.Steps {
		return r.Interrupted(*s)
	}
	return nil
}

// stopOnSignal remembers the first signal, and lets a second one end the program.
func (r *run) stopOnSignal(every int) (stopped *atomic.Pointer[os.Signal], restore func()) {
	stopped = new(atomic.Pointer[os.Signal])
	back := make(chan func(), 1) // what gives signals back, once
	restore = func() {
		select {
		case give := <-back:
			give()
		default:
		}
	}
	back <- r.Route(func(s os.Signal) {
		stopped.Store(&s)
		// No new line: the dashboard is drawn from the line that this leaves the cursor on.
		fmt.Fprintf(r.Stderr, "stopping at the next checkpoint, in at most %d updates; again to stop at once\r", every)
		restore()
	})
	return stopped, restore
}

// sinks are all that is told of the run. They are to be closed also after an error.
func (r *run) sinks() ([]logs.Sink, error) {
	var all []logs.Sink
	if r.Terminal && !r.json {
		all = append(all, logs.NewDashboard(r.Stdout, "dsec rl train "+r.env))
	} else {
		all = append(all, &lines{w: r.Stdout, json: r.json})
	}
	tsv, err := logs.NewTSV(filepath.Join(r.out, logName))
	if err != nil {
		return all, err
	}
	all = append(all, tsv)
	if r.tensorboard {
		tb, err := logs.NewTensorBoard(r.out)
		if err != nil {
			return all, err
		}
		all = append(all, tb)
	}
	return all, nil
}
