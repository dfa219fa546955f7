// Package optim has the optimizers Adam and Muon over the parameters of package nn.
//
// An [Optimizer] keeps averages for the parameters that it was made for. Its State, together with the count of its
// steps, is all that it remembers: an optimizer that is given both goes on with the same bits.
//
// An optimizer belongs to one goroutine.
package optim

import (
	"fmt"
	"math"

	"github.com/dsec-io/dsec/rl/f32"
	"github.com/dsec-io/dsec/rl/nn"
)

// Optimizer changes parameters by their gradients.
type Optimizer interface {
	// Step takes one step with a learning rate; gradients count scale times what they are.
	Step(rate, scale float32)
	// State returns the averages: the same memory, always in the same order.
	State() []Tensor
	Steps() int
	// SetSteps is for going on with a loaded State.
	SetSteps(n int)
}

// Tensor is one part of a state.
type Tensor struct {
	Name string
	f32.Matrix
}

// Config says which optimizer.
type Config struct {
	Name     string  `json:"name"`               // adam or muon
	Beta1    float32 `json:"beta1,omitempty"`    // Adam; 0 is 0.9
	Beta2    float32 `json:"beta2,omitempty"`    // Adam; 0 is 0.999
	Eps      float32 `json:"eps,omitempty"`      // Adam; 0 is 1e-8
	Momentum float32 `json:"momentum,omitempty"` // Muon; 0 is 0.95
}

// New makes an optimizer that has seen nothing.
func New(cfg Config, params []*nn.Param) (Optimizer, error) {
	switch cfg.Name {
	case "", "adam":
		return newAdam(cfg, params), nil
	case "muon":
		return newMuon(cfg, params), nil
	}
	return nil, fmt.Errorf("optimizer %q: want adam or muon", cfg.Name)
}

// GradNorm returns the length of all gradients taken together.
func GradNorm(params []*nn.Param) float64 {
	sum := 0.0
	for _, p := range params {
		sum += f32.SumSquares(p.G.Data)
	}
	return math.Sqrt(sum)
}

// ClipScale returns what gradients of a norm have to be multiplied with to be no longer than limit; 0 is no limit.
func ClipScale(norm float64, limit float32) float32 {
	if limit <= 0 || norm <= float64(limit) {
		return 1
	}
	return float32(float64(limit) / (norm + 1e-6))
}

func or(x, standard float32) float32 {
	if x == 0 {
		return standard
	}
	return x
}

func like(params []*nn.Param, name string) []Tensor {
	state := make([]Tensor, len(params))
	for i, p := range params {
		state[i] = Tensor{name + "." + p.Name, f32.NewMatrix(p.W.Rows, p.W.Cols)}
	}
	return state
}
