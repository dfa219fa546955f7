package nn

import (
	"fmt"
	"math"
	"testing"

	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/f32"
)

// problem is a policy, something that happened, and the loss of it.
type problem struct {
	p   *Policy
	b   *Batch
	seq *Sequence
	ppo PPO
}

func numbers(n int, rnd *env.Rand) []float32 {
	xs := make([]float32, n)
	for i := range xs {
		xs[i] = float32(normal(rnd))
	}
	return xs
}

func newProblem(t testing.TB, cfg Config, steps, seqs int) *problem {
	t.Helper()
	p, err := New(cfg, 3)
	if err != nil {
		t.Fatal(err)
	}
	rnd := env.NewRand(9)
	for _, q := range p.params { // as they are later: no bias is zero, the policy isn't uniform
		for i := range q.W.Data {
			q.W.Data[i] += 0.2 * float32(normal(&rnd))
		}
	}
	rows := steps * seqs
	b := &Batch{
		Input:    Input{Rows: rows, F32: numbers(rows*cfg.Obs, &rnd)},
		LogProbs: make([]float32, rows), Values: make([]float32, rows), Valid: make([]uint8, rows),
		Choices: make([]int32, rows*len(cfg.Choices)), Numbers: make([]float32, rows*cfg.Numbers),
		Advantages: numbers(rows, &rnd), Returns: numbers(rows, &rnd),
		Masks: make([]uint8, rows*cfg.Logits()),
	}
	seq := &Sequence{
		Steps: steps, Seqs: seqs, Reset: make([]uint8, rows),
		H: f32.Matrix{Data: numbers(seqs*cfg.LSTM, &rnd), Rows: seqs, Cols: cfg.LSTM},
		C: f32.Matrix{Data: numbers(seqs*cfg.LSTM, &rnd), Rows: seqs, Cols: cfg.LSTM},
	}
	for i := range rows {
		b.Valid[i], seq.Reset[i] = uint8(min(1, rnd.IntN(6))), uint8(rnd.IntN(5)/4)
	}
	for i := range b.Masks {
		b.Masks[i] = uint8(min(1, rnd.IntN(4)))
	}
	out := p.NewPass().Forward(b.Input, seq)
	p.Sample(out, &Actions{Masks: b.Masks, Choices: b.Choices, Numbers: b.Numbers, LogProbs: b.LogProbs, Values: b.Values}, &rnd)
	for i := range rows { // some within the clips, some beyond
		b.LogProbs[i] += 0.2 * float32(normal(&rnd))
		b.Values[i] += 0.2 * float32(normal(&rnd))
	}
	return &problem{p, b, seq, PPO{Clip: 0.2, ValueClip: 0.2, ValueCoef: 0.7, Entropy: 0.05}}
}

func (q *problem) loss(t testing.TB, pass *Pass, backward bool) float64 {
	t.Helper()
	out := pass.Forward(q.b.Input, q.seq)
	grad := f32.NewMatrix(out.Rows, out.Cols)
	s, err := q.p.PPO(out, q.b, q.ppo, grad)
	if err != nil {
		t.Fatal(err)
	}
	if backward {
		pass.Backward(grad)
	}
	return s.Policy + float64(q.ppo.ValueCoef)*s.Value - float64(q.ppo.Entropy)*s.Entropy
}

func shapes() map[string]Config {
	return map[string]Config{
		"discrete":       {Obs: 5, Hidden: []int{7}, Activation: Tanh, Choices: []int{4}},
		"multi-discrete": {Obs: 5, Hidden: []int{7, 6, 9}, Activation: Tanh, Choices: []int{4, 2, 3}},
		"continuous":     {Obs: 5, Hidden: []int{7, 6}, Activation: Tanh, Numbers: 3},
		"mixed":          {Obs: 5, Hidden: []int{7}, Activation: Tanh, Choices: []int{3}, Numbers: 2, Scale: 0.5},
		"relu":           {Obs: 5, Hidden: []int{9, 8}, Choices: []int{4}},
		"lstm":           {Obs: 5, Hidden: []int{7}, Activation: Tanh, LSTM: 6, Choices: []int{4}},
		"lstm-alone":     {Obs: 5, LSTM: 6, Choices: []int{4}, Numbers: 1},
	}
}

// TestGradients compares every number of every gradient with a difference of two losses. In float32 that difference is
// good for about a thousandth, which is enough to find any wrong factor, sign or index.
func TestGradients(t *testing.T) {
	for name, cfg := range shapes() {
		t.Run(name, func(t *testing.T) {
			q := newProblem(t, cfg, 6, 5)
			pass := q.p.NewPass()
			for _, param := range q.p.Params() {
				q.p.ZeroGrad()
				q.loss(t, pass, true)
				check(t, q, pass, param)
			}
		})
	}
}

func check(t *testing.T, q *problem, pass *Pass, param *Param) {
	t.Helper()
	// A bend of the loss (a clip, a ReLU) between the two points spoils a difference: one of two steps has to agree.
	wrong := 0
	gradient := append([]float32(nil), param.G.Data...) // a loss adds to that of the standard deviations
	for i := range param.W.Data {
		w, got := param.W.Data[i], float64(gradient[i])
		off := math.Inf(1)
		for _, h := range []float32{4e-3, 1e-3} {
			param.W.Data[i] = w + h
			up := q.loss(t, pass, false)
			param.W.Data[i] = w - h
			down := q.loss(t, pass, false)
			off = min(off, math.Abs((up-down)/float64(2*h)-got))
		}
		param.W.Data[i] = w
		if off > 1e-3+2e-2*math.Abs(got) {
			wrong++
			if wrong <= 3 {
				t.Logf("%s[%d]: gradient %g, off by %g", param.Name, i, got, off)
			}
		}
	}
	if 50*wrong > len(param.W.Data) {
		t.Errorf("%s: %d of %d gradients are wrong", param.Name, wrong, len(param.W.Data))
	}
}

// TestGradientOfOutputs does the same for the loss alone, where the numbers are exact enough for a narrow bound.
func TestGradientOfOutputs(t *testing.T) {
	for name, cfg := range shapes() {
		t.Run(name, func(t *testing.T) {
			q := newProblem(t, cfg, 6, 5)
			out := q.p.NewPass().Forward(q.b.Input, q.seq)
			grad, scratch := f32.NewMatrix(out.Rows, out.Cols), f32.NewMatrix(out.Rows, out.Cols)
			if _, err := q.p.PPO(out, q.b, q.ppo, grad); err != nil {
				t.Fatal(err)
			}
			total := func() float64 {
				s, err := q.p.PPO(out, q.b, q.ppo, scratch)
				if err != nil {
					t.Fatal(err)
				}
				return s.Policy + float64(q.ppo.ValueCoef)*s.Value - float64(q.ppo.Entropy)*s.Entropy
			}
			for i, z := range out.Data {
				off := math.Inf(1)
				for _, h := range []float32{1.0 / 512, 1.0 / 4096} {
					out.Data[i] = z + h
					up, high := total(), float64(out.Data[i])
					out.Data[i] = z - h
					down, low := total(), float64(out.Data[i])
					off = min(off, math.Abs((up-down)/(high-low)-float64(grad.Data[i])))
				}
				out.Data[i] = z
				if off > 2e-5 {
					t.Errorf("row %d, column %d: gradient %g, off by %g", i/out.Cols, i%out.Cols, grad.Data[i], off)
				}
			}
		})
	}
}

// TestInvalidRows: a masked row is in no mean and has no gradient; an infinite reward of it harms nobody.
func TestInvalidRows(t *testing.T) {
	q := newProblem(t, shapes()["mixed"], 4, 8)
	pass := q.p.NewPass()
	want := q.loss(t, pass, false)
	for i, v := range q.b.Valid {
		if v == 0 {
			q.b.Advantages[i], q.b.Returns[i] = float32(math.Inf(1)), float32(math.NaN())
		}
	}
	if got := q.loss(t, pass, false); got != want {
		t.Errorf("loss %v with other invalid rows, %v before", got, want)
	}
	clear(q.b.Valid)
	q.p.ZeroGrad()
	if got := q.loss(t, pass, true); got != 0 {
		t.Errorf("loss of no row: %v", got)
	}
	for _, param := range q.p.Params() {
		for _, g := range param.G.Data {
			if g != 0 {
				t.Fatalf("%s has a gradient from no row", param.Name)
			}
		}
	}
}

// TestActionMasks: PufferLib returns masks that its trainer doesn't look at.
func TestActionMasks(t *testing.T) {
	p, err := New(Config{Obs: 3, Hidden: []int{8}, Choices: []int{3, 4}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	const rows = 400
	rnd := env.NewRand(1)
	in := Input{Rows: rows, F32: numbers(rows*3, &rnd)}
	a := Actions{
		Masks: make([]uint8, rows*7), Choices: make([]int32, rows*2), LogProbs: make([]float32, rows), Values: make([]float32, rows),
	}
	for i := range rows {
		a.Masks[i*7+1], a.Masks[i*7+3], a.Masks[i*7+6] = 1, 1, 1 // the first head has one choice, the second two
	}
	p.Sample(p.NewPass().Forward(in, nil), &a, &rnd)
	seen := map[[2]int32]int{}
	for i := range rows {
		seen[[2]int32{a.Choices[2*i], a.Choices[2*i+1]}]++
		if lp := float64(a.LogProbs[i]); math.Abs(lp-math.Log(0.5)) > 0.1 {
			t.Fatalf("row %d: log-probability %v, want about that of one in two", i, lp)
		}
	}
	if len(seen) != 2 || seen[[2]int32{1, 0}] < rows/4 || seen[[2]int32{1, 3}] < rows/4 {
		t.Errorf("drew %v", seen)
	}
	clear(a.Masks) // nothing open: anything goes, but no NaN
	p.Sample(p.NewPass().Forward(in, nil), &a, &rnd)
	if !finite(a.LogProbs) {
		t.Error("log-probabilities aren't finite where no choice is open")
	}
}

// TestReset: what an LSTM does after a reset doesn't depend on what was before it, forwards and backwards.
func TestReset(t *testing.T) {
	q := newProblem(t, shapes()["lstm"], 6, 3)
	clear(q.seq.Reset)
	for s := range 3 {
		q.seq.Reset[2*3+s] = 1
	}
	pass := q.p.NewPass()
	before := append([]float32(nil), pass.Forward(q.b.Input, q.seq).Data...)
	for i := range 2 * 3 * 5 {
		q.b.F32[i] += 1
	}
	for i := range q.seq.H.Data {
		q.seq.H.Data[i] -= 1
	}
	after := pass.Forward(q.b.Input, q.seq)
	for i := range after.Rows {
		same := true
		for j, x := range after.Row(i) {
			same = same && x == before[i*after.Cols+j]
		}
		if same != (i >= 2*3) {
			t.Errorf("row %d of step %d: same is %v", i, i/3, same)
		}
	}
	// The loss of the second episode has no gradient for what only the first has seen.
	clear(q.b.Valid[:2*3])
	q.p.ZeroGrad()
	for i := range 2 * 3 * 5 {
		q.b.F32[i] = float32(math.Inf(1)) // would spoil every gradient that it reached but for its zeros
	}
	out := pass.Forward(q.b.Input, q.seq)
	grad := f32.NewMatrix(out.Rows, out.Cols)
	for i := 2 * 3 * out.Cols; i < len(grad.Data); i++ {
		grad.Data[i] = 1
	}
	pass.Backward(grad)
	for i, x := range pass.cells.dC.Data {
		_ = i
		if x != 0 && !finite([]float32{x}) {
			t.Fatal("an episode's gradient crossed its beginning")
		}
	}
}

// TestStepByStep: a rollout, a step at a time, and the training pass over all steps see the same.
func TestStepByStep(t *testing.T) {
	q := newProblem(t, shapes()["lstm"], 7, 9)
	whole := append([]float32(nil), q.p.NewPass().Forward(q.b.Input, q.seq).Data...)
	pass := q.p.NewPass()
	h, c := q.seq.H, q.seq.C
	for s := range 7 {
		out := pass.Forward(q.b.Part(s*9, (s+1)*9), &Sequence{Steps: 1, Seqs: 9, Reset: q.seq.Reset[s*9 : (s+1)*9], H: h, C: c, NextH: h, NextC: c})
		for i, x := range out.Data {
			if x != whole[s*9*out.Cols+i] {
				t.Fatalf("step %d, number %d: %v, in the whole %v", s, i, x, whole[s*9*out.Cols+i])
			}
		}
	}
}

// TestSparse: the two ways of the first layer agree, with their gradients.
func TestSparse(t *testing.T) {
	const rows, width = 40, 30
	rnd := env.NewRand(5)
	p, err := New(Config{Obs: width, Hidden: []int{16}, Choices: []int{3}, Scale: 0.25}, 1)
	if err != nil {
		t.Fatal(err)
	}
	in := Input{Rows: rows, U8: make([]uint8, rows*width)}
	for range rows * 3 {
		in.U8[rnd.IntN(len(in.U8))] = uint8(1 + rnd.IntN(9))
	}
	as := Input{Rows: rows, F32: make([]float32, rows*width)}
	for i, x := range in.U8 {
		as.F32[i] = float32(x)
	}
	var results [3][]float32
	for i, in := range []Input{in, as, as} {
		pass := p.NewPass()
		out := pass.Forward(in, nil)
		if !pass.x.sparse {
			t.Fatal("not taken for sparse")
		}
		if i == 2 {
			pass.x.setDense(as, width, p.cfg.Scale)
			f32.Fill(pass.acts[0], p.layers[0].b.W.Data)
			pass.x.mulAdd(&pass.ws, pass.acts[0], p.layers[0].w.W)
			activate(ReLU, pass.acts[0].Data)
		}
		p.ZeroGrad()
		grad := f32.NewMatrix(out.Rows, out.Cols)
		for j := range grad.Data {
			grad.Data[j] = out.Data[j] + 1
		}
		pass.Backward(grad)
		results[i] = append(append(results[i], pass.acts[0].Data...), p.layers[0].w.G.Data...)
	}
	for i := range results[0] {
		if results[0][i] != results[1][i] || math.Abs(float64(results[0][i]-results[2][i])) > 1e-4 {
			t.Fatalf("number %d: %v from bytes, %v from numbers, %v dense", i, results[0][i], results[1][i], results[2][i])
		}
	}
}

func TestValidate(t *testing.T) {
	for i, cfg := range []Config{
		{},
		{Obs: 1, Hidden: []int{1}},
		{Obs: 1, Choices: []int{2}},
		{Obs: 1, Hidden: []int{0}, Choices: []int{2}},
		{Obs: 1, Hidden: []int{1}, Choices: []int{0}},
		{Obs: 1, Hidden: []int{1}, Choices: []int{1}, Activation: "gelu"},
		{Obs: 1, Hidden: []int{1}, Choices: []int{1}, LSTM: -1},
	} {
		if _, err := New(cfg, 1); err == nil {
			t.Errorf("%d: no error for %+v", i, cfg)
		}
	}
}

// TestOrthogonal: rows of a new layer are at right angles.
func TestOrthogonal(t *testing.T) {
	for _, shape := range [][2]int{{5, 9}, {9, 5}} {
		rnd := env.NewRand(2)
		m := f32.NewMatrix(shape[0], shape[1])
		orthogonal(m, 2, &rnd)
		turned := f32.NewMatrix(m.Cols, m.Rows)
		f32.Transpose(turned, m)
		if m.Rows > m.Cols {
			m, turned = turned, m
		}
		square := f32.NewMatrix(m.Rows, m.Rows)
		new(f32.Workspace).MatMul(square, m, turned, false)
		for i := range square.Rows {
			for j, x := range square.Row(i) {
				want := 0.0
				if i == j {
					want = 4
				}
				if math.Abs(float64(x)-want) > 1e-5 {
					t.Errorf("%v: %d·%d = %v", shape, i, j, x)
				}
			}
		}
	}
}

func BenchmarkPass(b *testing.B) {
	for name, cfg := range map[string]Config{
		"mlp128":  {Obs: 121, Hidden: []int{128}, Choices: []int{5}},
		"lstm128": {Obs: 121, Hidden: []int{128}, LSTM: 128, Choices: []int{5}},
	} {
		q := newProblem(b, cfg, 64, 64)
		pass := q.p.NewPass()
		for _, backward := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/backward=%v", name, backward), func(b *testing.B) {
				for b.Loop() {
					q.loss(b, pass, backward)
				}
				b.ReportMetric(float64(64*64*b.N)/b.Elapsed().Seconds(), "rows/s")
			})
		}
	}
}
