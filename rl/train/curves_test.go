package train_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/rl/envs"
	"github.com/dsec-io/dsec/rl/train"
	"github.com/dsec-io/dsec/rl/train/logs"
	"github.com/dsec-io/dsec/rl/train/plot"
)

// curve is one line of a chart: the same run with several seeds.
type curve struct {
	chart, name, env string
	cfg              train.Config
}

func curves() []curve {
	fast := train.Learn{Rate: 0.03, Minibatch: 2048, Entropy: 0.01}
	slow := train.Learn{Rate: 0.01, Minibatch: 2048, Entropy: 0.01}
	lstm := train.Net{LSTM: 128}
	return []curve{
		{"memory", "mlp128", "memory", train.Config{Steps: 400_000, Envs: 256, Horizon: 32, Learn: slow}},
		{"memory", "lstm128", "memory", train.Config{Steps: 400_000, Envs: 256, Horizon: 32, Net: lstm, Learn: slow}},
		{"squared", "mlp128", "squared", train.Config{Steps: 2 << 20, Learn: fast}},
		{"squared", "lstm128", "squared", train.Config{Steps: 2 << 20, Net: lstm, Learn: slow}},
		{"cartpole", "mlp64x64", "cartpole", train.Config{
			Steps: 300_000, Envs: 64, Horizon: 32, Net: train.Net{Hidden: []int{64, 64}, Activation: "tanh"},
			Learn: train.Learn{Rate: 0.003, Minibatch: 512, Epochs: 4, Gamma: 0.98, Lambda: 0.8, TargetKL: 0.03},
		}},
		{"breakout", "mlp128", "breakout", train.Config{Steps: 6 << 20, Learn: train.Learn{Rate: 0.005, Minibatch: 2048, Epochs: 2, Entropy: 0.005}}},
	}
}

// TestCurves draws learning curves of five seeds to the folder DSEC_CURVES, as SVG and PNG, with each run's numbers as
// TSV. It takes some minutes of a processor; DSEC_CURVES_ONLY picks charts by name.
func TestCurves(t *testing.T) {
	folder := os.Getenv("DSEC_CURVES")
	if folder == "" {
		return
	}
	charts := make(map[string]*plot.Chart)
	for _, c := range curves() {
		if only := os.Getenv("DSEC_CURVES_ONLY"); only != "" && !strings.Contains(only, c.chart) {
			continue
		}
		var runs [][]plot.Point
		for seed := range uint64(5) {
			c.cfg.Seed = seed
			runs = append(runs, trainOnce(t, c, filepath.Join(folder, fmt.Sprintf("%s-%s-%d.tsv", c.chart, c.name, seed))))
		}
		ch := charts[c.chart]
		if ch == nil {
			ch = &plot.Chart{Title: c.chart + ", 5 seeds", XLabel: "steps", YLabel: "score"}
			charts[c.chart] = ch
		}
		mean := plot.Mean(c.name, runs, 100)
		ch.Curves = append(ch.Curves, mean)
		t.Logf("%s %s: %.3f ± %.3f at the end", c.chart, c.name, mean.Points[99].Y, mean.Spread[99])
		png, err := ch.PNG()
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(
			os.WriteFile(filepath.Join(folder, c.chart+".png"), png, 0o644),
			os.WriteFile(filepath.Join(folder, c.chart+".svg"), ch.SVG(), 0o644),
		)
		if err != nil {
			t.Fatal(err)
		}
	}
}

func trainOnce(t *testing.T, c curve, name string) []plot.Point {
	t.Helper()
	m, err := envs.Maker(c.env)
	if err != nil {
		t.Fatal(err)
	}
	sink, err := logs.NewTSV(name)
	if err != nil {
		t.Fatal(err)
	}
	hooks, points := logs.All(sink), []plot.Point(nil)
	take := hooks.Update
	hooks.Update = func(p train.Progress) error {
		if p.Episodes.Episodes > 0 {
			points = append(points, plot.Point{X: float64(p.Steps), Y: p.Episodes.Score})
		}
		return take(p)
	}
	_, err = train.Run(t.Context(), c.cfg, m, hooks)
	if err = errors.Join(err, sink.Close()); err != nil {
		t.Fatal(err)
	}
	return plot.Smooth(points, 0.5)
}
