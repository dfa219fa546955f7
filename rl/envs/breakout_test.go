package envs

import (
	"math"
	"slices"
	"testing"
)

// naiveWall plays one frame of breakout in float64. It looks at every brick, and finds contacts by asking when the
// ball's corner enters the obstacle grown by the ball's size, edge by edge.
type naiveWall struct {
	paddle, width, x, y, vx, vy, speed float64
	balls, hits, score, gained         int
	bricks                             [6][18]bool
	served                             bool // a new ball: the side it flies to is chance
	tie                                bool // two contacts within a hair's breadth of each other
}

func (n *naiveWall) contacts() (t float64, what string, r, c int) {
	t = math.Inf(1)
	take := func(at float64, name string, row, col int) {
		if at < -1e-4 || at > 1 {
			return
		}
		// Bricks side by side are met at the very same time: the first one counts. What is nearly the same time may be
		// told apart otherwise by float32.
		if at != t && math.Abs(at-t) < 1e-4 || at > 1-1e-5 {
			n.tie = true
		}
		if at < t {
			t, what, r, c = at, name, row, col
		}
	}
	if n.vx < 0 {
		take(-n.x/n.vx, "side", 0, 0)
	} else {
		take((576-32-n.x)/n.vx, "side", 0, 0)
	}
	if n.vy < 0 {
		take(-n.y/n.vy, "ceiling", 0, 0)
	}
	if at := (312 - 32 - n.y) / n.vy; n.vy > 0 {
		x := n.x + n.vx*at
		if x+32 > n.paddle && x < n.paddle+n.width {
			take(at, "paddle", 0, 0)
		}
		if at > -1e-4 && at < 1 && (math.Abs(x+32-n.paddle) < 1e-3 || math.Abs(x-n.paddle-n.width) < 1e-3) {
			n.tie = true
		}
	}
	for row := range n.bricks {
		for col, stands := range n.bricks[row] {
			if stands {
				at, vertical := n.edge(float64(col*32), float64(50+row*12))
				name := "brick"
				if vertical {
					name = "brick-side"
				}
				take(at, name, row, col)
			}
		}
	}
	return t, what, r, c
}

// edge returns when the ball reaches a brick, and whether at one of its upright edges.
func (n *naiveWall) edge(bx, by float64) (t float64, vertical bool) {
	left, right, top, bottom := bx-32, bx+32, by-32, by+12
	t = math.Inf(1)
	at := func(when, across, low, high float64, upright bool) {
		if when < -1e-4 || when > 1 {
			return
		}
		if math.Abs(across-low) < 1e-3 || math.Abs(across-high) < 1e-3 {
			n.tie = true // a corner
		}
		if across > low && across < high && when < t {
			t, vertical = when, upright
		}
	}
	if n.vx > 0 {
		when := (left - n.x) / n.vx
		at(when, n.y+n.vy*when, top, bottom, true)
	} else {
		when := (right - n.x) / n.vx
		at(when, n.y+n.vy*when, top, bottom, true)
	}
	if n.vy > 0 {
		when := (top - n.y) / n.vy
		at(when, n.x+n.vx*when, left, right, false)
	} else {
		when := (bottom - n.y) / n.vy
		at(when, n.x+n.vx*when, left, right, false)
	}
	return t, vertical
}

func (n *naiveWall) frame(choice int32) {
	move := map[int32]float64{0: 0, 1: -1, 2: 1}[choice] * 620 / 60
	n.paddle = math.Max(0, math.Min(576-n.width, n.paddle+move))
	t, what, r, c := n.contacts()
	n.x += n.vx * math.Min(t, 1)
	n.y += n.vy * math.Min(t, 1)
	switch what {
	case "side":
		n.vx = -n.vx
	case "ceiling":
		n.vy = -n.vy
		n.width = 31
	case "paddle":
		n.hits++
		if n.hits%4 == 0 {
			n.speed = math.Min(n.speed+64.0/60, 448.0/60)
		}
		angle := ((n.x+16-n.paddle)/n.width - 0.5) * math.Pi / 2
		n.vx, n.vy = n.speed*math.Sin(angle), -n.speed*math.Cos(angle)
		if n.score == 432 && n.bricks == [6][18]bool{} {
			n.build()
		}
	case "brick", "brick-side":
		n.bricks[r][c] = false
		n.gained += []int{7, 7, 4, 4, 1, 1}[r]
		n.score += []int{7, 7, 4, 4, 1, 1}[r]
		if what == "brick" {
			n.vy = -n.vy
		} else {
			n.vx = -n.vx
		}
		if fast := 448.0 / 60; r < 3 && n.speed < fast {
			n.vx, n.vy, n.speed = n.vx*fast/n.speed, n.vy*fast/n.speed, fast
		}
	}
	if n.y >= 320 {
		n.balls--
		if n.balls > 0 {
			n.serve()
		}
	}
}

func (n *naiveWall) build() {
	for r := range n.bricks {
		for c := range n.bricks[r] {
			n.bricks[r][c] = true
		}
	}
}

func (n *naiveWall) serve() {
	n.served = true
	n.hits, n.width, n.speed = 0, 62, 256.0/60
	n.paddle, n.x, n.y = 257, 272, 135
	n.vx, n.vy = n.speed*math.Sin(math.Pi/3.25), n.speed*math.Cos(math.Pi/3.25)
}

func naiveOf(g *wall) *naiveWall {
	n := &naiveWall{
		paddle: float64(g.paddle), width: float64(g.width), x: float64(g.x), y: float64(g.y), vx: float64(g.vx), vy: float64(g.vy),
		speed: float64(g.speed), balls: int(g.balls), hits: int(g.hits), score: int(g.score),
	}
	for r := range n.bricks {
		for c := range n.bricks[r] {
			n.bricks[r][c] = g.bricks[r]>>c&1 == 1
		}
	}
	return n
}

func (n *naiveWall) observation(balls int) []float64 {
	obs := []float64{
		(n.paddle+n.width/2)/288 - 1, n.width / 62, (n.x+16)/288 - 1, math.Min((n.y+16)/165-1, 1), n.vx / 8, n.vy / 8,
		float64(n.balls) / float64(balls), float64(n.score) / 864,
	}
	for r := range n.bricks {
		for _, stands := range n.bricks[r] {
			v := 0.0
			if stands {
				v = 0.1
			}
			obs = append(obs, v)
		}
	}
	return obs
}

func TestBreakoutReference(t *testing.T) {
	const steps, balls, maxSteps = 2500, 3, 700
	p, k := play[*breakout](t, must(NewBreakout(tableEnvs, BreakoutConfig{Balls: balls, MaxSteps: maxSteps})), tableEnvs)
	// Some begin with hardly a brick left, so that walls are finished.
	for i := range 16 {
		g := &k.games[i]
		g.score = 432 - 1
		if i%2 == 0 {
			g.score = 864 - 1
		}
		g.bricks = [6]uint32{5: 1 << 9}
	}
	ties, ends, cuts, rebuilt, total := 0, 0, 0, 0, 0
	for range steps {
		before := slices.Clone(k.games)
		p.choose()
		for i, g := range before {
			if i%4 > 0 { // follow the ball
				p.b.Choices[i] = 1
				if g.x+ballSize/2 > g.paddle+g.width/2 {
					p.b.Choices[i] = 2
				}
			}
		}
		p.step()
		for i := range before {
			total++
			n := naiveOf(&before[i])
			over := false
			for f := 0; f < 4 && !over; f++ {
				n.frame(p.b.Choices[i])
				over = n.balls == 0 || n.score == 864
			}
			if n.tie {
				ties++
				continue
			}
			late := !over && before[i].tick+1 == maxSteps
			if over {
				ends++
			} else if late {
				cuts++
			}
			if n.score >= 432 && before[i].bricks == [6]uint32{} && n.bricks[0][0] {
				rebuilt++
			}
			if p.b.Rewards[i] != float32(n.gained) || (p.b.Terminals[i] == 1) != over || (p.b.Truncations[i] == 1) != late {
				t.Fatalf("environment %d: reward %v, want %v; terminal %d, want %v; truncation %d, want %v\nfrom %+v\nto %+v", i,
					p.b.Rewards[i], n.gained, p.b.Terminals[i], over, p.b.Truncations[i], late, before[i], k.games[i])
			}
			obs := p.b.ObsF32[i*breakoutLen : (i+1)*breakoutLen]
			if over || late {
				obs = p.b.FinalF32[i*breakoutLen : (i+1)*breakoutLen]
			}
			for j, want := range n.observation(balls) {
				off := math.Abs(want - float64(obs[j]))
				if n.served && (j == 2 || j == 4) { // to the left or to the right
					off = min(off, math.Abs(float64(obs[j])+want)) // what is served is served from the middle
				}
				if off > 1e-4 && i >= 16 || off > 1e-4 && j < breakoutNumbers {
					t.Fatalf("environment %d: element %d is %v, want %v\nfrom %+v\nto %+v", i, j, obs[j], want, before[i], k.games[i])
				}
			}
		}
	}
	if ends < 50 || cuts < 50 || rebuilt < 4 || ties > total/200 {
		t.Errorf("%d ends, %d truncations, %d walls built again, %d of %d steps too near to a tie: the test has seen too little",
			ends, cuts, rebuilt, ties, total)
	}
}

// TestBreakoutStaysInside has the ball nowhere where it can't be.
func TestBreakoutStaysInside(t *testing.T) {
	p, k := play[*breakout](t, must(NewBreakout(tableEnvs, BreakoutConfig{})), tableEnvs)
	for range 3000 {
		p.choose()
		p.step()
		for i := range k.games {
			g := &k.games[i]
			speed := math.Hypot(float64(g.vx), float64(g.vy))
			if g.x < 0 || g.x > fieldW-ballSize || g.y < 0 || g.y > fieldH || math.Abs(speed-float64(g.speed)) > 1e-3 {
				t.Fatalf("%+v", g)
			}
		}
	}
}
