package buffer

import (
	"errors"
	"fmt"

	"github.com/dsec-io/dsec/rl/adv"
	"github.com/dsec-io/dsec/rl/env"
)

// Config is what a Ring has room for.
type Config struct {
	Steps, Cols int
	Spec        env.Spec
	State       int // numbers in the LSTM's h, and in its c; 0: none
	// StateEvery says at which steps a state is kept: those whose place in the ring is a multiple. 0 is 1, all.
	StateEvery int
}

// Validate reports every fault.
func (c Config) Validate() error {
	var errs []error
	if c.Steps < 1 || c.Cols < 1 {
		errs = append(errs, fmt.Errorf("ring of %d steps of %d columns", c.Steps, c.Cols))
	}
	if c.Spec.Obs.Len < 1 {
		errs = append(errs, errors.New("ring of empty observations"))
	}
	if c.State < 0 || c.StateEvery < 0 {
		errs = append(errs, fmt.Errorf("ring with a state of %d every %d steps", c.State, c.StateEvery))
	}
	return errors.Join(errs...)
}

// Step is the rows of one step: views of the ring.
type Step struct {
	ObsU8       []uint8 // one of the two, as the Spec has it
	ObsF32      []float32
	ActionMasks []uint8
	Choices     []int32
	Numbers     []float32
	LogProbs    []float32
	Values      []float32
	H, C        []float32 // [Cols][State], what the step begins with; read only
	Reset       []uint8   // 1: an episode begins here; read only

	Rewards     []float32
	Terminals   []uint8
	Truncations []uint8
	Finals      []float32 // where truncated, the value of the final observation
	Valid       []uint8   // 0: nothing to learn from
}

// Ring is the last steps, up to Config.Steps. Where it's full, Begin overwrites the oldest.
type Ring struct {
	H, C []float32 // [Cols][State], the state now

	cfg     Config
	stored  int
	head    int // where the next step goes
	all     Step
	begins  []uint8 // [Cols], whether an episode begins with the next step
	ratios  []float32
	advs    []float32
	scratch ordered
}

// ordered are the arrays that advantages are computed from, oldest step first.
type ordered struct {
	values, rewards, ratios, advs []float32
	dones                         []uint8
	cuts                          []adv.Cut
}

// New makes an empty ring. Episodes begin with its first step.
func New(cfg Config) (*Ring, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.StateEvery = max(1, cfg.StateEvery)
	n, spec := cfg.Steps*cfg.Cols, cfg.Spec
	states := (cfg.Steps + cfg.StateEvery - 1) / cfg.StateEvery * cfg.Cols * cfg.State
	r := &Ring{
		cfg: cfg,
		H:   make([]float32, cfg.Cols*cfg.State), C: make([]float32, cfg.Cols*cfg.State),
		begins: make([]uint8, cfg.Cols),
		ratios: make([]float32, n), advs: make([]float32, n),
		all: Step{
			Choices: make([]int32, n*len(spec.Act.Choices)), Numbers: make([]float32, n*spec.Act.Numbers),
			LogProbs: make([]float32, n), Values: make([]float32, n), Rewards: make([]float32, n), Finals: make([]float32, n),
			Terminals: make([]uint8, n), Truncations: make([]uint8, n), Valid: make([]uint8, n), Reset: make([]uint8, n),
			H: make([]float32, states), C: make([]float32, states),
		},
	}
	if spec.Obs.DType == env.Uint8 {
		r.all.ObsU8 = make([]uint8, n*spec.Obs.Len)
	} else {
		r.all.ObsF32 = make([]float32, n*spec.Obs.Len)
	}
	if spec.Masked {
		r.all.ActionMasks = make([]uint8, n*spec.Act.MaskLen())
	}
	r.Restart()
	return r, nil
}

// Len is how many steps are stored. Step ages count from the oldest, 0, to the newest, Len()-1.
func (r *Ring) Len() int { return r.stored }

// Cols is how many columns there are.
func (r *Ring) Cols() int { return r.cfg.Cols }

// Clear forgets all steps, not the state: the next step goes on where the last one ended.
func (r *Ring) Clear() { r.stored, r.head = 0, 0 }

// Restart is for environments that have been reset: an episode begins in every column, from a state of zeros.
func (r *Ring) Restart() {
	clear(r.H)
	clear(r.C)
	for i := range r.begins {
		r.begins[i] = 1
	}
}

func part[T any](s []T, i, of int) []T {
	n := len(s) / of
	return s[i*n : (i+1)*n : (i+1)*n]
}

// At returns the step of an age.
func (r *Ring) At(age int) Step { return r.slot(r.place(age)) }

func (r *Ring) place(age int) int {
	return (r.head - r.stored + age + 2*r.cfg.Steps) % r.cfg.Steps
}

func (r *Ring) slot(i int) Step {
	a, n := &r.all, r.cfg.Steps
	s := Step{
		ObsU8: part(a.ObsU8, i, n), ObsF32: part(a.ObsF32, i, n), ActionMasks: part(a.ActionMasks, i, n),
		Choices: part(a.Choices, i, n), Numbers: part(a.Numbers, i, n),
		LogProbs: part(a.LogProbs, i, n), Values: part(a.Values, i, n), Reset: part(a.Reset, i, n),
		Rewards: part(a.Rewards, i, n), Terminals: part(a.Terminals, i, n), Truncations: part(a.Truncations, i, n),
		Finals: part(a.Finals, i, n), Valid: part(a.Valid, i, n),
	}
	if r.cfg.State > 0 && i%r.cfg.StateEvery == 0 {
		k := i / r.cfg.StateEvery
		size := r.cfg.Cols * r.cfg.State
		s.H, s.C = a.H[k*size:(k+1)*size], a.C[k*size:(k+1)*size]
	}
	return s
}

// Begin starts a step: Reset and the state are there, Valid is 1, rewards and flags are 0. H and C are nil at a step
// whose state isn't kept; it's that of the ring all the same.
func (r *Ring) Begin() Step {
	if r.stored == r.cfg.Steps {
		r.stored-- // the oldest is given up now
	}
	s := r.slot(r.head)
	copy(s.Reset, r.begins)
	copy(s.H, r.H)
	copy(s.C, r.C)
	clear(s.Rewards)
	clear(s.Terminals)
	clear(s.Truncations)
	clear(s.Finals)
	for i := range s.Valid {
		s.Valid[i] = 1
	}
	ratios := part(r.ratios, r.head, r.cfg.Steps)
	for i := range ratios {
		ratios[i] = 1
	}
	return s
}

// End ends the step: it's stored, and the state of columns whose episode ended is zero.
func (r *Ring) End() {
	s, n := r.slot(r.head), r.cfg.State
	for col := range r.begins {
		done := s.Terminals[col] | s.Truncations[col]
		r.begins[col] = done
		if done != 0 {
			clear(r.H[col*n : (col+1)*n])
			clear(r.C[col*n : (col+1)*n])
		}
	}
	r.head = (r.head + 1) % r.cfg.Steps
	r.stored++
}

// Advantages computes the advantage of every stored step; next has the values of the observations after the newest.
// Importance is what SetRatio has told. An invalid row has the advantage 0 and passes none on.
func (r *Ring) Advantages(p adv.Params, next []float32) error {
	n, cols := r.stored*r.cfg.Cols, r.cfg.Cols
	o := &r.scratch
	o.values, o.rewards, o.ratios, o.advs = sized(o.values, n), sized(o.rewards, n), sized(o.ratios, n), sized(o.advs, n)
	o.dones, o.cuts = sized(o.dones, n), o.cuts[:0]
	for age := range r.stored {
		at := r.place(age)
		s := r.slot(at)
		lo, hi := age*cols, (age+1)*cols
		copy(o.values[lo:hi], s.Values)
		copy(o.ratios[lo:hi], part(r.ratios, at, r.cfg.Steps))
		copy(o.rewards[lo:hi], s.Rewards)
		for col, valid := range s.Valid {
			done := s.Terminals[col] | s.Truncations[col]
			if valid == 0 {
				done, o.rewards[lo+col], o.ratios[lo+col] = 1, s.Values[col], 1
			} else if s.Truncations[col] != 0 && s.Terminals[col] == 0 {
				o.cuts = append(o.cuts, adv.Cut{Step: age, Col: col, Value: s.Finals[col]})
			}
			o.dones[lo+col] = done
		}
	}
	roll := adv.Rollout{
		Steps: r.stored, Cols: cols, Values: o.values, Next: next, Rewards: o.rewards, Dones: o.dones, Importance: o.ratios, Cuts: o.cuts,
	}
	if err := adv.Compute(p, &roll, o.advs); err != nil {
		return err
	}
	for age := range r.stored {
		copy(part(r.advs, r.place(age), r.cfg.Steps), o.advs[age*cols:(age+1)*cols])
	}
	return nil
}

// AdvantagesAt returns the advantages of a step.
func (r *Ring) AdvantagesAt(age int) []float32 { return part(r.advs, r.place(age), r.cfg.Steps) }

func sized[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
