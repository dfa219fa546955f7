package rlcmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/envs"
	"github.com/dsec-io/dsec/rl/nn"
	"github.com/dsec-io/dsec/rl/render"
	"github.com/dsec-io/dsec/rl/train"
	"github.com/dsec-io/dsec/rl/vec"
)

// trial is one `dsec rl eval`.
type trial struct {
	Host
	env        string
	checkpoint string
	episodes   int64
	seed       uint64
	greedy     bool
	render     string
	out        string
	fps        int
	json       bool
}

// maxFrames is how long a film is at most.
const maxFrames = 600

func evalCommand(h Host) *cobra.Command {
	t := &trial{Host: h}
	cmd := &cobra.Command{
		Use:   "eval ENV",
		Short: "Try a policy that was trained",
		Long: "Plays episodes by a checkpoint's policy and prints their averages. Actions are drawn by their probabilities,\n" +
			"as in training, unless --greedy takes the likeliest. --render shows one more episode: as a film (gif) or its last picture (png) in a file, or on the terminal.",
		Example: "  dsec rl eval squared --checkpoint runs/squared/checkpoint.safetensors\n" +
			"  dsec rl eval breakout --checkpoint runs/breakout/checkpoint.safetensors --render gif --out breakout.gif\n" +
			"  dsec rl eval snake --checkpoint runs/snake/checkpoint.safetensors --render term",
		Args:              oneEnv,
		ValidArgsFunction: completeEnvs,
		RunE: func(cmd *cobra.Command, args []string) error {
			t.env = args[0]
			if err := t.check(); err != nil {
				return err
			}
			return t.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&t.checkpoint, "checkpoint", "", "file that dsec rl train wrote")
	f.Int64Var(&t.episodes, "episodes", 256, "how many, at least")
	f.Uint64Var(&t.seed, "seed", 0, "of the episodes")
	f.BoolVar(&t.greedy, "greedy", false, "always take the likeliest action, which may go round in circles")
	f.StringVar(&t.render, "render", "", "show an episode: gif, png or term")
	f.StringVar(&t.out, "out", "", "file for the picture (default ENV.gif or ENV.png)")
	f.IntVar(&t.fps, "fps", 15, "pictures a second")
	f.BoolVar(&t.json, "json", false, "print one JSON document")
	forms := []string{"gif", "png", "term"}
	cli.TakesFile(cmd, "checkpoint", "out")
	if err := cmd.RegisterFlagCompletionFunc("render", cobra.FixedCompletions(forms, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // there's no such flag
	}
	return cmd
}

func (t *trial) check() error {
	switch {
	case t.checkpoint == "":
		return invalid("--checkpoint", "`dsec rl train` writes one to its folder", "a checkpoint is missing")
	case t.episodes < 1:
		return invalid("--episodes", "give a number above 0", "%d episodes", t.episodes)
	case t.fps < 1 || t.fps > 100:
		return invalid("--fps", "give a number from 1 to 100", "%d pictures a second", t.fps)
	case t.render == "term" && t.json:
		return invalid("--json", "leave one out", "--json and --render term both want stdout")
	}
	switch t.render {
	case "", "gif", "png", "term":
		return nil
	}
	return invalid("--render", "use gif, png or term", "no form %q", t.render)
}

func (t *trial) run(ctx context.Context) error {
	policy, saved, err := train.Load(t.checkpoint)
	if err != nil {
		return err
	}
	if saved.Env != t.env {
		return invalid("--checkpoint", "try it there", "this one was trained on %s", saved.Env)
	}
	maker, err := envs.Maker(t.env)
	if err != nil {
		return err
	}
	stats, err := train.Eval(ctx, policy, maker, train.EvalConfig{Seed: t.seed, Episodes: t.episodes, Greedy: t.greedy})
	if err != nil {
		return err
	}
	if t.render != "" {
		if err := t.show(ctx, policy, maker); err != nil {
			return err
		}
	}
	if t.json {
		return wrote(encode(t.Host, map[string]any{
			"env": t.env, "trained_steps": saved.Steps, "episodes": stats.Episodes, "return": stats.Return, "length": stats.Length, "score": stats.Score,
		}))
	}
	_, err = fmt.Fprintf(t.Stdout, "%s after %d steps: %d episodes, score %.4g, return %.4g, length %.4g\n",
		t.env, saved.Steps, stats.Episodes, stats.Score, stats.Return, stats.Length)
	return wrote(err)
}

// show plays one episode of one environment and shows it.
func (t *trial) show(ctx context.Context, policy *nn.Policy, maker vec.Maker) error {
	var painter render.Painter
	watched := func(n int) (env.Batch, error) {
		b, err := maker(n)
		painter, _ = b.(render.Painter)
		return b, err
	}
	film, last, frames := new(render.Film), (*render.Canvas)(nil), 0
	step := func(b *env.Buffers) error {
		if b.Over() || frames == maxFrames { // what is there now is the next episode
			return train.ErrStopped
		}
		if painter == nil {
			return invalid("--render", "leave it out", "%s can't be seen", t.env)
		}
		picture := painter.Paint(0)
		if picture == nil {
			return invalid("--render", "leave it out", "%s can't be seen", t.env)
		}
		frames++
		last = picture
		switch t.render {
		case "gif":
			film.Add(picture, time.Second/time.Duration(t.fps))
		case "term":
			return t.frame(ctx, picture)
		}
		return nil
	}
	_, err := train.Eval(ctx, policy, watched, train.EvalConfig{Seed: t.seed, Envs: 1, Episodes: 1 << 40, MaxSteps: maxFrames + 1, Greedy: t.greedy, Step: step})
	if err != nil || t.render == "term" {
		return err
	}
	if last == nil {
		return errors.New("the episode ended with its first step: there's nothing to see")
	}
	return t.save(film, last)
}

// frame draws on a terminal, over the frame before.
func (t *trial) frame(ctx context.Context, picture *render.Canvas) error {
	var b bytes.Buffer
	b.WriteString("\x1b[H\x1b[J")
	if err := picture.Terminal(&b, 80); err != nil {
		return err
	}
	if _, err := t.Stdout.Write(b.Bytes()); err != nil {
		return wrote(err)
	}
	select {
	case <-time.After(time.Second / time.Duration(t.fps)):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *trial) save(film *render.Film, last *render.Canvas) error {
	var b bytes.Buffer
	err := error(nil)
	if t.render == "gif" {
		err = film.GIF(&b)
	} else {
		err = last.PNG(&b)
	}
	if err != nil {
		return err
	}
	if t.out == "" {
		t.out = t.env + "." + t.render
	}
	if err := os.WriteFile(t.out, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("picture: %w", err)
	}
	fmt.Fprintf(t.Stderr, "wrote %s\n", t.out)
	return nil
}
