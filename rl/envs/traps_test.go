package envs

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/render"
	"github.com/dsec-io/dsec/rl/vec"
)

// Each of these is something that an environment of the same name elsewhere gets wrong. The references look at all of
// it, too; here it has a name.

// TestCartpoleCountsItsLastStep: an episode of n steps returns n, and the limit of time is a truncation, from whose
// final observation a learner can bootstrap.
func TestCartpoleCountsItsLastStep(t *testing.T) {
	p, _ := play[*cartpole](t, must(NewCartpole(1, CartpoleConfig{MaxSteps: 3})), 1)
	for step := 1; step <= 3; step++ {
		last := slices.Clone(p.b.ObsF32)
		p.b.Choices[0] = int32(step & 1)
		p.step()
		if p.b.Rewards[0] != 1 || p.b.Terminals[0] != 0 || (p.b.Truncations[0] == 1) != (step == 3) {
			t.Errorf("step %d: reward %v, terminal %d, truncation %d", step, p.b.Rewards[0], p.b.Terminals[0], p.b.Truncations[0])
		}
		if want := last[0] + 0.02*last[1]; step == 3 && p.b.FinalF32[0] != want {
			t.Errorf("final position %v, want %v, where the last step led", p.b.FinalF32[0], want)
		}
	}
}

// TestPongServesBothWays: half of the balls go up.
func TestPongServesBothWays(t *testing.T) {
	var c court
	up := 0
	for range 1000 {
		c.serve()
		if c.vy > 0 {
			up++
		}
		if c.vy != 1 && c.vy != -1 {
			t.Fatalf("served at %v", c.vy)
		}
	}
	if up < 400 || up > 600 {
		t.Errorf("%d of 1000 up", up)
	}
}

// TestPongSeesThePoint: the observation after a point is of the new rally, and the score in it is a fraction.
func TestPongSeesThePoint(t *testing.T) {
	p, g := play[*pong](t, must(NewPong(1, PongConfig{})), 1)
	g.courts[0].x, g.courts[0].vx, g.courts[0].y, g.courts[0].right = 465, 10, 0, 500
	p.step()
	if p.b.Rewards[0] != -1 || !near(p.b.ObsF32[2], 100.0/468) || !near(p.b.ObsF32[6], 1.0/21) || p.b.ObsF32[7] != 0 {
		t.Errorf("reward %v, observation %v", p.b.Rewards[0], p.b.ObsF32)
	}
}

// TestBreakoutStopsAtTheEnd: the frames that a step has left over when a game ends are not played in the next game.
func TestBreakoutStopsAtTheEnd(t *testing.T) {
	p, k := play[*breakout](t, must(NewBreakout(1, BreakoutConfig{Balls: 1})), 1)
	g := &k.games[0]
	g.x, g.y, g.vx, g.vy = 10, 318, 1, 4 // out in the first of four frames
	p.step()
	if p.b.Terminals[0] != 1 || !near(p.b.FinalF32[3], 1) || !near(p.b.ObsF32[2], 0) || !near(p.b.ObsF32[3], 151.0/165-1) {
		t.Errorf("terminal %d, final %v, next %v", p.b.Terminals[0], p.b.FinalF32[:8], p.b.ObsF32[:8])
	}
}

func near(a, b float32) bool { return abs32(a-b) < 1e-6 }

// TestMemoryStaysInItsSpace: -1 is an observation, and so the space has it.
func TestMemoryStaysInItsSpace(t *testing.T) {
	p, m := play[*memory](t, must(NewMemory(64, MemoryConfig{})), 64)
	if !slices.Contains(p.b.ObsF32, -1) || !slices.Contains(p.b.ObsF32, 1) {
		t.Fatalf("first observations %v", p.b.ObsF32)
	}
	for _, v := range p.b.ObsF32 {
		if err := m.spec.Obs.Contains(nil, []float32{v}); err != nil {
			t.Error(err)
		}
	}
}

// Test2048MergesOnce: a tile that a push has made isn't merged by the same push, and those nearest to the wall merge
// first.
func Test2048MergesOnce(t *testing.T) {
	for name, tc := range map[string]struct{ row, left, right uint16 }{
		"four-equal":      {0x1111, 0x0022, 0x2200},
		"three-equal":     {0x0111, 0x0012, 0x2100},
		"made-and-equal":  {0x0211, 0x0022, 0x2200},
		"over-a-gap":      {0x1001, 0x0002, 0x2000},
		"nothing-to-do":   {0x4321, 0x4321, 0x4321},
		"best-stay-apart": {0x00ff, 0x00ff, 0xff00},
	} {
		t.Run(name, func(t *testing.T) {
			s := slides()[tc.row]
			if left, right := uint16(s), uint16(s>>16); left != tc.left || right != tc.right {
				t.Errorf("%#04x becomes %#04x and %#04x, want %#04x and %#04x", tc.row, left, right, tc.left, tc.right)
			}
		})
	}
}

// TestSnakesDontHoldEachOtherUp: one snake's death is its own: the others' rows aren't done.
func TestSnakesDontHoldEachOtherUp(t *testing.T) {
	p, s := play[*snakes](t, must(NewSnake(1, SnakeConfig{Snakes: 4})), 1)
	deaths := 0
	for range 200 {
		for j := range p.b.Choices {
			p.b.Choices[j] = int32(j & 1) // two up, two down, to the walls
		}
		lived := make([]int32, 4)
		for j := range lived {
			lived[j] = s.fields[0].all[j].tick
		}
		p.step()
		for j := range lived {
			deaths += int(p.b.Terminals[j])
			if now := s.fields[0].all[j].tick; !p.b.Done(j) && now != lived[j]+1 || p.b.Done(j) && now != 0 {
				t.Fatalf("snake %d: done %v, was %d steps old, is %d", j, p.b.Done(j), lived[j], now)
			}
		}
	}
	if deaths < 8 {
		t.Errorf("%d deaths", deaths)
	}
}

// TestPaint: each environment can be seen, moves, and fits PNG, GIF and terminal.
func TestPaint(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			v, err := vec.NewParallel(must(Maker(name)), vec.Config{Envs: 3, Blocks: 2})
			if err != nil {
				t.Fatal(err)
			}
			defer v.Close()
			if err := v.Reset(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			painter := v.(render.Painter)
			var film render.Film
			r := env.NewRand(1)
			changed := false
			first := painter.Paint(2)
			for range 8 {
				v.Buffers().SampleActions(v.Spec(), &r)
				if err := v.Step(t.Context()); err != nil {
					t.Fatal(err)
				}
				c := painter.Paint(2)
				changed = changed || !bytes.Equal(c.Image().Pix, first.Image().Pix)
				film.Add(c, 40*time.Millisecond)
			}
			var png, gif bytes.Buffer
			var text strings.Builder
			if err := first.PNG(&png); err != nil {
				t.Error(err)
			}
			if err := film.GIF(&gif); err != nil {
				t.Error(err)
			}
			if err := first.Terminal(&text, 60); err != nil {
				t.Error(err)
			}
			if !changed || png.Len() == 0 || gif.Len() == 0 || !strings.Contains(text.String(), "▀") {
				t.Errorf("changed %v, PNG of %d bytes, GIF of %d, text of %d", changed, png.Len(), gif.Len(), text.Len())
			}
			if painter.Paint(3) != nil || painter.Paint(-1) != nil {
				t.Error("environments that aren't there are painted")
			}
		})
	}
}
