package rlcmd

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/rl/train"
)

// The policies.
const (
	policyMLP  = "mlp"
	policyLSTM = "lstm"
)

// usual are the settings that an environment is learnt well with.
func usual(name string) train.Config {
	cfg := train.Config{
		Steps: 2 << 20, Envs: 1024, Horizon: 64, CheckpointEvery: 10, Net: train.Net{Hidden: []int{128}},
		Learn: train.Learn{Rate: 0.01, Minibatch: 2048, Epochs: 1, Gamma: 0.99, Lambda: 0.95, Entropy: 0.01},
	}
	switch name {
	case "squared":
		cfg.Learn.Rate = 0.03
	case "memory":
		cfg.Steps, cfg.Envs, cfg.Horizon, cfg.Net.LSTM = 400_000, 256, 32, 128
	case "cartpole":
		cfg.Steps, cfg.Envs, cfg.Horizon = 300_000, 64, 32
		cfg.Net = train.Net{Hidden: []int{64, 64}, Activation: "tanh"}
		cfg.Learn = train.Learn{Rate: 0.003, Minibatch: 512, Epochs: 4, Gamma: 0.98, Lambda: 0.8, TargetKL: 0.03}
	case "breakout":
		cfg.Steps, cfg.Envs = 4<<20, 256
		cfg.CheckpointEvery = 100 // a whole game takes about 5,000 steps
		cfg.Learn.Rate, cfg.Learn.Gamma, cfg.Learn.Entropy = 0.05, 0.98, 0.001
		cfg.Learn.Optimizer.Name = "muon"
	}
	return cfg
}

// settings are the flags that change a run.
type settings struct {
	given  train.Config
	policy string
	hidden []int
}

func (s *settings) add(cmd *cobra.Command) {
	fs, g := cmd.Flags(), &s.given
	const usually = " (default: the environment's)"
	fs.Int64Var(&g.Steps, "steps", 0, "how many steps of all agents together"+usually)
	fs.StringVar(&s.policy, "policy", "", "mlp, or lstm: with a memory"+usually)
	fs.IntSliceVar(&s.hidden, "hidden", nil, "widths of the hidden layers; an LSTM is as wide as the last"+usually)
	fs.IntVar(&g.Envs, "envs", 0, "how many environments at once"+usually)
	fs.IntVar(&g.Horizon, "horizon", 0, "steps of each between two updates"+usually)
	fs.IntVar(&g.Workers, "workers", 0, "goroutines that step environments, besides the one that learns")
	fs.Uint64Var(&g.Seed, "seed", 0, "the same seed gives the same bits")
	fs.IntVar(&g.CheckpointEvery, "checkpoint-every", 0, "updates between two checkpoints; environments begin anew as often (default 10)")
	fs.Float32Var(&g.Learn.Rate, "rate", 0, "learning rate"+usually)
	fs.IntVar(&g.Learn.Minibatch, "minibatch", 0, "rows"+usually)
	fs.IntVar(&g.Learn.Epochs, "epochs", 0, "how often each row is learnt from"+usually)
	fs.Float32Var(&g.Learn.Gamma, "gamma", 0, "discount"+usually)
	fs.Float32Var(&g.Learn.Lambda, "lambda", 0, "of the advantages"+usually)
	fs.Float32Var(&g.Learn.Entropy, "entropy", 0, "coefficient of the entropy"+usually)
	policies := []string{policyMLP, policyLSTM}
	if err := cmd.RegisterFlagCompletionFunc("policy", cobra.FixedCompletions(policies, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // there's no such flag
	}
}

// over puts the flags that were given over cfg.
func (s *settings) over(cmd *cobra.Command, cfg train.Config) (train.Config, error) {
	given := cmd.Flags().Changed
	g := &s.given
	take(given("steps"), &cfg.Steps, g.Steps)
	take(given("envs"), &cfg.Envs, g.Envs)
	take(given("horizon"), &cfg.Horizon, g.Horizon)
	take(given("seed"), &cfg.Seed, g.Seed)
	take(given("checkpoint-every"), &cfg.CheckpointEvery, g.CheckpointEvery)
	take(given("rate"), &cfg.Learn.Rate, g.Learn.Rate)
	take(given("minibatch"), &cfg.Learn.Minibatch, g.Learn.Minibatch)
	take(given("epochs"), &cfg.Learn.Epochs, g.Learn.Epochs)
	take(given("gamma"), &cfg.Learn.Gamma, g.Learn.Gamma)
	take(given("lambda"), &cfg.Learn.Lambda, g.Learn.Lambda)
	take(given("entropy"), &cfg.Learn.Entropy, g.Learn.Entropy)
	cfg.Workers = g.Workers
	if given("hidden") {
		if len(s.hidden) == 0 || slices.Min(s.hidden) < 1 {
			return cfg, invalid("--hidden", "write --hidden 128 or --hidden 64,64", "a policy needs layers that are at least 1 wide")
		}
		cfg.Net.Hidden = s.hidden
	}
	width := cfg.Net.Hidden[len(cfg.Net.Hidden)-1]
	switch s.policy {
	case policyMLP:
		cfg.Net.LSTM = 0
	case policyLSTM:
		cfg.Net.LSTM = width
	case "":
		if cfg.Net.LSTM > 0 {
			cfg.Net.LSTM = width
		}
	default:
		return cfg, invalid("--policy", "use mlp or lstm", "no policy %q", s.policy)
	}
	// What's asked for must not turn into a default.
	for _, name := range []string{"steps", "envs", "horizon", "checkpoint-every", "rate", "minibatch", "epochs"} {
		if f := cmd.Flags().Lookup(name); f.Changed && (f.Value.String() == "0" || f.Value.String()[0] == '-') {
			return cfg, invalid("--"+name, "give a number above 0", "--%s is %s", name, f.Value)
		}
	}
	return cfg, cfg.Validate()
}

func take[T any](given bool, to *T, v T) {
	if given {
		*to = v
	}
}
