package train

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/dsec-io/dsec/rl/adv"
	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/nn"
	"github.com/dsec-io/dsec/rl/optim"
)

// Config is what a run is made of. Zero values are defaults.
type Config struct {
	Seed    uint64 `json:"seed"`
	Steps   int64  `json:"steps"`   // of all agents together; the last update is a whole one
	Envs    int    `json:"envs"`    // 0 is 1024
	Workers int    `json:"-"`       // goroutines that step environments; 0: none besides Run's own
	Horizon int    `json:"horizon"` // steps between two updates; 0 is 64
	Net     Net    `json:"net"`
	Learn   Learn  `json:"learn"`
	// CheckpointEvery is in updates; 0 is 50. Environments are reset as often: an episode that is longer than so many
	// updates' steps is never seen to its end.
	CheckpointEvery int    `json:"checkpoint_every"`
	Folder          string `json:"-"` // for checkpoints; empty: none are written
}

// Net is the shape of the policy.
type Net struct {
	Hidden     []int         `json:"hidden"`               // nil is one layer of 128
	Activation nn.Activation `json:"activation,omitempty"` // "" is ReLU
	LSTM       int           `json:"lstm,omitempty"`       // 0: none
	// Scale multiplies observations; 0 is 1, or one over the largest byte where that's more than 8.
	Scale float32 `json:"scale,omitempty"`
}

// Learn is how it's learnt.
type Learn struct {
	Rate      float32 `json:"rate"`               // learning rate; 0 is 0.003
	Anneal    string  `json:"anneal"`             // of the rate: "" or cosine, linear, none
	MinRate   float32 `json:"min_rate,omitempty"` // what it ends at, as a part of Rate
	Gamma     float32 `json:"gamma"`              // 0 is 0.99
	Lambda    float32 `json:"lambda"`             // 0 is 0.95
	Advantage string  `json:"advantage"`          // "" or gae, vtrace3, vtrace4
	RhoMax    float32 `json:"rho_max,omitempty"`  // 0 is 1
	CMax      float32 `json:"c_max,omitempty"`    // 0 is 1
	Epochs    int     `json:"epochs"`             // 0 is 1
	Minibatch int     `json:"minibatch"`          // rows; 0 is 8192
	Segment   int     `json:"segment"`            // steps of a segment; 0 is Horizon with an LSTM, 1 without

	Clip       float32 `json:"clip"`                 // 0 is 0.2
	ValueClip  float32 `json:"value_clip,omitempty"` // 0: none
	ValueCoef  float32 `json:"value_coef"`           // 0 is 0.5
	Entropy    float32 `json:"entropy,omitempty"`
	EntropyEnd float32 `json:"entropy_end,omitempty"` // what it's annealed to, with the rate; 0: it stays. Negative is 0.
	GradClip   float32 `json:"grad_clip"`             // 0 is 1; negative: none
	TargetKL   float32 `json:"target_kl,omitempty"`   // an update ends where KL is beyond 1.5 times this; 0: never
	RewardClip float32 `json:"reward_clip,omitempty"` // rewards are clamped to ± this; 0: they aren't
	RawAdv     bool    `json:"raw_advantages,omitempty"`

	// With PriorityAlpha > 0 segments are drawn by their advantages, not each once an epoch; PriorityBeta is annealed
	// from its value to 1.
	PriorityAlpha float32      `json:"priority_alpha,omitempty"`
	PriorityBeta  float32      `json:"priority_beta,omitempty"`
	Optimizer     optim.Config `json:"optimizer"`
}

func or[T comparable](v *T, usual T) {
	var zero T
	if *v == zero {
		*v = usual
	}
}

func (c Config) withDefaults() Config {
	or(&c.Envs, 1024)
	or(&c.Horizon, 64)
	or(&c.CheckpointEvery, 50)
	if c.Net.Hidden == nil {
		c.Net.Hidden = []int{128}
	}
	or(&c.Net.Activation, nn.ReLU)
	l := &c.Learn
	or(&l.Rate, 0.003)
	or(&l.Anneal, "cosine")
	or(&l.Gamma, 0.99)
	or(&l.Lambda, 0.95)
	or(&l.Advantage, "gae")
	or(&l.Epochs, 1)
	or(&l.Minibatch, 8192)
	or(&l.Clip, 0.2)
	or(&l.ValueCoef, 0.5)
	or(&l.GradClip, 1)
	or(&l.Optimizer.Name, "adam")
	if l.Segment == 0 {
		l.Segment = 1
		if c.Net.LSTM > 0 {
			l.Segment = c.Horizon
		}
	}
	return c
}

// Validate reports every fault. It takes defaults for what isn't set.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("training: "+format, args...))
		}
	}
	need(c.Steps > 0, "%d steps", c.Steps)
	need(c.Envs > 0 && c.Horizon > 0 && c.Workers >= 0, "%d environments, %d steps, %d workers", c.Envs, c.Horizon, c.Workers)
	need(c.CheckpointEvery > 0, "checkpoints every %d updates", c.CheckpointEvery)
	c.Learn.validate(need)
	if _, err := adv.ParseForm(c.Learn.Advantage); err != nil {
		errs = append(errs, err)
	}
	if _, err := optim.New(c.Learn.Optimizer, nil); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (l *Learn) validate(need func(ok bool, format string, args ...any)) {
	between := func(x, low, high float32) bool { return x >= low && x <= high }
	need(min(l.Epochs, l.Minibatch, l.Segment) > 0, "%d epochs, minibatches of %d, segments of %d", l.Epochs, l.Minibatch, l.Segment)
	need(slices.Contains([]string{"cosine", "linear", "none"}, l.Anneal), "annealing %q: want cosine, linear or none", l.Anneal)
	need(l.Rate > 0 && between(l.MinRate, 0, 1), "learning rate %v, ending at %v of it", l.Rate, l.MinRate)
	need(between(l.Gamma, 0, 1) && between(l.Lambda, 0, 1), "gamma %v, lambda %v", l.Gamma, l.Lambda)
	need(l.Clip > 0 && min(l.ValueClip, l.TargetKL, l.RewardClip) >= 0, "clips %v, %v, %v, target KL %v", l.Clip, l.ValueClip, l.RewardClip, l.TargetKL)
	need(l.PriorityAlpha >= 0 && between(l.PriorityBeta, 0, 1), "priorities %v, %v", l.PriorityAlpha, l.PriorityBeta)
}

// policy is the network for an environment.
func (c Config) policy(spec env.Spec) nn.Config {
	scale := c.Net.Scale
	if box, ok := spec.Obs.Space.(env.Box); ok && scale == 0 && box.DType == env.Uint8 && box.High > 8 {
		scale = 1 / box.High
	}
	return nn.Config{
		Obs: spec.Obs.Len, Scale: scale, Hidden: c.Net.Hidden, Activation: c.Net.Activation, LSTM: c.Net.LSTM,
		Choices: spec.Act.Choices, Numbers: spec.Act.Numbers,
	}
}

// annealed returns what is between from and to when so much of a run is done, from 0 to 1.
func annealed(how string, from, to float32, progress float64) float32 {
	switch how {
	case "linear":
		return to + (from-to)*float32(1-progress)
	case "cosine":
		return to + (from-to)*float32(0.5*(1+math.Cos(math.Pi*progress)))
	}
	return from
}
