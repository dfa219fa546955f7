package envs

import (
	"context"
	"math"

	"github.com/dsec-io/dsec/rl/env"
)

// BreakoutConfig is of the game of bricks, 6 rows of 18. A brick earns 7, 4 or 1 points, by its row. Every fourth
// return of the ball makes it faster, a brick of the upper rows as fast as it gets; touching the ceiling halves the
// paddle. The wall is built up again once, when the ball is returned after the last brick. The game is over (terminal)
// when all balls are lost or both walls gone, and truncated at MaxSteps.
//
// Observation: paddle's middle and width, ball's middle and speed, balls left, share of the points; then the bricks, 0.1
// where one stands: 108 ones would be all that a learner sees. Choices: stay, left, right. Balls are served by
// themselves, to a random side. A step is Skip frames, but never goes on into the next game.
type BreakoutConfig struct {
	Balls    int // 5
	MaxSteps int // 10000
	Skip     int // 4
}

const (
	wallRows, wallCols = 6, 18
	brickW, brickH     = 32, 12
	wallTop            = 50
	wallBottom         = wallTop + wallRows*brickH
	fieldW, fieldH     = wallCols * brickW, 330
	ballSize           = 32
	paddleW, paddleH   = 62, 8
	paddleY            = fieldH - paddleH - 10
	paddleStep         = 620.0 / 60
	slowest, fastest   = 256.0 / 60, 448.0 / 60
	fasterBy           = 64.0 / 60
	wallPoints         = 2 * 2 * wallCols * (7 + 4 + 1) // two walls, of two rows each
	allBricks          = 1<<wallCols - 1
	breakoutNumbers    = 8
	breakoutLen        = breakoutNumbers + wallRows*wallCols
	serveAngle         = math.Pi / 3.25
	brickShown         = 0.1 // in the observation
)

type breakout struct {
	batch
	balls, maxSteps int32
	skip            int
	games           []wall
}

// wall is one game.
type wall struct {
	rand           env.Rand
	paddle, width  float32
	x, y, vx, vy   float32 // of the ball, a square, by its upper left corner
	speed          float32
	balls, tick    int32
	hits, score    int32
	bricks         [wallRows]uint32 // bit c: the brick of column c stands
	gained         int32            // in this step
	serveX, serveY float32
}

// NewBreakout makes a batch.
func NewBreakout(envs int, c BreakoutConfig) (env.Batch, error) {
	balls, maxSteps, skip := or(c.Balls, 5), or(c.MaxSteps, 10000), or(c.Skip, 4)
	if err := positive("breakout", balls, maxSteps, skip); err != nil {
		return nil, err
	}
	base, err := newBatch("breakout", envs, 1, env.Reals(-1, 1, breakoutLen), env.Discrete{N: 3})
	if err != nil {
		return nil, err
	}
	b := &breakout{batch: base, balls: int32(balls), maxSteps: int32(maxSteps), skip: skip, games: make([]wall, envs)}
	sin, cos := math.Sincos(serveAngle)
	for i := range b.games {
		b.games[i].serveX, b.games[i].serveY = float32(sin*slowest), float32(cos*slowest)
	}
	return b, nil
}

// Reset implements [env.Batch].
func (k *breakout) Reset(_ context.Context, seeds []uint64) error {
	if err := k.begin(seeds); err != nil {
		return err
	}
	for i, seed := range seeds {
		g := &k.games[i]
		g.rand = env.NewRand(seed)
		k.start(g, k.row(i))
		k.observe(g, k.row(i))
	}
	return nil
}

func (k *breakout) row(i int) []float32 { return k.b.ObsF32[i*breakoutLen : (i+1)*breakoutLen] }

func (k *breakout) start(g *wall, obs []float32) {
	g.balls, g.tick, g.score, g.gained = k.balls, 0, 0, 0
	g.build(obs)
	g.serve()
}

func (g *wall) build(obs []float32) {
	for r := range g.bricks {
		g.bricks[r] = allBricks
	}
	for i := range obs[breakoutNumbers:] {
		obs[breakoutNumbers+i] = brickShown
	}
}

// serve puts a ball into the middle, where it can't touch anything yet.
func (g *wall) serve() {
	g.width, g.speed, g.hits = paddleW, slowest, 0
	g.paddle = (fieldW - paddleW) / 2
	g.x, g.y = (fieldW-ballSize)/2, fieldH/2-30
	g.vx, g.vy = g.serveX, g.serveY
	if g.rand.Uint64()>>63 == 0 {
		g.vx = -g.vx
	}
}

func (k *breakout) observe(g *wall, obs []float32) {
	o := (*[breakoutNumbers]float32)(obs)
	o[0] = (g.paddle+g.width/2)*(2.0/fieldW) - 1
	o[1] = g.width * (1.0 / paddleW)
	o[2] = (g.x+ballSize/2)*(2.0/fieldW) - 1
	o[3] = max(-1, min(1, (g.y+ballSize/2)*(2.0/fieldH)-1))
	o[4] = g.vx * (1.0 / 8)
	o[5] = g.vy * (1.0 / 8)
	o[6] = float32(g.balls) / float32(k.balls)
	o[7] = float32(g.score) * (1.0 / wallPoints)
}

// Step implements [env.Batch].
func (k *breakout) Step(context.Context) error {
	b, games := k.b, k.games
	clear(b.Terminals)
	clear(b.Truncations)
	for i := range games {
		g := &games[i]
		obs := k.row(i)
		a := b.Choices[i]
		move := paddleStep * float32(a>>1&1-a&1)
		g.gained = 0
		g.tick++
		over := false
		for range k.skip {
			g.paddle = max(0, min(fieldW-g.width, g.paddle+move))
			g.fly(obs)
			if g.y >= paddleY+paddleH {
				g.balls--
				if g.balls > 0 {
					g.serve()
				}
			}
			if over = g.balls == 0 || g.score == wallPoints; over {
				break
			}
		}
		b.Rewards[i] = float32(g.gained)
		k.observe(g, obs)
		if over || g.tick >= k.maxSteps {
			k.end(i, g, over)
		}
	}
	return nil
}

// fly moves the ball by one frame, to what it meets first if it meets anything.
func (g *wall) fly(obs []float32) {
	x, y := g.x+g.vx, g.y+g.vy
	if x >= 0 && x <= fieldW-ballSize && min(y, g.y) > wallBottom && y+ballSize < paddleY {
		g.x, g.y = x, y
		return
	}
	m := meeting{t: 2}
	g.meetBricks(&m)
	g.meetWalls(&m)
	g.meetPaddle(&m)
	switch m.what {
	case nothing:
		g.x, g.y = x, y
		return
	case paddleTop:
		g.x, g.y = m.x, m.y
		g.bounce(obs)
		return
	case ceiling:
		g.width = paddleW / 2
	case brick:
		g.destroy(m.row, m.col, obs)
	case side:
	}
	g.x, g.y = m.x, m.y
	if m.sideways {
		g.vx = -g.vx
	} else {
		g.vy = -g.vy
	}
}

// meeting is the first contact of a frame.
type meeting struct {
	t        float32 // in frames
	x, y     float32 // where the ball is then
	what     obstacle
	sideways bool
	row, col int
}

type obstacle uint8

const (
	nothing obstacle = iota
	brick
	side
	ceiling
	paddleTop
)

func (g *wall) meetWalls(m *meeting) {
	edge := float32(0)
	if g.vx > 0 {
		edge = fieldW - ballSize
	}
	if t := (edge - g.x) / g.vx; t >= 0 && t <= 1 && t < m.t {
		*m = meeting{t: t, x: edge, y: g.y + float32(g.vy*t), what: side, sideways: true}
	}
	if t := -g.y / g.vy; g.vy < 0 && t >= 0 && t <= 1 && t < m.t {
		*m = meeting{t: t, x: g.x + float32(g.vx*t), y: 0, what: ceiling}
	}
}

func (g *wall) meetPaddle(m *meeting) {
	t := (paddleY - ballSize - g.y) / g.vy
	if !(g.vy > 0 && t >= 0 && t <= 1 && t < m.t) {
		return
	}
	x := g.x + float32(g.vx*t)
	if x+ballSize > g.paddle && x < g.paddle+g.width {
		*m = meeting{t: t, x: x, y: paddleY - ballSize, what: paddleTop}
	}
}

// meetBricks looks at the bricks that lie in the ball's way.
func (g *wall) meetBricks(m *meeting) {
	if min(g.y, g.y+g.vy) > wallBottom {
		return
	}
	r0 := max(0, int(min(g.y, g.y+g.vy)-wallTop)/brickH-1)
	r1 := min(wallRows-1, int(max(g.y, g.y+g.vy)+ballSize-wallTop)/brickH)
	c0 := max(0, int(min(g.x, g.x+g.vx))/brickW-1)
	c1 := min(wallCols-1, int(max(g.x, g.x+g.vx)+ballSize)/brickW)
	for r := r0; r <= r1; r++ {
		for c := c0; c <= c1; c++ {
			if g.bricks[r]>>c&1 != 0 {
				g.meetBrick(m, r, c)
			}
		}
	}
}

// meetBrick finds when the ball and a brick overlap on both axes for the first time. A rounding error may have brought
// the ball a hair's breadth into the brick already, which counts as contact now.
func (g *wall) meetBrick(m *meeting, r, c int) {
	bx, by := float32(c*brickW), float32(wallTop+r*brickH)
	inX, outX := span(g.x, g.vx, bx-ballSize, bx+brickW)
	inY, outY := span(g.y, g.vy, by-ballSize, by+brickH)
	t, sideways := inY, false
	if inX > inY {
		t, sideways = inX, true
	}
	if t < -0.01 || t > 1 || t >= min(outX, outY) {
		return
	}
	t = max(t, 0)
	if t >= m.t {
		return
	}
	*m = meeting{t: t, x: g.x + float32(g.vx*t), y: g.y + float32(g.vy*t), what: brick, sideways: sideways, row: r, col: c}
	switch {
	case sideways && g.vx > 0:
		m.x = bx - ballSize
	case sideways:
		m.x = bx + brickW
	case g.vy > 0:
		m.y = by - ballSize
	default:
		m.y = by + brickH
	}
}

// span returns when p, moving at v, is between low and high.
func span(p, v, low, high float32) (in, out float32) {
	if v > 0 {
		return (low - p) / v, (high - p) / v
	}
	if v < 0 {
		return (high - p) / v, (low - p) / v
	}
	inf := float32(math.Inf(1))
	if p > low && p < high {
		return -inf, inf
	}
	return inf, -inf
}

// bounce sends the ball back up, the more to the side the further out it met the paddle.
func (g *wall) bounce(obs []float32) {
	g.hits++
	if g.hits%4 == 0 {
		g.speed = min(fastest, g.speed+fasterBy)
	}
	off := (g.x+ballSize/2-g.paddle)/g.width - 0.5
	sin, cos := math.Sincos(float64(off) * math.Pi / 2)
	g.vx, g.vy = float32(sin)*g.speed, float32(cos)*-g.speed
	if g.score == wallPoints/2 && g.bricks == [wallRows]uint32{} {
		g.build(obs)
	}
}

func (g *wall) destroy(r, c int, obs []float32) {
	points := int32(7 - 3*(r/2))
	g.score += points
	g.gained += points
	g.bricks[r] &^= 1 << c
	obs[breakoutNumbers+r*wallCols+c] = 0
	if r < wallRows/2 && g.speed < fastest {
		faster := fastest / g.speed
		g.speed, g.vx, g.vy = fastest, g.vx*faster, g.vy*faster
	}
}

func (k *breakout) end(i int, g *wall, over bool) {
	if over {
		k.b.Terminals[i] = 1
	} else {
		k.b.Truncations[i] = 1
	}
	k.b.KeepFinal(i)
	k.stats.Episodes++
	k.stats.Return += float64(g.score)
	k.stats.Length += float64(g.tick)
	k.stats.Score += float64(g.score) / wallPoints
	k.start(g, k.row(i))
	k.observe(g, k.row(i))
}
