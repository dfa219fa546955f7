package nn

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/f32"
)

// Activation is what follows a hidden layer.
type Activation string

// The activations. The empty one is ReLU.
const (
	ReLU Activation = "relu"
	Tanh Activation = "tanh"
)

// Config is the shape of a policy.
type Config struct {
	Obs        int        `json:"obs"`             // numbers in an observation
	Scale      float32    `json:"scale,omitempty"` // multiplies them; 0 is 1
	Hidden     []int      `json:"hidden"`          // neurons of each layer
	Activation Activation `json:"activation,omitempty"`
	LSTM       int        `json:"lstm,omitempty"`    // numbers in its state; 0: none
	Choices    []int      `json:"choices,omitempty"` // of how many each discrete action is
	Numbers    int        `json:"numbers,omitempty"` // continuous actions
}

// Validate reports every fault.
func (c Config) Validate() error {
	const limit = 1 << 24
	var errs []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("policy: "+format, args...))
		}
	}
	need(c.Obs > 0 && c.Obs <= limit, "observations of %d numbers", c.Obs)
	need(len(c.Hidden) > 0 || c.LSTM > 0, "no layer")
	for _, n := range c.Hidden {
		need(n > 0 && n <= limit, "a layer of %d neurons", n)
	}
	need(slices.Contains([]Activation{"", ReLU, Tanh}, c.Activation), "activation %q: want relu or tanh", c.Activation)
	need(c.LSTM >= 0 && c.LSTM <= limit, "an LSTM of %d", c.LSTM)
	for _, n := range c.Choices {
		need(n > 0 && n <= limit, "an action of %d choices", n)
	}
	need(c.Numbers >= 0 && c.Numbers <= limit, "%d numbers to act with", c.Numbers)
	need(c.Numbers > 0 || len(c.Choices) > 0, "nothing to act with")
	return errors.Join(errs...)
}

// Logits is how many of an output's columns are for discrete actions: they come first, the means of continuous actions
// next, the value last.
func (c Config) Logits() int {
	n := 0
	for _, k := range c.Choices {
		n += k
	}
	return n
}

// Outputs is how many columns an output has.
func (c Config) Outputs() int { return c.Logits() + c.Numbers + 1 }

// Param is one matrix that is learnt, or one vector, which has one row.
type Param struct {
	Name string
	W, G f32.Matrix // weights, and the gradient that Backward has added up
}

// Policy is the parameters of a network.
type Policy struct {
	cfg    Config
	layers []linear
	lstm   *lstm
	head   linear
	logStd *Param // of the continuous actions, whatever the observation
	params []*Param
}

// linear is y = act(x·w + b). Its weights are input-major, so that a nonzero of x finds its row.
type linear struct {
	w, b *Param
	act  Activation // empty: none
}

// New makes a policy with weights drawn by seed: orthogonal, those of the actions small, so that it begins with every
// action alike.
func New(cfg Config, seed uint64) (*Policy, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Scale == 0 {
		cfg.Scale = 1
	}
	if cfg.Activation == "" {
		cfg.Activation = ReLU
	}
	rnd := env.NewRand(env.SeedOf(seed, 1))
	p := &Policy{cfg: cfg}
	width := cfg.Obs
	for i, n := range cfg.Hidden {
		p.layers = append(p.layers, p.linear(fmt.Sprintf("layer%d", i), width, n, cfg.Activation))
		orthogonal(p.layers[i].w.W, math.Sqrt2, &rnd)
		width = n
	}
	if n := cfg.LSTM; n > 0 {
		p.lstm = &lstm{n, p.param("lstm.input", width, 4*n), p.param("lstm.state", n, 4*n), p.param("lstm.bias", 1, 4*n)}
		orthogonal(p.lstm.wx.W, 1, &rnd)
		orthogonal(p.lstm.wh.W, 1, &rnd)
		width = n
	}
	p.head = p.linear("head", width, cfg.Outputs(), "")
	orthogonal(p.head.w.W, 1, &rnd)
	for i := range width {
		row := p.head.w.W.Row(i)
		for j := range row[:len(row)-1] {
			row[j] *= 0.01
		}
	}
	if cfg.Numbers > 0 {
		p.logStd = p.param("logstd", 1, cfg.Numbers)
	}
	return p, nil
}

func (p *Policy) param(name string, rows, cols int) *Param {
	q := &Param{name, f32.NewMatrix(rows, cols), f32.NewMatrix(rows, cols)}
	p.params = append(p.params, q)
	return q
}

func (p *Policy) linear(name string, in, out int, act Activation) linear {
	return linear{p.param(name+".weight", in, out), p.param(name+".bias", 1, out), act}
}

// Config returns the shape, defaults filled in.
func (p *Policy) Config() Config { return p.cfg }

// Params returns what is learnt, always in the same order.
func (p *Policy) Params() []*Param { return p.params }

// ZeroGrad forgets the gradients.
func (p *Policy) ZeroGrad() {
	for _, q := range p.params {
		clear(q.G.Data)
	}
}

// orthogonal fills m so that its rows, or its columns where they are fewer, are at right angles and as long as gain.
func orthogonal(m f32.Matrix, gain float64, rnd *env.Rand) {
	few, many := m.Rows, m.Cols
	if few > many {
		few, many = many, few
	}
	vectors := make([][]float64, few)
	for i := range vectors {
		v := make([]float64, many)
		for j := range v {
			v[j] = normal(rnd)
		}
		for _, u := range vectors[:i] {
			dot := 0.0
			for j := range v {
				dot += u[j] * v[j]
			}
			for j := range v {
				v[j] -= dot * u[j]
			}
		}
		length := 0.0
		for _, x := range v {
			length += x * x
		}
		for j := range v {
			v[j] /= math.Sqrt(length)
		}
		vectors[i] = v
	}
	for i := range m.Rows {
		for j := range m.Cols {
			a, b := i, j
			if m.Rows > m.Cols {
				a, b = j, i
			}
			m.Data[i*m.Cols+j] = float32(gain * vectors[a][b])
		}
	}
}

// normal returns a normally distributed number (Box and Muller).
func normal(rnd *env.Rand) float64 {
	u := float64(rnd.Uint64()>>11+1) / (1 << 53)
	return math.Sqrt(-2*math.Log(u)) * math.Cos(2*math.Pi*float64(rnd.Uint64()>>11)/(1<<53))
}
