package buffer

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/dsec-io/dsec/rl/adv"
	"github.com/dsec-io/dsec/rl/env"
)

func spec(t interface {
	Helper()
	Fatal(args ...any)
},
) env.Spec {
	t.Helper()
	s, err := env.NewSpec("test", 1, env.Reals(-1e9, 1e9, 2), env.MultiDiscrete{N: []int{3, 2}})
	if err != nil {
		t.Fatal(err)
	}
	s.Masked = true
	return s
}

// past is what a test has pushed, in the plainest form: one per step and column.
type past struct {
	obs              float32
	term, trunc      uint8
	valid            uint8
	begins           bool
	reward, val, fin float32
	h                float32
}

// world pushes random steps to a ring and remembers them.
type world struct {
	r     *Ring
	steps [][]past
	rnd   env.Rand
}

func newWorld(t *rapid.T, every int) *world {
	t.Helper()
	r, err := New(Config{
		Steps: rapid.IntRange(1, 12).Draw(t, "steps"), Cols: rapid.IntRange(1, 4).Draw(t, "cols"), Spec: spec(t), State: 2, StateEvery: every,
	})
	if err != nil {
		t.Fatal(err)
	}
	return &world{r: r, rnd: env.NewRand(rapid.Uint64().Draw(t, "seed"))}
}

// push makes a step: every number in it tells where it was made.
func (w *world) push(t *rapid.T) {
	s := w.r.Begin()
	row := make([]past, w.r.Cols())
	for col := range row {
		p := &row[col]
		p.obs = float32(len(w.steps)*100 + col)
		s.ObsF32[2*col], s.ObsF32[2*col+1] = p.obs, -p.obs
		s.Choices[2*col], s.Choices[2*col+1] = int32(p.obs), int32(col)
		s.ActionMasks[5*col] = uint8(col + 1)
		p.begins = len(w.steps) == 0
		if len(w.steps) > 0 {
			before := w.steps[len(w.steps)-1][col]
			p.begins = before.term|before.trunc != 0
			if !p.begins {
				p.h = before.h + 1
			}
		}
		if s.H != nil && (s.H[2*col] != p.h || s.C[2*col+1] != p.h) {
			t.Fatalf("step %d, column %d begins with state %v, %v; want %v", len(w.steps), col, s.H[2*col], s.C[2*col+1], p.h)
		}
		w.r.H[2*col], w.r.C[2*col+1] = p.h+1, p.h+1
		p.reward, p.val, p.fin = w.rnd.Float32(), w.rnd.Float32(), w.rnd.Float32()
		s.Rewards[col], s.Values[col], s.LogProbs[col] = 10*p.reward, p.val, -p.val
		p.reward *= 10
		if w.rnd.IntN(5) == 0 {
			p.term = uint8(w.rnd.IntN(2))
			p.trunc = 1 - p.term*uint8(w.rnd.IntN(2))
			s.Finals[col] = p.fin
		}
		p.valid = uint8(min(1, w.rnd.IntN(8)))
		s.Terminals[col], s.Truncations[col], s.Valid[col] = p.term, p.trunc, p.valid
	}
	w.r.End()
	w.steps = append(w.steps, row)
}

// at returns what was pushed at an age.
func (w *world) at(age, col int) past { return w.steps[len(w.steps)-w.r.Len()+age][col] }

func TestRing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, rapid.IntRange(1, 3).Draw(t, "every"))
		for range rapid.IntRange(0, 30).Draw(t, "pushes") {
			w.push(t)
		}
		if want := min(len(w.steps), w.r.cfg.Steps); w.r.Len() != want {
			t.Fatalf("%d steps are stored, want %d", w.r.Len(), want)
		}
		for age := range w.r.Len() {
			s := w.r.At(age)
			for col := range w.r.Cols() {
				p := w.at(age, col)
				got := past{obs: s.ObsF32[2*col], term: s.Terminals[col], trunc: s.Truncations[col], valid: s.Valid[col], begins: s.Reset[col] != 0, reward: s.Rewards[col], val: s.Values[col]}
				p.fin, p.h = 0, 0
				if got != p {
					t.Fatalf("age %d, column %d: %+v, want %+v", age, col, got, p)
				}
			}
		}
		w.checkEpisodes(t)
		w.checkSequences(t)
	})
}

// checkEpisodes: the episodes are all that's stored, once, and end exactly where one ended.
func (w *world) checkEpisodes(t *rapid.T) {
	rows := 0
	for _, e := range w.r.Episodes() {
		rows += e.Len
		for k := range e.Len {
			p := w.at(e.Age+k, e.Col)
			if k > 0 && p.begins {
				t.Fatalf("%+v goes over the beginning of another episode", e)
			}
			if k < e.Len-1 && p.term|p.trunc != 0 {
				t.Fatalf("%+v goes over an end", e)
			}
		}
		last := w.at(e.Age+e.Len-1, e.Col)
		if e.Begun != w.at(e.Age, e.Col).begins || e.Terminated != (last.term != 0) || e.Truncated != (last.trunc != 0 && last.term == 0) {
			t.Fatalf("%+v, its last step is %+v", e, last)
		}
		if !e.Terminated && !e.Truncated && e.Age+e.Len != w.r.Len() {
			t.Fatalf("%+v is open but doesn't reach the newest step", e)
		}
	}
	if want := w.r.Len() * w.r.Cols(); rows != want {
		t.Fatalf("episodes have %d rows, %d are stored", rows, want)
	}
}

// checkSequences: dsec-rs runs past the end of an episode shorter than a sequence.
func (w *world) checkSequences(t *rapid.T) {
	sequences, err := w.r.Sequences(rapid.IntRange(1, 8).Draw(t, "length"), 20, &w.rnd)
	if w.r.Len() == 0 {
		if err == nil {
			t.Fatal("sequences out of nothing")
		}
		return
	}
	if err != nil {
		return // no state was kept among what is stored
	}
	var b Batch
	w.r.Gather(&b, sequences)
	for i, s := range sequences {
		if s.Len < 1 || s.Age+s.Len > w.r.Len() {
			t.Fatalf("%+v of %d steps", s, w.r.Len())
		}
		if h := b.H[2*i]; h != w.at(s.Age, s.Col).h {
			t.Fatalf("%+v begins with state %v, want %v", s, h, w.at(s.Age, s.Col).h)
		}
		for k := range b.Steps {
			row := k*b.Seqs + i
			if k >= s.Len {
				if b.Valid[row] != 0 {
					t.Fatalf("%+v: row %d after its end is valid", s, k)
				}
				continue
			}
			p := w.at(s.Age+k, s.Col)
			if k < s.Len-1 && p.term|p.trunc != 0 {
				t.Fatalf("%+v goes over an end", s)
			}
			if b.ObsF32[2*row] != p.obs || b.ObsF32[2*row+1] != -p.obs || b.Choices[2*row] != int32(p.obs) || b.Choices[2*row+1] != int32(s.Col) ||
				b.ActionMasks[5*row] != uint8(s.Col+1) || b.Valid[row] != p.valid || b.LogProbs[row] != -p.val || b.Reset[row] != btoi(p.begins) {
				t.Fatalf("%+v: row %d isn't what was pushed", s, k)
			}
		}
	}
}

func btoi(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// TestSegments: every row is in exactly one segment, whatever divides what.
func TestSegments(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, 1)
		for range rapid.IntRange(1, 30).Draw(t, "pushes") {
			w.push(t)
		}
		segments, err := w.r.Segments(rapid.IntRange(1, 15).Draw(t, "length"))
		if err != nil {
			t.Fatal(err)
		}
		Shuffle(segments, &w.rnd)
		seen := make(map[[2]int]int)
		for _, s := range segments {
			for k := range s.Len {
				seen[[2]int{s.Age + k, s.Col}]++
			}
		}
		if len(seen) != w.r.Len()*w.r.Cols() {
			t.Fatalf("segments have %d rows of %d", len(seen), w.r.Len()*w.r.Cols())
		}
		for at, n := range seen {
			if n != 1 {
				t.Fatalf("row %v is in %d segments", at, n)
			}
		}
	})
}

// TestAdvantages compares with a recursion over what was pushed: ends cut it, a truncation counts the final value, an
// invalid row has none and passes none on, rewards are what the environment gave (PufferLib clamps them to ±1).
func TestAdvantages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, 1)
		for range rapid.IntRange(1, 30).Draw(t, "pushes") {
			w.push(t)
		}
		next := make([]float32, w.r.Cols())
		for i := range next {
			next[i] = w.rnd.Float32()
		}
		if err := w.r.Advantages(adv.Params{Gamma: 0.9, Lambda: 0.8}, next); err != nil {
			t.Fatal(err)
		}
		for col := range w.r.Cols() {
			later, value := 0.0, float64(next[col])
			for age := w.r.Len() - 1; age >= 0; age-- {
				p := w.at(age, col)
				if p.term != 0 {
					later, value = 0, 0
				} else if p.trunc != 0 {
					later, value = 0, float64(p.fin)
				}
				later = float64(p.reward) + 0.9*value - float64(p.val) + 0.9*0.8*later
				if p.valid == 0 {
					later = 0
				}
				value = float64(p.val)
				if got := float64(w.r.AdvantagesAt(age)[col]); math.Abs(got-later) > 1e-4 {
					t.Fatalf("age %d, column %d: advantage %v, want %v", age, col, got, later)
				}
			}
		}
	})
}

func TestRestart(t *testing.T) {
	r, err := New(Config{Steps: 3, Cols: 2, Spec: spec(t), State: 1})
	if err != nil {
		t.Fatal(err)
	}
	r.Begin()
	r.H[0], r.C[1] = 5, 5
	r.End()
	r.Clear()
	s := r.Begin()
	if s.H[0] != 5 || s.C[1] != 5 || s.Reset[0] != 0 {
		t.Errorf("after Clear: %v %v %v: an episode that goes on has lost its state", s.H, s.C, s.Reset)
	}
	r.End()
	r.Restart()
	s = r.Begin()
	if s.H[0] != 0 || s.C[1] != 0 || s.Reset[0] != 1 || s.Reset[1] != 1 {
		t.Errorf("after Restart: %v %v %v", s.H, s.C, s.Reset)
	}
}

// filled is a ring whose column c has the advantage c.
func filled(t *testing.T, cols int) (*Ring, []Segment) {
	t.Helper()
	r, err := New(Config{Steps: 4, Cols: cols, Spec: spec(t)})
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		s := r.Begin()
		for col := range cols {
			s.Rewards[col] = float32(col)
		}
		r.End()
	}
	if err := r.Advantages(adv.Params{}, make([]float32, cols)); err != nil {
		t.Fatal(err)
	}
	segments, err := r.Segments(4)
	if err != nil {
		t.Fatal(err)
	}
	return r, segments
}

// TestPriorities: alpha 0 is uniform, larger ones draw by advantage, and beta 1 makes up for it.
func TestPriorities(t *testing.T) {
	const draws = 40000
	for _, alpha := range []float64{0, 0.8} {
		r, segments := filled(t, 8)
		p := r.Prioritize(segments, alpha)
		rnd := env.NewRand(1)
		counts, weighted, weights := make([]float64, 8), 0.0, 0.0
		for range draws {
			i, w := p.Draw(1, &rnd)
			counts[segments[i].Col]++
			weighted += float64(w) * float64(segments[i].Col)
			weights += float64(w)
		}
		total := 0.0
		for col := range counts {
			total += math.Pow(float64(4*col), alpha) + 1e-6
		}
		for col, n := range counts {
			want := (math.Pow(float64(4*col), alpha) + 1e-6) / total * draws
			if math.Abs(n-want) > 5*math.Sqrt(want+1) {
				t.Errorf("alpha %v: column %d was drawn %v times, want about %v", alpha, col, n, want)
			}
		}
		if mean := weighted / draws; math.Abs(mean-3.5) > 0.1 {
			t.Errorf("alpha %v: the weighted mean is %v, want 3.5", alpha, mean)
		}
	}
}

// TestPrioritiesOfNonsense: an advantage that is NaN or infinite makes no other one NaN.
func TestPrioritiesOfNonsense(t *testing.T) {
	r, segments := filled(t, 4)
	r.AdvantagesAt(1)[2] = float32(math.NaN())
	r.AdvantagesAt(1)[3] = float32(math.Inf(-1))
	p := r.Prioritize(segments, 0.8)
	rnd := env.NewRand(1)
	for range 1000 {
		i, w := p.Draw(0.4, &rnd)
		if segments[i].Col != 1 && w < 10 || math.IsNaN(float64(w)) {
			t.Fatalf("drew column %d with weight %v", segments[i].Col, w)
		}
	}
}

func TestNormalize(t *testing.T) {
	b := Batch{Advantages: []float32{1, 2, 3, 1000}, Valid: []uint8{1, 1, 1, 0}}
	b.Normalize()
	root := float32(math.Sqrt(1.5))
	if diff := cmp.Diff([]float32{-root, 0, root}, b.Advantages[:3], cmp.Comparer(near)); diff != "" {
		t.Errorf("Normalize() (-want +got):\n%s", diff)
	}
	b = Batch{Advantages: []float32{7, 7}, Valid: []uint8{1, 1}}
	b.Normalize()
	if b.Advantages[0] != 0 || b.Advantages[1] != 0 {
		t.Errorf("all alike became %v", b.Advantages)
	}
	b.Valid = []uint8{0, 0}
	b.Normalize()
}

func near(a, b float32) bool { return math.Abs(float64(a-b)) < 1e-5 }

// TestUpdate: importance of V-trace comes from what the learner found out.
func TestUpdate(t *testing.T) {
	r, segments := filled(t, 2)
	var b Batch
	r.Gather(&b, segments[1:])
	for i := range b.NewRatios {
		b.NewRatios[i] = 0.5
	}
	r.Update(&b)
	if err := r.Advantages(adv.Params{Form: adv.VTrace3}, make([]float32, 2)); err != nil {
		t.Fatal(err)
	}
	if got := r.AdvantagesAt(2); got[0] != 0 || got[1] != 0.5 {
		t.Errorf("advantages %v, want 0 and 1·0.5", got)
	}
}

func TestValidate(t *testing.T) {
	for i, cfg := range []Config{{}, {Steps: 1, Cols: 1}, {Steps: 1, Cols: 1, Spec: spec(t), State: -1}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%d: no error for %+v", i, cfg)
		}
	}
}
