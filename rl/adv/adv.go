package adv

import (
	"errors"
	"fmt"
)

// Form says how an advantage is computed.
type Form uint8

// The forms; see the package's comment.
const (
	GAE Form = iota
	VTrace3
	VTrace4
)

// String returns the form's name.
func (f Form) String() string {
	switch f {
	case GAE:
		return "gae"
	case VTrace3:
		return "vtrace3"
	case VTrace4:
		return "vtrace4"
	}
	return fmt.Sprintf("Form(%d)", uint8(f))
}

// ParseForm is the inverse of [Form.String].
func ParseForm(name string) (Form, error) {
	for f := GAE; f <= VTrace4; f++ {
		if f.String() == name {
			return f, nil
		}
	}
	return 0, fmt.Errorf("advantage %q: want gae, vtrace3 or vtrace4", name)
}

// Params are the constants of the formulas.
type Params struct {
	Form          Form
	Gamma, Lambda float32
	RhoMax, CMax  float32 // of the V-trace forms; 0 is 1
}

// Cut is the end of an episode that was cut off: the value of its final observation is still to be counted.
type Cut struct {
	Step, Col int
	Value     float32
}

// Rollout is what advantages are computed from. Each array is [Steps][Cols].
type Rollout struct {
	Steps, Cols int
	Values      []float32
	Next        []float32 // [Cols], values of the observations after the last step
	Rewards     []float32
	Dones       []uint8   // 0 or 1: the episode ended with this step, in either way
	Importance  []float32 // probability of the action now over then; nil: all are 1. GAE doesn't look at it.
	Cuts        []Cut     // in the order of their steps
}

func (r *Rollout) check(out int) error {
	n := r.Steps * r.Cols
	if r.Steps < 1 || r.Cols < 1 {
		return fmt.Errorf("advantage of %d steps of %d columns", r.Steps, r.Cols)
	}
	for _, a := range []struct {
		name       string
		have, want int
	}{
		{"values", len(r.Values), n},
		{"next values", len(r.Next), r.Cols},
		{"rewards", len(r.Rewards), n},
		{"dones", len(r.Dones), n},
		{"importance", max(len(r.Importance), n), max(n, len(r.Importance))},
		{"advantages", out, n},
	} {
		if a.have != a.want {
			return fmt.Errorf("advantage of %d steps of %d columns: %d %s, want %d", r.Steps, r.Cols, a.have, a.name, a.want)
		}
	}
	if k := len(r.Importance); k != 0 && k != n {
		return fmt.Errorf("advantage of %d steps of %d columns: importance of %d", r.Steps, r.Cols, k)
	}
	step := 0
	for _, c := range r.Cuts {
		if c.Step < step || c.Step >= r.Steps || c.Col < 0 || c.Col >= r.Cols {
			return fmt.Errorf("advantage: cut at step %d, column %d: out of order or range", c.Step, c.Col)
		}
		if r.Dones[c.Step*r.Cols+c.Col] == 0 {
			return errors.New("advantage: cut where the episode isn't done")
		}
		step = c.Step
	}
	return nil
}

// consts are Params as the loops want them.
type consts struct {
	gamma, gl   float32 // γ, γ·λ
	rho, c      float32 // the limits; where there's no importance, the factors themselves
	rewardsOnly bool    // ρ is of the reward, not of the whole difference
}

func (p Params) consts() consts {
	k := consts{gamma: p.Gamma, gl: p.Gamma * p.Lambda, rho: 1, c: 1, rewardsOnly: p.Form == VTrace4}
	if p.Form != GAE {
		if p.RhoMax > 0 {
			k.rho = p.RhoMax
		}
		if p.CMax > 0 {
			k.c = p.CMax
		}
	}
	return k
}

// row is one step of a tile of columns.
type row struct {
	adv, later         []float32 // A[t] to write, and A[t+1]
	value, next        []float32
	reward, importance []float32 // importance is nil where it's 1
	done               []uint8
}

// tileCols is how many columns are worked on at a time: what a row of them reads stays in the nearest cache for the
// row before it.
const tileCols = 1024

// Compute writes the advantages to out.
func Compute(p Params, r *Rollout, out []float32) error {
	return compute(p, r, out, bestRow())
}

func compute(p Params, r *Rollout, out []float32, do func(*row, *consts)) error {
	if err := r.check(len(out)); err != nil {
		return err
	}
	k := p.consts()
	importance := r.Importance
	if p.Form == GAE {
		importance = nil
	}
	if importance == nil {
		k.rho, k.c = min(1, k.rho), min(1, k.c)
	}
	var zero [tileCols]float32
	for lo := 0; lo < r.Cols; lo += tileCols {
		hi := min(lo+tileCols, r.Cols)
		later, next, cut := zero[:hi-lo], r.Next[lo:hi], len(r.Cuts)
		for t := r.Steps - 1; t >= 0; t-- {
			a, b := t*r.Cols+lo, t*r.Cols+hi
			w := row{adv: out[a:b], later: later, value: r.Values[a:b], next: next, reward: r.Rewards[a:b], done: r.Dones[a:b]}
			if importance != nil {
				w.importance = importance[a:b]
			}
			do(&w, &k)
			clearUpper()
			for ; cut > 0 && r.Cuts[cut-1].Step == t; cut-- {
				w.bootstrap(r.Cuts[cut-1], lo, &k)
			}
			later, next = w.adv, w.value
		}
	}
	return nil
}

// bootstrap adds what a cut is worth. The step is done, so that its advantage has had no part of what follows.
func (w *row) bootstrap(c Cut, lo int, k *consts) {
	j := c.Col - lo
	if j < 0 || j >= len(w.adv) {
		return
	}
	rho := k.rho
	if w.importance != nil {
		rho = min(w.importance[j], rho)
	}
	if k.rewardsOnly {
		rho = 1
	}
	w.adv[j] += rho * k.gamma * c.Value
}

// portableRow is the row without vectors. The arrays are cut to one length, so that the loops check no bounds; min is
// the builtin, because a branch on random importance is mispredicted half of the time (measured: a third of the speed).
func portableRow(w *row, k *consts) {
	n := len(w.adv)
	adv, later, value, next := w.adv, w.later[:n], w.value[:n], w.next[:n]
	reward, done := w.reward[:n], w.done[:n]
	keep := [2]float32{1, 0}
	switch {
	case w.importance == nil && !k.rewardsOnly:
		for j := range adv {
			m := keep[done[j]&1]
			adv[j] = k.rho*(reward[j]+k.gamma*m*next[j]-value[j]) + k.gl*k.c*m*later[j]
		}
	case w.importance == nil:
		for j := range adv {
			m := keep[done[j]&1]
			adv[j] = k.rho*reward[j] + k.gamma*m*next[j] - value[j] + k.gl*k.c*m*later[j]
		}
	case k.rewardsOnly:
		imp := w.importance[:n]
		for j := range adv {
			m := keep[done[j]&1]
			adv[j] = min(imp[j], k.rho)*reward[j] + k.gamma*m*next[j] - value[j] + k.gl*min(imp[j], k.c)*m*later[j]
		}
	default:
		imp := w.importance[:n]
		for j := range adv {
			m := keep[done[j]&1]
			adv[j] = min(imp[j], k.rho)*(reward[j]+k.gamma*m*next[j]-value[j]) + k.gl*min(imp[j], k.c)*m*later[j]
		}
	}
}

// Reference computes the same in float64, the plain way.
func Reference(p Params, r *Rollout) ([]float64, error) {
	out := make([]float64, r.Steps*r.Cols)
	if err := r.check(len(out)); err != nil {
		return nil, err
	}
	k := p.consts()
	cuts := make(map[int]float64)
	for _, c := range r.Cuts {
		cuts[c.Step*r.Cols+c.Col] = float64(c.Value)
	}
	for col := range r.Cols {
		later, next := 0.0, float64(r.Next[col])
		for t := r.Steps - 1; t >= 0; t-- {
			i := t*r.Cols + col
			rho, c := 1.0, 1.0
			if p.Form != GAE {
				imp := 1.0
				if r.Importance != nil {
					imp = float64(r.Importance[i])
				}
				rho, c = min(imp, float64(k.rho)), min(imp, float64(k.c))
			}
			if r.Dones[i] != 0 {
				later, next = 0, cuts[i]
			}
			reward, value := float64(r.Rewards[i]), float64(r.Values[i])
			delta := rho * (reward + float64(p.Gamma)*next - value)
			if k.rewardsOnly {
				delta = rho*reward + float64(p.Gamma)*next - value
			}
			later = delta + float64(p.Gamma)*float64(p.Lambda)*c*later
			out[i], next = later, value
		}
	}
	return out, nil
}
