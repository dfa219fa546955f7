package train_test

import (
	"context"
	"fmt"

	"github.com/dsec-io/dsec/rl/envs"
	"github.com/dsec-io/dsec/rl/train"
)

// A run, and a trial of what it has learnt.
func Example() {
	ctx := context.Background()
	maker, err := envs.Maker("memory")
	if err != nil {
		fmt.Println(err)
		return
	}
	result, err := train.Run(ctx, train.Config{
		Seed: 1, Steps: 100_000, Envs: 64, Horizon: 32,
		Net:   train.Net{Hidden: []int{32}, LSTM: 16},
		Learn: train.Learn{Rate: 0.01, Minibatch: 512, Epochs: 2},
	}, maker, train.Hooks{})
	if err != nil {
		fmt.Println(err)
		return
	}
	stats, err := train.Eval(ctx, result.Policy, maker, train.EvalConfig{Seed: 2, Greedy: true})
	fmt.Printf("%d steps, then %.0f %% right, %v\n", result.Steps, 100*stats.Score, err)
	// Output: 100352 steps, then 100 % right, <nil>
}
