package envs

import (
	"context"

	"github.com/dsec-io/dsec/rl/env"
)

// PongConfig is of a game against a paddle that follows the ball. A point is +1 or -1, a ball returned +0.1; the game
// is over (terminal) when one side has MaxScore points, and truncated at MaxSteps.
//
// Observation: the left (opponent's) and the right (own) paddle, the ball's place and speed, both scores, all scaled
// to [0, 1]. They are of now, also in the step that ends a rally, and the scores are real fractions. Choices: stay, up,
// down. A rally is served up or down, at random, at the ball's slowest.
type PongConfig struct {
	MaxScore int // 21
	MaxSteps int // 20000
	Skip     int // frames a step; 1
}

const (
	pongWidth    = 500
	pongHeight   = 640
	pongPaddle   = 70 // its height
	pongBall     = 32
	pongSpeed    = 8  // of a paddle
	pongServeX   = 10 // and always the ball's speed to the side
	pongServeY   = 1
	pongSpin     = 3 // what a moving paddle adds to the ball's speed up or down
	pongMaxY     = 13
	pongLow      = -pongPaddle / 2
	pongHigh     = pongHeight - pongPaddle/2
	pongReturned = 0.1
)

type pong struct {
	batch
	maxScore int32
	maxSteps int32
	skip     int
	scale    float32 // of a score
	courts   []court
}

type court struct {
	rand         env.Rand
	left, right  float32 // where the paddles begin
	x, y, vx, vy float32 // of the ball
	lost, won    int32
	tick         int32
	returned     int32
}

// NewPong makes a batch.
func NewPong(envs int, c PongConfig) (env.Batch, error) {
	maxScore, maxSteps, skip := or(c.MaxScore, 21), or(c.MaxSteps, 20000), or(c.Skip, 1)
	if err := positive("pong", maxScore, maxSteps, skip); err != nil {
		return nil, err
	}
	base, err := newBatch("pong", envs, 1, env.Reals(0, 1, 8), env.Discrete{N: 3})
	if err != nil {
		return nil, err
	}
	return &pong{
		batch: base, maxScore: int32(maxScore), maxSteps: int32(maxSteps), skip: skip,
		scale: 1 / float32(maxScore), courts: make([]court, envs),
	}, nil
}

// Reset implements [env.Batch].
func (p *pong) Reset(_ context.Context, seeds []uint64) error {
	if err := p.begin(seeds); err != nil {
		return err
	}
	for i, seed := range seeds {
		c := &p.courts[i]
		c.rand = env.NewRand(seed)
		p.start(c)
		p.observe(c, (*[8]float32)(p.b.ObsF32[i*8:]))
	}
	return nil
}

func (p *pong) start(c *court) {
	c.lost, c.won, c.tick, c.returned = 0, 0, 0, 0
	c.serve()
}

func (c *court) serve() {
	c.left, c.right = (pongHeight-pongPaddle)/2, (pongHeight-pongPaddle)/2
	c.x, c.y = pongWidth/5, (pongHeight-pongBall)/2
	c.vx = pongServeX
	c.vy = pongServeY
	if c.rand.Uint64()>>63 == 0 {
		c.vy = -pongServeY
	}
}

func (p *pong) observe(c *court, obs *[8]float32) {
	obs[0] = (c.left - pongLow) * (1.0 / (pongHigh - pongLow))
	obs[1] = (c.right - pongLow) * (1.0 / (pongHigh - pongLow))
	obs[2] = max(0, min(1, c.x*(1.0/(pongWidth-pongBall))))
	obs[3] = c.y * (1.0 / (pongHeight - pongBall))
	obs[4] = (c.vx + pongServeX) * (1.0 / (2 * pongServeX))
	obs[5] = (c.vy + pongMaxY) * (1.0 / (2 * pongMaxY))
	obs[6] = float32(c.lost) * p.scale
	obs[7] = float32(c.won) * p.scale
}

// Step implements [env.Batch].
func (p *pong) Step(context.Context) error {
	b, courts := p.b, p.courts
	choices, rewards := b.Choices[:len(courts)], b.Rewards[:len(courts)]
	clear(b.Terminals)
	clear(b.Truncations)
	obs := b.ObsF32
	for i := range courts {
		c := &courts[i]
		row := (*[8]float32)(obs)
		obs = obs[8:]
		// 0, 1, 2 are 0, 1, -1: without a branch.
		a := choices[i]
		dir := float32(a&1 - a>>1&1)
		reward := float32(0)
		for range p.skip {
			point := c.frame(dir)
			reward += point
			if point < 0 || point == 1 {
				break
			}
		}
		c.tick++
		rewards[i] = reward
		p.observe(c, row)
		if c.won >= p.maxScore || c.lost >= p.maxScore || c.tick >= p.maxSteps {
			p.end(i, c, row)
		}
	}
	return nil
}

// frame moves everything by one frame and returns what it earns: -1 and 1 are points, after which a rally begins.
func (c *court) frame(dir float32) float32 {
	c.right = max(pongLow, min(pongHigh, c.right+pongSpeed*dir))
	c.left += max(-pongSpeed, min(pongSpeed, c.y-(c.left+pongPaddle/2)))
	c.left = max(pongLow, min(pongHigh, c.left))
	c.x += c.vx
	c.y += c.vy
	if c.y < 0 {
		c.y, c.vy = -c.y, -c.vy
	} else if c.y > pongHeight-pongBall {
		c.y, c.vy = 2*(pongHeight-pongBall)-c.y, -c.vy
	}
	if c.x < 0 {
		if !touches(c.y, c.left) {
			c.won++
			c.serve()
			return 1
		}
		c.x, c.vx = 0, pongServeX
	} else if c.x > pongWidth-pongBall {
		if !touches(c.y, c.right) {
			c.lost++
			c.serve()
			return -1
		}
		c.x, c.vx = pongWidth-pongBall, -pongServeX
		c.vy = max(-pongMaxY, min(pongMaxY, c.vy+pongSpin*dir))
		if abs32(c.vy) < 0.01 {
			c.vy = pongSpin // a level ball would fly for ever
		}
		c.returned++
		return pongReturned
	}
	return 0
}

func touches(ball, paddle float32) bool { return ball+pongBall > paddle && ball < paddle+pongPaddle }

// end finishes a game and begins the next.
func (p *pong) end(i int, c *court, row *[8]float32) {
	if c.tick >= p.maxSteps && c.won < p.maxScore && c.lost < p.maxScore {
		p.b.Truncations[i] = 1
	} else {
		p.b.Terminals[i] = 1
	}
	copy(p.b.FinalF32[i*8:(i+1)*8], row[:])
	p.stats.Episodes++
	p.stats.Return += float64(c.won-c.lost) + pongReturned*float64(c.returned)
	p.stats.Length += float64(c.tick)
	p.stats.Score += float64(c.won) / float64(max(c.won+c.lost, 1))
	p.start(c)
	p.observe(c, row)
}
