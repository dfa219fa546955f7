package optim

import (
	"math"

	"github.com/dsec-io/dsec/rl/f32"
	"github.com/dsec-io/dsec/rl/nn"
)

type adam struct {
	cfg    Config
	params []*nn.Param
	m, v   []Tensor
	steps  int
}

func newAdam(cfg Config, params []*nn.Param) *adam {
	cfg.Beta1, cfg.Beta2, cfg.Eps = or(cfg.Beta1, 0.9), or(cfg.Beta2, 0.999), or(cfg.Eps, 1e-8)
	return &adam{cfg: cfg, params: params, m: like(params, "adam.m"), v: like(params, "adam.v")}
}

// Step implements [Optimizer].
func (a *adam) Step(rate, scale float32) {
	a.steps++
	s := f32.AdamStep{
		Beta1: a.cfg.Beta1, Beta2: a.cfg.Beta2, Eps: a.cfg.Eps, Scale: scale,
		Rate: rate / float32(1-math.Pow(float64(a.cfg.Beta1), float64(a.steps))),
		Root: float32(1 / math.Sqrt(1-math.Pow(float64(a.cfg.Beta2), float64(a.steps)))),
	}
	for i, p := range a.params {
		f32.Adam(p.W.Data, p.G.Data, a.m[i].Data, a.v[i].Data, s)
	}
}

// State implements [Optimizer].
func (a *adam) State() []Tensor { return append(append([]Tensor(nil), a.m...), a.v...) }

// Steps implements [Optimizer].
func (a *adam) Steps() int { return a.steps }

// SetSteps implements [Optimizer].
func (a *adam) SetSteps(n int) { a.steps = n }
