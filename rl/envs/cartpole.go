package envs

import (
	"context"
	"fmt"
	"math"

	"github.com/dsec-io/dsec/rl/env"
)

// CartpoleConfig is of the pole on a cart by Barto, Sutton and Anderson, with Gymnasium's rules: +1 for every step,
// the one that ends the episode too; the cart leaving ±2.4 or the pole ±12° is terminal, MaxSteps is a truncation.
//
// Observation: position, velocity, angle, angular velocity. Choices: push left, push right; or, if Continuous, one
// number in [-1, 1].
type CartpoleConfig struct {
	MaxSteps   int // 500, as in version 1
	Continuous bool
}

const (
	gravity    = 9.8
	massPole   = 0.1
	massTotal  = 1.1
	halfPole   = 0.5
	forceMag   = 10
	timeStep   = 0.02
	limitX     = 2.4
	limitTheta = 12 * math.Pi / 180
	startRange = 0.05
)

type cartpole struct {
	batch
	maxSteps   int32
	continuous bool
	carts      []cart
}

// cart is what the observation doesn't tell.
type cart struct {
	rand env.Rand
	tick int32
}

// NewCartpole makes a batch.
func NewCartpole(envs int, c CartpoleConfig) (env.Batch, error) {
	maxSteps := or(c.MaxSteps, 500)
	if maxSteps < 1 || maxSteps > math.MaxInt32 {
		return nil, fmt.Errorf("cartpole: %d steps", maxSteps)
	}
	var act env.Space = env.Discrete{N: 2}
	if c.Continuous {
		act = env.Reals(-1, 1, 1)
	}
	inf := float32(math.Inf(1))
	base, err := newBatch("cartpole", envs, 1, env.Reals(-inf, inf, 4), act)
	if err != nil {
		return nil, err
	}
	return &cartpole{batch: base, maxSteps: int32(maxSteps), continuous: c.Continuous, carts: make([]cart, envs)}, nil
}

// Reset implements [env.Batch].
func (p *cartpole) Reset(_ context.Context, seeds []uint64) error {
	if err := p.begin(seeds); err != nil {
		return err
	}
	for i, seed := range seeds {
		p.carts[i].rand = env.NewRand(seed)
		p.carts[i].start((*[4]float32)(p.b.ObsF32[i*4:]))
	}
	return nil
}

func (c *cart) start(obs *[4]float32) {
	c.tick = 0
	for j := range obs {
		obs[j] = c.rand.Range(-startRange, startRange)
	}
}

// Step implements [env.Batch].
func (p *cartpole) Step(context.Context) error {
	b, carts, last := p.b, p.carts, p.maxSteps
	rewards, terminals, truncations := b.Rewards[:len(carts)], b.Terminals[:len(carts)], b.Truncations[:len(carts)]
	clear(terminals)
	clear(truncations)
	obs := b.ObsF32
	for i := range carts {
		c := &carts[i]
		s := (*[4]float32)(obs)
		obs = obs[4:]
		s[0], s[1], s[2], s[3] = swing(s, p.force(i))
		c.tick++
		rewards[i] = 1
		out := abs32(s[0]) > limitX || abs32(s[2]) > limitTheta
		if out || c.tick >= last {
			if out {
				terminals[i] = 1
			} else {
				truncations[i] = 1
			}
			p.end(c, s, (*[4]float32)(b.FinalF32[i*4:]))
		}
	}
	return nil
}

func (p *cartpole) force(i int) float32 {
	if p.continuous {
		// A number that is none compares as false both ways, and pushes nowhere.
		if a := p.b.Numbers[i]; a == a {
			return max(min(a, 1), -1) * forceMag
		}
		return 0
	}
	return float32(p.b.Choices[i]&1)*(2*forceMag) - forceMag
}

// swing moves cart and pole on by one time step: Euler's method. The products are rounded one by one, so that no
// machine with a fused multiply-add gets another episode. The series for sine and cosine are exact to float32 as far
// as an episode's angle goes.
func swing(s *[4]float32, force float32) (x, v, theta, omega float32) {
	x, v, theta, omega = s[0], s[1], s[2], s[3]
	q := theta * theta
	sin := theta * (1 + float32(q*(-1.0/6+float32(q*(1.0/120)))))
	cos := 1 + float32(q*(-0.5+float32(q*(1.0/24-float32(q*(1.0/720))))))

	temp := (force + float32(massPole*halfPole*omega*omega*sin)) * (1 / massTotal)
	alpha := (float32(gravity*sin) - float32(cos*temp)) / (halfPole * (4.0/3 - float32(massPole/massTotal*cos*cos)))
	acc := temp - float32(massPole*halfPole/massTotal*alpha*cos)

	return x + float32(timeStep*v), v + float32(timeStep*acc), theta + float32(timeStep*omega), omega + float32(timeStep*alpha)
}

func (p *cartpole) end(c *cart, s, final *[4]float32) {
	*final = *s
	p.stats.Episodes++
	p.stats.Return += float64(c.tick)
	p.stats.Length += float64(c.tick)
	p.stats.Score += float64(c.tick) / float64(p.maxSteps)
	c.start(s)
}

func abs32(v float32) float32 { return math.Float32frombits(math.Float32bits(v) &^ (1 << 31)) }
