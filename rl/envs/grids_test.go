package envs

import (
	"slices"
	"testing"

	"github.com/dsec-io/dsec/rl/env"
)

func TestMazeReference(t *testing.T) {
	const steps, size = 2000, 11
	p, _ := play[*maze](t, must(NewMaze(tableEnvs, MazeConfig{})), tableEnvs)
	type state struct {
		walls        []uint8
		r, c, tick   int
		goalR, goalC int
	}
	parse := func(obs []uint8) *state {
		goal := slices.Index(obs, 3)
		s := &state{walls: slices.Clone(obs), r: 1, c: 1, goalR: goal / size, goalC: goal % size}
		if obs[size+1] != 2 || goal < 0 {
			t.Fatalf("first observation %v", obs)
		}
		s.walls[size+1], s.walls[goal] = 0, 0
		checkTree(t, s.walls, size)
		return s
	}
	row := func(all []uint8, i int) []uint8 { return all[i*size*size : (i+1)*size*size] }
	states := make([]*state, tableEnvs)
	for i := range states {
		states[i] = parse(row(p.b.ObsU8, i))
	}
	found, late := 0, 0
	for step := range steps {
		p.choose()
		if step%2 == 0 {
			for i := range p.b.Choices { // into walls, too
				p.b.Choices[i] = int32(p.rand.IntN(4))
			}
		}
		p.step()
		for i, s := range states {
			s.tick++
			d := [][2]int{{1, 0}, {-1, 0}, {0, -1}, {0, 1}}
			way := d[p.b.Choices[i]]
			if s.walls[(s.r+way[0])*size+s.c+way[1]] == 0 {
				s.r, s.c = s.r+way[0], s.c+way[1]
			}
			want := slices.Clone(s.walls)
			want[s.goalR*size+s.goalC] = 3
			want[s.r*size+s.c] = 2
			reward, there, cut := float32(-0.01), s.r == s.goalR && s.c == s.goalC, s.tick == size*size
			got := row(p.b.ObsU8, i)
			if there {
				reward = 1
				cut = false
				found++
			}
			if cut {
				late++
			}
			if there || cut {
				states[i] = parse(got)
				got = row(p.b.FinalU8, i)
			}
			if p.b.Rewards[i] != reward || (p.b.Terminals[i] == 1) != there || (p.b.Truncations[i] == 1) != cut || !slices.Equal(got, want) {
				t.Fatalf("environment %d: reward %v, want %v; terminal %d, truncation %d\n%v, want\n%v",
					i, p.b.Rewards[i], reward, p.b.Terminals[i], p.b.Truncations[i], got, want)
			}
			for a, way := range d {
				free := states[i].walls[(states[i].r+way[0])*size+states[i].c+way[1]] == 0
				if (p.b.ActionMasks[i*4+a] == 1) != free {
					t.Fatalf("environment %d: choice %d has the mask %d", i, a, p.b.ActionMasks[i*4+a])
				}
			}
		}
	}
	if found < 100 || late < 100 {
		t.Errorf("%d goals, %d truncations: the test has seen too little", found, late)
	}
}

// checkTree says whether there's exactly one way between any two places: as many places as there should be, all of
// them reached from the first, and one passage fewer.
func checkTree(t *testing.T, walls []uint8, size int) {
	t.Helper()
	cells := (size / 2) * (size / 2)
	free := 0
	for i, w := range walls {
		if w == 0 {
			free++
		} else if w != 1 {
			t.Fatalf("element %d is %d", i, w)
		}
	}
	reached := map[int]bool{size + 1: true}
	todo := []int{size + 1}
	for len(todo) > 0 {
		at := todo[0]
		todo = todo[1:]
		for _, d := range []int{1, -1, size, -size} {
			if walls[at+d] == 0 && !reached[at+d] {
				reached[at+d] = true
				todo = append(todo, at+d)
			}
		}
	}
	if free != 2*cells-1 || len(reached) != free {
		t.Fatalf("%d free, %d reached, want %d: %v", free, len(reached), 2*cells-1, walls)
	}
}

// naiveSnakes is the game on a map of places, told the long way. It draws random places as snakes does.
type naiveSnakes struct {
	c      SnakeConfig
	rand   env.Rand
	tiles  map[[2]int]uint8 // food and remains
	bodies [][][2]int       // head first
	ticks  []int
}

func (n *naiveSnakes) tile(p [2]int) uint8 {
	if p[0] < 0 || p[1] < 0 || p[0] >= n.c.Height || p[1] >= n.c.Width {
		return 3
	}
	for _, body := range n.bodies {
		if i := slices.Index(body, p); i == 0 {
			return 5
		} else if i > 0 {
			return 4
		}
	}
	return n.tiles[p]
}

func (n *naiveSnakes) free() [2]int {
	for {
		k := n.rand.IntN(n.c.Width * n.c.Height)
		if p := [2]int{k / n.c.Width, k % n.c.Width}; n.tile(p) == 0 || n.tile(p) == 2 {
			return p
		}
	}
}

func (n *naiveSnakes) spawn(i int) {
	p := n.free()
	delete(n.tiles, p)
	n.bodies[i], n.ticks[i] = [][2]int{p}, 0
}

func (n *naiveSnakes) view(at [2]int) []uint8 {
	var v []uint8
	for r := -n.c.Vision; r <= n.c.Vision; r++ {
		for c := -n.c.Vision; c <= n.c.Vision; c++ {
			v = append(v, n.tile([2]int{at[0] + r, at[1] + c}))
		}
	}
	return v
}

// move moves one snake. final is the view at the end of a life.
func (n *naiveSnakes) move(i int, choice int32) (reward float32, dead, old bool, final []uint8) {
	way := [][2]int{{-1, 0}, {1, 0}, {0, -1}, {0, 1}}[choice]
	body := n.bodies[i]
	n.ticks[i]++
	to := [2]int{body[0][0] + way[0], body[0][1] + way[1]}
	if len(body) > 1 && to == body[1] {
		to = [2]int{body[0][0] - way[0], body[0][1] - way[1]}
	}
	tile := n.tile(to)
	if tile >= 3 {
		final = n.view(body[0])
		n.die(i)
		return -1, true, false, final
	}
	body = append([][2]int{to}, body...)
	if tile == 0 || len(body) > n.c.MaxLength {
		body = body[:len(body)-1]
	}
	n.bodies[i] = body
	delete(n.tiles, to)
	if tile == 1 {
		p := n.free()
		n.tiles[p] = 1
	}
	if tile != 0 {
		reward = 0.1
	}
	if n.ticks[i] == n.c.MaxSteps {
		final = n.view(body[0])
		n.die(i)
		return reward, false, true, final
	}
	return reward, false, false, nil
}

func (n *naiveSnakes) die(i int) {
	body := n.bodies[i]
	n.bodies[i] = nil
	for j, p := range body {
		if j%2 == 1 {
			n.tiles[p] = 2
		}
	}
	n.spawn(i)
}

func TestSnakeReference(t *testing.T) {
	c := SnakeConfig{Width: 20, Height: 16, Snakes: 8, Food: 30, Vision: 4, MaxLength: 9, MaxSteps: 50}
	const envs, steps, seed = 4, 4000, 11
	p, s := play[*snakes](t, must(NewSnake(envs, c)), envs)
	games := make([]*naiveSnakes, envs)
	for i := range games {
		n := &naiveSnakes{c: c, rand: env.NewRand(env.SeedOf(seed, uint64(i))), tiles: make(map[[2]int]uint8)}
		n.bodies, n.ticks = make([][][2]int, c.Snakes), make([]int, c.Snakes)
		for j := range n.bodies {
			n.spawn(j)
		}
		for range c.Food {
			f := n.free()
			n.tiles[f] = 1
		}
		games[i] = n
	}
	deaths, cuts, eaten, longest := 0, 0, 0, 0
	size := s.window * s.window
	for step := range steps {
		p.choose()
		steer(p, s)
		p.step()
		for i, n := range games {
			for j := range n.bodies {
				at := i*c.Snakes + j
				reward, dead, old, final := n.move(j, p.b.Choices[at])
				if reward != p.b.Rewards[at] || dead != (p.b.Terminals[at] == 1) || old != (p.b.Truncations[at] == 1) {
					t.Fatalf("step %d, field %d, snake %d: reward %v, want %v; terminal %d, want %v; truncation %d, want %v", step, i, j,
						p.b.Rewards[at], reward, p.b.Terminals[at], dead, p.b.Truncations[at], old)
				}
				if got := p.b.FinalU8[at*size : (at+1)*size]; final != nil && !slices.Equal(got, final) {
					t.Fatalf("step %d, field %d, snake %d: final\n%v, want\n%v", step, i, j, got, final)
				}
				deaths, cuts, eaten = deaths+int(p.b.Terminals[at]), cuts+int(p.b.Truncations[at]), eaten+int(reward+0.95)
				longest = max(longest, len(n.bodies[j]))
			}
			if step%8 != 0 {
				continue
			}
			for j := range n.bodies {
				at := i*c.Snakes + j
				if got, want := p.b.ObsU8[at*size:(at+1)*size], n.view(n.bodies[j][0]); !slices.Equal(got, want) {
					t.Fatalf("step %d, field %d, snake %d: observation\n%v, want\n%v", step, i, j, got, want)
				}
			}
		}
	}
	if deaths < 100 || cuts < 100 || eaten < 1000 || longest < c.MaxLength {
		t.Errorf("%d deaths, %d truncations, %d eaten, length %d: the test has seen too little", deaths, cuts, eaten, longest)
	}
}

// steer keeps most snakes from walls and other snakes, and gets them to food that they are next to.
func steer(p *table, s *snakes) {
	w := s.window
	centre := w * w / 2
	ways := []int{-w, w, -1, 1}
	for at := range p.b.Rows {
		obs := p.b.ObsU8[at*w*w : (at+1)*w*w]
		if p.rand.IntN(20) == 0 {
			continue
		}
		for range 8 {
			if obs[centre+ways[p.b.Choices[at]]] < 3 {
				break
			}
			p.b.Choices[at] = int32(p.rand.IntN(4))
		}
		for a, way := range ways {
			if v := obs[centre+way]; v == 1 || v == 2 {
				p.b.Choices[at] = int32(a)
			}
		}
	}
}
