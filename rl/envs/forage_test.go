package envs

import (
	"testing"

	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/vec"
)

const (
	naiveAgents = 3
	naiveSize   = 7
)

// naiveForage is the game told the long way.
type naiveForage struct {
	grid [naiveSize][naiveSize]uint8
	at   [naiveAgents][2]int
	out  [naiveAgents]bool
	tick int

	reward               [naiveAgents]float32
	terminal, cut, alive [naiveAgents]bool
}

func naiveForageOf(f *Forage) *naiveForage {
	n := &naiveForage{tick: f.tick}
	for i, v := range f.grid {
		n.grid[i/naiveSize][i%naiveSize] = v
	}
	for i, at := range f.at {
		n.at[i], n.out[i] = [2]int{at / naiveSize, at % naiveSize}, at < 0
	}
	return n
}

func (n *naiveForage) move(j int, choice int32) {
	n.alive[j] = !n.out[j]
	way := [][2]int{{0, 0}, {1, 0}, {-1, 0}, {0, -1}, {0, 1}}[choice]
	to := [2]int{n.at[j][0] + way[0], n.at[j][1] + way[1]}
	if n.out[j] || min(to[0], to[1]) < 0 || max(to[0], to[1]) >= naiveSize {
		return
	}
	for k := range n.at {
		if k != j && !n.out[k] && n.at[k] == to {
			return
		}
	}
	n.at[j] = to
	switch tile := &n.grid[to[0]][to[1]]; *tile {
	case 1:
		*tile, n.reward[j] = 0, 1
	case 2:
		n.out[j], n.reward[j], n.terminal[j] = true, -1, true
	}
}

// step plays a step and says why the episode is over, if it is.
func (n *naiveForage) step(choices []int32, maxSteps int) (over string) {
	n.tick++
	for j := range n.at {
		n.move(j, choices[j])
	}
	food, left := 0, 0
	for r := range n.grid {
		for _, v := range n.grid[r] {
			food += int(v & 1)
		}
	}
	for j := range n.at {
		if n.out[j] {
			continue
		}
		left++
		n.terminal[j] = food == 0
		n.cut[j] = food > 0 && n.tick == maxSteps
	}
	switch {
	case left == 0:
		return "all out"
	case food == 0:
		return "cleared"
	case n.tick == maxSteps:
		return "cut"
	}
	return ""
}

func TestForageReference(t *testing.T) {
	const steps, maxSteps = 3000, 40
	var all []*Forage
	maker := vec.Each(func() (env.Env, error) {
		f, err := NewForage(ForageConfig{MaxSteps: maxSteps, Food: 3})
		all = append(all, f)
		return f, err
	})
	batch, err := maker(tableEnvs)
	if err != nil {
		t.Fatal(err)
	}
	p, _ := play[env.Batch](t, batch, tableEnvs)
	seen := make(map[string]int)
	for range steps {
		before := make([]*naiveForage, tableEnvs)
		for i, f := range all {
			before[i] = naiveForageOf(f)
		}
		p.choose()
		p.step()
		for i, n := range before {
			seen[n.step(p.b.Choices[i*naiveAgents:(i+1)*naiveAgents], maxSteps)]++
			for j := range naiveAgents {
				row := i*naiveAgents + j
				if !n.alive[j] {
					seen["masked"]++
				}
				if p.b.Rewards[row] != n.reward[j] || (p.b.Masks[row] == 1) != n.alive[j] ||
					(p.b.Terminals[row] == 1) != n.terminal[j] || (p.b.Truncations[row] == 1) != n.cut[j] {
					t.Fatalf("environment %d, agent %d: reward %v, mask %d, terminal %d, truncation %d, want %+v", i, j,
						p.b.Rewards[row], p.b.Masks[row], p.b.Terminals[row], p.b.Truncations[row], n)
				}
			}
		}
	}
	for _, what := range []string{"masked", "all out", "cleared", "cut"} {
		if seen[what] < 20 {
			t.Errorf("%v: the test has seen too little", seen)
		}
	}
}
