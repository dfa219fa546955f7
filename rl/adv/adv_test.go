package adv

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func randomRollout(steps, cols int, seed uint64) *Rollout {
	rnd := rand.New(rand.NewPCG(seed, 7))
	n := steps * cols
	r := &Rollout{
		Steps: steps, Cols: cols,
		Values: make([]float32, n), Rewards: make([]float32, n), Importance: make([]float32, n),
		Next: make([]float32, cols), Dones: make([]uint8, n),
	}
	for i := range n {
		r.Values[i], r.Rewards[i] = float32(rnd.NormFloat64()), float32(rnd.NormFloat64())
		r.Importance[i] = 2 * rnd.Float32()
		if rnd.IntN(20) == 0 {
			r.Dones[i] = 1
			if rnd.IntN(2) == 0 {
				r.Cuts = append(r.Cuts, Cut{i / cols, i % cols, float32(rnd.NormFloat64())})
			}
		}
	}
	for j := range r.Next {
		r.Next[j] = float32(rnd.NormFloat64())
	}
	return r
}

func worst(t testing.TB, got []float32, want []float64) (off, largest float64) {
	t.Helper()
	for i, x := range got {
		if math.IsNaN(float64(x)) {
			t.Fatalf("number %d is NaN", i)
		}
		off, largest = max(off, math.Abs(float64(x)-want[i])), max(largest, math.Abs(want[i]))
	}
	return off, largest
}

// TestAgainstReference holds every loop and form to the bound of the package's comment, whatever the shape.
func TestAgainstReference(t *testing.T) {
	for name, do := range rows() {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				steps, cols := rapid.IntRange(1, 80).Draw(t, "steps"), rapid.IntRange(1, 90).Draw(t, "cols")
				r := randomRollout(steps, cols, rapid.Uint64().Draw(t, "seed"))
				p := Params{
					Form:   Form(rapid.IntRange(0, 2).Draw(t, "form")),
					Gamma:  rapid.Float32Range(0, 0.999).Draw(t, "gamma"),
					Lambda: rapid.Float32Range(0, 1).Draw(t, "lambda"),
					RhoMax: rapid.Float32Range(0, 2).Draw(t, "rho"),
					CMax:   rapid.Float32Range(0, 1).Draw(t, "c"),
				}
				if rapid.Bool().Draw(t, "on-policy") {
					r.Importance = nil
				}
				agree(t, p, r, do)
			})
			r := randomRollout(4096, 3, 9)
			agree(t, Params{Form: VTrace4, Gamma: 0.999, Lambda: 0.95}, r, do)
			agree(t, Params{Gamma: 0.999, Lambda: 1}, randomRollout(3, 2500, 10), do)
		})
	}
}

func agree(t interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}, p Params, r *Rollout, do func(*row, *consts),
) {
	t.Helper()
	got := make([]float32, r.Steps*r.Cols)
	if err := compute(p, r, got, do); err != nil {
		t.Fatal(err)
	}
	want, err := Reference(p, r)
	if err != nil {
		t.Fatal(err)
	}
	off, largest := 0.0, 0.0
	for i, x := range got {
		off, largest = max(off, math.Abs(float64(x)-want[i])), max(largest, math.Abs(want[i]))
	}
	if !(off <= 4e-6*(1+largest)) {
		t.Fatalf("%+v, %d steps of %d: off by %g, the largest is %g", p, r.Steps, r.Cols, off, largest)
	}
}

func TestVectorOfDsecRS(t *testing.T) {
	r := &Rollout{
		Steps: 3, Cols: 1,
		Values: []float32{0.5, 0.5, 0.5}, Rewards: []float32{0, 0, 1}, Dones: []uint8{0, 0, 1}, Next: []float32{123},
	}
	got := make([]float32, 3)
	if err := Compute(Params{Gamma: 0.5, Lambda: 0.5}, r, got); err != nil {
		t.Fatal(err)
	}
	if want := [3]float32{-0.28125, -0.125, 0.5}; [3]float32(got) != want {
		t.Errorf("advantages %v, want %v", got, want)
	}
}

// TestTruncationBootstraps: a cut counts the value of the final observation, and nothing flows over it.
func TestTruncationBootstraps(t *testing.T) {
	r := &Rollout{
		Steps: 2, Cols: 2,
		Values: []float32{1, 1, 50, 50}, Rewards: []float32{1, 1, 7, 7}, Dones: []uint8{1, 1, 0, 0}, Next: []float32{9, 9},
		Cuts: []Cut{{0, 1, 10}},
	}
	for _, form := range []Form{GAE, VTrace3, VTrace4} {
		got := make([]float32, 4)
		if err := Compute(Params{Form: form, Gamma: 0.5, Lambda: 1}, r, got); err != nil {
			t.Fatal(err)
		}
		if got[0] != 0 || got[1] != 5 {
			t.Errorf("%v: terminated %v, want 1-1 = 0; truncated %v, want 1+0.5·10-1 = 5", form, got[0], got[1])
		}
	}
}

// TestLastStepCounts: the last step is bootstrapped with the value after it, neither lost (PufferLib) nor with its own
// (dsec-rs).
func TestLastStepCounts(t *testing.T) {
	r := &Rollout{Steps: 1, Cols: 1, Values: []float32{3}, Rewards: []float32{1}, Dones: []uint8{0}, Next: []float32{8}}
	got := make([]float32, 1)
	if err := Compute(Params{Gamma: 0.5, Lambda: 0.9}, r, got); err != nil {
		t.Fatal(err)
	}
	if got[0] != 1+0.5*8-3 {
		t.Errorf("advantage %v, want 2", got[0])
	}
}

// TestPufferLib computes what PufferLib's own loop does, rewards and flags stored a step later, and finds the same.
func TestPufferLib(t *testing.T) {
	const steps, cols = 9, 5
	r := randomRollout(steps, cols, 3)
	r.Cuts = nil
	for _, form := range []Form{VTrace3, VTrace4} {
		p := Params{Form: form, Gamma: 0.995, Lambda: 0.9, RhoMax: 1, CMax: 1}
		got := make([]float32, steps*cols)
		if err := Compute(p, r, got); err != nil {
			t.Fatal(err)
		}
		for col := range cols {
			v, rew, done := make([]float64, steps+1), make([]float64, steps+1), make([]float64, steps+1)
			for s := range steps {
				v[s], rew[s+1], done[s+1] = float64(r.Values[s*cols+col]), float64(r.Rewards[s*cols+col]), float64(r.Dones[s*cols+col])
			}
			v[steps] = float64(r.Next[col])
			last := 0.0
			for s := steps - 1; s >= 0; s-- {
				imp := min(1, float64(r.Importance[s*cols+col]))
				n := 1 - done[s+1]
				delta := imp * (rew[s+1] + 0.995*v[s+1]*n - v[s])
				if form == VTrace4 {
					delta = imp*rew[s+1] + 0.995*v[s+1]*n - v[s]
				}
				last = delta + 0.995*0.9*imp*n*last
				if off := math.Abs(last - float64(got[s*cols+col])); off > 1e-5 {
					t.Fatalf("%v step %d column %d: off by %g", form, s, col, off)
				}
			}
		}
	}
}

// TestOnPolicy: V-trace with importance 1 is GAE; with λ = 1 it's the discounted return less the value.
func TestOnPolicy(t *testing.T) {
	r := randomRollout(12, 40, 4)
	for i := range r.Importance {
		r.Importance[i] = 1
	}
	gae, other := make([]float32, 12*40), make([]float32, 12*40)
	if err := Compute(Params{Gamma: 0.9, Lambda: 1}, r, gae); err != nil {
		t.Fatal(err)
	}
	for _, form := range []Form{VTrace3, VTrace4} {
		if err := Compute(Params{Form: form, Gamma: 0.9, Lambda: 1}, r, other); err != nil {
			t.Fatal(err)
		}
		want := make([]float64, len(gae))
		for i, x := range gae {
			want[i] = float64(x)
		}
		if off, _ := worst(t, other, want); off > 1e-5 {
			t.Errorf("%v differs from GAE by %g", form, off)
		}
	}
	cuts := make(map[[2]int]float64)
	for _, c := range r.Cuts {
		cuts[[2]int{c.Step, c.Col}] = float64(c.Value)
	}
	for col := range 40 {
		ret := float64(r.Next[col])
		for s := 11; s >= 0; s-- {
			i := s*40 + col
			if r.Dones[i] == 1 {
				ret = cuts[[2]int{s, col}]
			}
			ret = float64(r.Rewards[i]) + 0.9*ret
			if off := math.Abs(ret - float64(r.Values[i]) - float64(gae[i])); off > 1e-5 {
				t.Fatalf("step %d column %d: off by %g", s, col, off)
			}
		}
	}
}

func TestComputeRefuses(t *testing.T) {
	for name, spoil := range map[string]func(*Rollout){
		"no-steps":     func(r *Rollout) { r.Steps = 0 },
		"values":       func(r *Rollout) { r.Values = r.Values[1:] },
		"next":         func(r *Rollout) { r.Next = nil },
		"importance":   func(r *Rollout) { r.Importance = r.Importance[1:] },
		"cut-not-done": func(r *Rollout) { r.Dones[0], r.Cuts = 0, []Cut{{0, 0, 1}} },
		"cut-order":    func(r *Rollout) { r.Dones[0], r.Dones[4], r.Cuts = 1, 1, []Cut{{1, 0, 1}, {0, 0, 1}} },
		"cut-outside":  func(r *Rollout) { r.Cuts = []Cut{{0, 4, 1}} },
	} {
		t.Run(name, func(t *testing.T) {
			r := randomRollout(3, 4, 1)
			spoil(r)
			if err := Compute(Params{}, r, make([]float32, 12)); err == nil {
				t.Error("no error")
			}
		})
	}
	if _, err := ParseForm("td0"); err == nil {
		t.Error("ParseForm(td0): no error")
	}
	if f, err := ParseForm("vtrace4"); err != nil || f != VTrace4 {
		t.Errorf("ParseForm(vtrace4) = %v, %v", f, err)
	}
}

func BenchmarkCompute(b *testing.B) {
	for _, cols := range []int{512, 16384} {
		r := randomRollout(64, cols, 5)
		r.Cuts = nil
		out := make([]float32, 64*cols)
		for name, do := range rows() {
			for _, form := range []Form{GAE, VTrace3, VTrace4} {
				b.Run(fmt.Sprintf("%s/%v/64x%d", name, form, cols), func(b *testing.B) {
					p := Params{Form: form, Gamma: 0.995, Lambda: 0.9}
					best := time.Hour // of one call: what the machine can do when nobody else is on it
					for b.Loop() {
						start := time.Now()
						if err := compute(p, r, out, do); err != nil {
							b.Fatal(err)
						}
						best = min(best, time.Since(start))
					}
					b.ReportMetric(float64(64*cols)/best.Seconds()/1e6, "best-M/s")
				})
			}
		}
	}
}
