package adv_test

import (
	"fmt"

	"github.com/dsec-io/dsec/rl/adv"
)

// Three steps of two columns: the first column's episode is over after the last step, the second's was cut off there.
func ExampleCompute() {
	r := adv.Rollout{
		Steps: 3, Cols: 2,
		Values:  []float32{0.5, 0.5, 0.5, 0.5, 0.5, 0.5},
		Rewards: []float32{0, 0, 0, 0, 1, 1},
		Dones:   []uint8{0, 0, 0, 0, 1, 1},
		Next:    []float32{0, 0},
		Cuts:    []adv.Cut{{Step: 2, Col: 1, Value: 0.5}},
	}
	out := make([]float32, 6)
	err := adv.Compute(adv.Params{Gamma: 0.5, Lambda: 0.5}, &r, out)
	fmt.Println(out, err)
	// Output: [-0.28125 -0.265625 -0.125 -0.0625 0.5 0.75] <nil>
}
