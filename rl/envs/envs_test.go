package envs

import (
	"math"
	"slices"
	"testing"

	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/env/envcheck"
	"github.com/dsec-io/dsec/rl/vec"
)

func TestConformance(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			maker, err := Maker(name)
			if err != nil {
				t.Fatal(err)
			}
			if err := envcheck.Batch(t.Context(), maker, envcheck.Config{Steps: 1000, Seed: 3}); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("cartpole-continuous", func(t *testing.T) {
		open := func(n int) (env.Batch, error) {
			return NewCartpole(n, CartpoleConfig{Continuous: true, MaxSteps: 30})
		}
		if err := envcheck.Batch(t.Context(), open, envcheck.Config{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("2048-masked", func(t *testing.T) {
		open := func(n int) (env.Batch, error) { return New2048(n, Config2048{Masked: true, MaxSteps: 40}) }
		if err := envcheck.Batch(t.Context(), open, envcheck.Config{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("forage-alone", func(t *testing.T) {
		open := func() (env.Env, error) { return NewForage(ForageConfig{}) }
		if err := envcheck.Env(t.Context(), open, envcheck.Config{}); err != nil {
			t.Error(err)
		}
	})
}

func TestMakerUnknown(t *testing.T) {
	if _, err := Maker("chess"); err == nil {
		t.Error("Maker(chess): no error")
	}
}

func TestConfigsRefused(t *testing.T) {
	for name, open := range map[string]func() (env.Batch, error){
		"no-envs":          func() (env.Batch, error) { return NewSquared(0, SquaredConfig{}) },
		"square-too-small": func() (env.Batch, error) { return NewSquared(1, SquaredConfig{Size: 1}) },
		"even-maze":        func() (env.Batch, error) { return NewMaze(1, MazeConfig{Size: 8}) },
		"crowded-field":    func() (env.Batch, error) { return NewSnake(1, SnakeConfig{Width: 8, Height: 8}) },
		"negative-time":    func() (env.Batch, error) { return NewCartpole(1, CartpoleConfig{MaxSteps: -1}) },
		"no-skip":          func() (env.Batch, error) { return NewBreakout(1, BreakoutConfig{Skip: -1}) },
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := open(); err == nil {
				t.Error("no error")
			}
		})
	}
}

// table is a vector that a test steps with random actions.
type table struct {
	t    *testing.T
	v    vec.Vector
	b    *env.Buffers
	rand env.Rand
}

// play makes a table of environments that a reference can look into: inside is the batch itself.
func play[B env.Batch](t *testing.T, batch env.Batch, envs int) (*table, B) {
	t.Helper()
	v, err := vec.NewSerial(func(int) (env.Batch, error) { return batch, nil }, envs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	if err := v.Reset(t.Context(), 11); err != nil {
		t.Fatal(err)
	}
	return &table{t: t, v: v, b: v.Buffers(), rand: env.NewRand(5)}, batch.(B)
}

func (p *table) choose() { p.b.SampleActions(p.v.Spec(), &p.rand) }

func (p *table) step() {
	p.t.Helper()
	if err := p.v.Step(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

const tableEnvs = 64

func TestSquaredReference(t *testing.T) {
	const size, steps = 11, 2000
	p, _ := play[*squared](t, must(NewSquared(tableEnvs, SquaredConfig{})), tableEnvs)
	type state struct{ r, c, aim, tick int }
	// parse reads a first observation: the agent in the middle, one target elsewhere.
	parse := func(obs []uint8) state {
		aim := slices.Index(obs, 2)
		sum := 0
		for _, v := range obs {
			sum += int(v)
		}
		if obs[size*size/2] != 1 || aim < 0 || sum != 3 {
			t.Fatalf("first observation %v", obs)
		}
		return state{size / 2, size / 2, aim, 0}
	}
	row := func(all []uint8, i int) []uint8 { return all[i*size*size : (i+1)*size*size] }
	states := make([]state, tableEnvs)
	for i := range states {
		states[i] = parse(row(p.b.ObsU8, i))
	}
	wins, losses, late := 0, 0, 0
	for range steps {
		p.choose()
		p.step()
		for i := range states {
			s := &states[i]
			s.tick++
			switch p.b.Choices[i] {
			case 1:
				s.r++
			case 2:
				s.r--
			case 3:
				s.c--
			case 4:
				s.c++
			}
			want := make([]uint8, size*size)
			want[s.aim] = 2
			out := s.r < 0 || s.c < 0 || s.r == size || s.c == size
			reward, over := float32(0), false
			if !out {
				want[s.r*size+s.c] = 1
			}
			switch {
			case out:
				reward, over = -1, true
				losses++
			case s.r*size+s.c == s.aim:
				reward, over = 1, true
				wins++
			case s.tick == 3*size+2:
				reward, over = -1, true
				late++
			}
			got := row(p.b.ObsU8, i)
			if over {
				*s = parse(got)
				got = row(p.b.FinalU8, i)
			}
			if p.b.Rewards[i] != reward || (p.b.Terminals[i] == 1) != over || p.b.Truncations[i] != 0 || !slices.Equal(got, want) {
				t.Fatalf("environment %d: reward %v, done %v, want %v, %v; observation\n%v, want\n%v",
					i, p.b.Rewards[i], p.b.Done(i), reward, over, got, want)
			}
		}
	}
	if wins < 100 || losses < 100 || late < 100 {
		t.Errorf("%d wins, %d losses, %d late: the test has seen too little", wins, losses, late)
	}
}

// TestCartpoleReference follows Gymnasium's CartPole-v1 in float64.
func TestCartpoleReference(t *testing.T) {
	const steps, maxSteps = 2000, 60
	p, c := play[*cartpole](t, must(NewCartpole(tableEnvs, CartpoleConfig{MaxSteps: maxSteps})), tableEnvs)
	worst, near, cut := 0.0, 0, 0
	ticks := make([]int, tableEnvs)
	for step := range steps {
		before := slices.Clone(p.b.ObsF32)
		p.choose()
		if step%2 == 0 {
			balance(p.b)
		}
		p.step()
		for i := range tableEnvs {
			ticks[i]++
			want := gymnasiumCartpole([4]float32(before[i*4:]), p.b.Choices[i] == 1)
			got := p.b.ObsF32[i*4 : i*4+4]
			if p.b.Done(i) {
				if slices.Max(got) > 0.05 || slices.Min(got) < -0.05 {
					t.Fatalf("environment %d begins at %v", i, got)
				}
				got = p.b.FinalF32[i*4 : i*4+4]
			}
			for j := range want {
				worst = max(worst, math.Abs(want[j]-float64(got[j])))
			}
			out := math.Abs(want[0]) > 2.4 || math.Abs(want[2]) > 12*2*math.Pi/360
			if math.Abs(math.Abs(want[0])-2.4) < 1e-6 || math.Abs(math.Abs(want[2])-12*2*math.Pi/360) < 1e-6 {
				near++
				out = p.b.Terminals[i] == 1
			}
			late := !out && ticks[i] == maxSteps
			if (p.b.Terminals[i] == 1) != out || (p.b.Truncations[i] == 1) != late || p.b.Rewards[i] != 1 {
				t.Fatalf("environment %d at %v: terminal %d, truncation %d, reward %v", i, want, p.b.Terminals[i], p.b.Truncations[i], p.b.Rewards[i])
			}
			if late {
				cut++
			}
			if out || late {
				ticks[i] = 0
			}
		}
	}
	if worst > 1e-6 {
		t.Errorf("off by up to %g", worst)
	}
	if near > 2 || cut < 100 {
		t.Errorf("%d too near to the limit to tell, %d truncations", near, cut)
	}
	if got := c.TakeStats().Mean(); got.Return != got.Length || got.Length > maxSteps {
		t.Errorf("statistics %+v", got)
	}
}

// balance pushes carts to where their poles fall, so that episodes last.
func balance(b *env.Buffers) {
	for i := range b.Choices {
		b.Choices[i] = 0
		if b.ObsF32[i*4+2]+b.ObsF32[i*4+3] > 0 {
			b.Choices[i] = 1
		}
	}
}

func gymnasiumCartpole(s [4]float32, right bool) [4]float64 {
	const gravity, masspole, total, length, tau = 9.8, 0.1, 1.1, 0.5, 0.02
	x, v, theta, omega := float64(s[0]), float64(s[1]), float64(s[2]), float64(s[3])
	force := -10.0
	if right {
		force = 10
	}
	sin, cos := math.Sincos(theta)
	temp := (force + masspole*length*omega*omega*sin) / total
	alpha := (gravity*sin - cos*temp) / (length * (4.0/3.0 - masspole*cos*cos/total))
	acc := temp - masspole*length*alpha*cos/total
	return [4]float64{x + tau*v, v + tau*acc, theta + tau*omega, omega + tau*alpha}
}

func TestMemoryReference(t *testing.T) {
	const steps, length = 2000, 5
	p, _ := play[*memory](t, must(NewMemory(tableEnvs, MemoryConfig{Length: length})), tableEnvs)
	goals := slices.Clone(p.b.ObsF32)
	for step := 1; step <= steps; step++ {
		p.choose()
		p.step()
		last := step%length == 0
		for i := range tableEnvs {
			reward := float32(0)
			if last && (goals[i] == 1) == (p.b.Choices[i] == 1) {
				reward = 1
			}
			if p.b.Rewards[i] != reward || (p.b.Terminals[i] == 1) != last || p.b.Truncations[i] != 0 {
				t.Fatalf("step %d, environment %d: reward %v, want %v; done %v", step, i, p.b.Rewards[i], reward, p.b.Done(i))
			}
			if goal := p.b.ObsF32[i]; last && goal != 1 && goal != -1 || !last && goal != 0 || last && p.b.FinalF32[i] != 0 {
				t.Fatalf("step %d, environment %d: observation %v", step, i, goal)
			}
		}
		if last {
			copy(goals, p.b.ObsF32)
		}
	}
}
