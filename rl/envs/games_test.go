package envs

import (
	"math"
	"math/bits"
	"slices"
	"testing"

	"github.com/dsec-io/dsec/rl/env"
)

// naiveCourt is pong in float64, told the long way. Its coordinates are whole numbers, which float32 has exactly.
type naiveCourt struct {
	left, right, x, y, vx, vy float64
}

func (n *naiveCourt) frame(choice int32) (reward float64) {
	const w, h, paddle, ball, speed = 500.0, 640.0, 70.0, 32.0, 8.0
	dir := map[int32]float64{0: 0, 1: 1, 2: -1}[choice]
	clamp := func(v, low, high float64) float64 { return math.Min(math.Max(v, low), high) }
	n.right = clamp(n.right+speed*dir, -paddle/2, h-paddle/2)
	n.left = clamp(n.left+clamp(n.y-n.left-paddle/2, -speed, speed), -paddle/2, h-paddle/2)
	n.x += n.vx
	n.y += n.vy
	if n.y < 0 {
		n.y, n.vy = -n.y, -n.vy
	}
	if n.y+ball > h {
		n.y, n.vy = 2*(h-ball)-n.y, -n.vy
	}
	meets := func(p float64) bool { return n.y+ball > p && n.y < p+paddle }
	switch {
	case n.x < 0 && meets(n.left):
		n.x, n.vx = 0, 10
	case n.x < 0:
		return 1
	case n.x+ball > w && meets(n.right):
		n.x, n.vx = w-ball, -10
		n.vy = clamp(n.vy+3*dir, -13, 13)
		if n.vy == 0 {
			n.vy = 3
		}
		return 0.1
	case n.x+ball > w:
		return -1
	}
	return 0
}

func TestPongReference(t *testing.T) {
	const steps = 4000
	p, g := play[*pong](t, must(NewPong(tableEnvs, PongConfig{MaxScore: 3})), tableEnvs)
	points, returned, games := 0, 0, 0
	for step := range steps {
		before := slices.Clone(g.courts)
		p.choose()
		if step%3 > 0 { // follow the ball most of the time
			for i, c := range before {
				p.b.Choices[i] = 1
				if c.right+pongPaddle/2 > c.y+pongBall/2 {
					p.b.Choices[i] = 2
				}
			}
		}
		p.step()
		for i, was := range before {
			n := naiveCourt{float64(was.left), float64(was.right), float64(was.x), float64(was.y), float64(was.vx), float64(was.vy)}
			reward := n.frame(p.b.Choices[i])
			won, lost := was.won, was.lost
			if reward == 1 || reward == -1 {
				points++
				n = naiveCourt{285, 285, 100, 304, 10, math.Copysign(1, n.vy)}
				if reward == 1 {
					won++
				} else {
					lost++
				}
			} else if reward != 0 {
				returned++
			}
			over := won == 3 || lost == 3
			obs := p.b.ObsF32[i*8 : i*8+8]
			if over {
				games++
				obs = p.b.FinalF32[i*8 : i*8+8]
			}
			want := []float64{
				(n.left + 35) / 640, (n.right + 35) / 640, n.x / 468, n.y / 608, (n.vx + 10) / 20, (n.vy + 13) / 26,
				float64(lost) / 3, float64(won) / 3,
			}
			for j, v := range want {
				served := j == 5 && math.Abs(reward) == 1 // up or down, at random
				if math.Abs(v-float64(obs[j])) > 1e-6 && !served {
					t.Fatalf("step %d, environment %d: observation %v, want %v", step, i, obs, want)
				}
			}
			if float64(p.b.Rewards[i]) != float64(float32(reward)) || (p.b.Terminals[i] == 1) != over || p.b.Truncations[i] != 0 {
				t.Fatalf("step %d, environment %d: reward %v, want %v; done %v, want %v", step, i, p.b.Rewards[i], reward, p.b.Done(i), over)
			}
		}
	}
	if points < 500 || returned < 500 || games < 100 {
		t.Errorf("%d points, %d balls returned, %d games: the test has seen too little", points, returned, games)
	}
}

// naive2048 pushes a grid of exponents up by taking it column by column; other ways are turns of the grid.
func naive2048(grid [4][4]int, choice int32) (to [4][4]int, exponents, points int) {
	at := func(line, k int) (r, c int) {
		switch choice {
		case 0:
			return k, line
		case 1:
			return 3 - k, line
		case 2:
			return line, k
		default:
			return line, 3 - k
		}
	}
	for line := range 4 {
		var out []int
		mergeable := false
		for k := range 4 {
			r, c := at(line, k)
			v := grid[r][c]
			if v == 0 {
				continue
			}
			if mergeable && out[len(out)-1] == v && v < 15 {
				out[len(out)-1]++
				exponents += v + 1
				points += 1 << (v + 1)
				mergeable = false
				continue
			}
			out = append(out, v)
			mergeable = true
		}
		for k, v := range out {
			r, c := at(line, k)
			to[r][c] = v
		}
	}
	return to, exponents, points
}

func grid2048(obs []uint8) (g [4][4]int) {
	for i, v := range obs[:16] {
		g[i/4][i%4] = int(v)
	}
	return g
}

func Test2048Reference(t *testing.T) {
	const steps = 2500
	p, g := play[*game2048](t, must(New2048(tableEnvs, Config2048{MaxSteps: 150})), tableEnvs)
	fours, drops, ends, cuts := 0, 0, 0, 0
	places := make([]int, 16)
	points, ticks := make([]int, tableEnvs), make([]int, tableEnvs)
	for step := range steps {
		before := slices.Clone(p.b.ObsU8)
		p.choose()
		if step%64 < 60 { // mostly into one corner, for high tiles
			for i := range p.b.Choices {
				p.b.Choices[i] = []int32{0, 2, 0, 2, 3, 1}[p.rand.IntN(6)]
			}
		}
		p.step()
		for i := range tableEnvs {
			was := grid2048(before[i*16:])
			want, exponents, gained := naive2048(was, p.b.Choices[i])
			obs := p.b.ObsU8[i*16 : i*16+16]
			if p.b.Done(i) {
				obs = p.b.FinalU8[i*16 : i*16+16]
			}
			got := grid2048(obs)
			ticks[i]++
			points[i] += gained
			reward := -0.05
			if want != was {
				reward = float64(exponents) / 16
				place, tile := dropped(t, want, got)
				drops++
				places[place]++
				fours += tile - 1
			} else if got != was {
				t.Fatalf("a push that moves nothing made\n%v of\n%v", got, was)
			}
			over := true
			for choice := range int32(4) {
				if next, _, _ := naive2048(got, choice); next != got {
					over = false
				}
			}
			late := !over && ticks[i] >= 150 && ticks[i] >= points[i]/10
			if over {
				reward = -1
			}
			if float32(reward) != p.b.Rewards[i] || (p.b.Terminals[i] == 1) != over || (p.b.Truncations[i] == 1) != late {
				t.Fatalf("pushed %d:\n%v\n%v\nreward %v, want %v; terminal %d, want %v; truncation %d, want %v", p.b.Choices[i], was, got,
					p.b.Rewards[i], reward, p.b.Terminals[i], over, p.b.Truncations[i], late)
			}
			switch {
			case over:
				ends++
			case late:
				cuts++
			case g.games[i].points() != points[i]:
				t.Fatalf("points %d, want %d: %v", g.games[i].points(), points[i], got)
			}
			if over || late {
				ticks[i], points[i] = 0, 0
			}
		}
	}
	if share := float64(fours) / float64(drops); share < 0.09 || share > 0.11 {
		t.Errorf("%v of the tiles dropped are 4s", share)
	}
	if ends < 50 || cuts < 50 || slices.Min(places) == 0 {
		t.Errorf("%d ends, %d truncations, places %v: the test has seen too little", ends, cuts, places)
	}
}

// dropped finds the one tile that got has and want hasn't.
func dropped(t *testing.T, want, got [4][4]int) (place, tile int) {
	t.Helper()
	place = -1
	for i := range 16 {
		if want[i/4][i%4] == got[i/4][i%4] {
			continue
		}
		if place >= 0 || want[i/4][i%4] != 0 || got[i/4][i%4] > 2 {
			t.Fatalf("after the push\n%v\nthere is\n%v", want, got)
		}
		place, tile = i, got[i/4][i%4]
	}
	if place < 0 {
		t.Fatalf("nothing was dropped on\n%v", want)
	}
	return place, tile
}

func TestNth(t *testing.T) {
	r := env.NewRand(1)
	for range 20000 {
		a, b := r.Uint64(), r.Uint64()
		free := a&b&0x1111111111111111 | 1<<(4*r.IntN(16))
		if r.IntN(100) == 0 {
			free = 0x1111111111111111
		}
		n := uint64(0)
		for bit := range 16 {
			if place := uint64(1) << (4 * bit); free&place != 0 {
				upTo, count := tally(free)
				if got := nth(upTo, n); got != place || count != uint64(bits.OnesCount64(free)) {
					t.Fatalf("nth(%#x, %d) = %#x, want %#x", free, n, got, place)
				}
				n++
			}
		}
	}
}

func TestStuck(t *testing.T) {
	r := env.NewRand(2)
	seen := 0
	for range 200000 {
		var b board
		for range 16 {
			// Neighbours are seldom equal where there are many tiles, and best tiles never merge.
			b = b<<4 | uint64([]int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 15, 15, 15}[r.IntN(15)])
		}
		var obs [16]uint8
		putBoard(obs[:], b)
		want := true
		for choice := range int32(4) {
			if to, _, _ := naive2048(grid2048(obs[:]), choice); to != grid2048(obs[:]) {
				want = false
			}
		}
		if stuck(b) != want {
			t.Fatalf("stuck(%#x) = %v", b, !want)
		}
		if want {
			seen++
		}
	}
	if seen < 1000 {
		t.Errorf("%d stuck boards: the test has seen too little", seen)
	}
}
