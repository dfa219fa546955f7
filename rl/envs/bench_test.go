package envs

import (
	"testing"

	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/vec"
)

// BenchmarkStep steps 1,024 rows with actions prepared before.
func BenchmarkStep(b *testing.B) {
	for _, name := range Names() {
		b.Run(name, func(b *testing.B) {
			maker, err := Maker(name)
			if err != nil {
				b.Fatal(err)
			}
			benchmarkSteps(b, maker)
		})
	}
	b.Run("snake-4x256", func(b *testing.B) {
		c := SnakeConfig{Width: 640, Height: 360, Snakes: 256, Food: 4096, MaxLength: 128}
		benchmarkSteps(b, func(n int) (env.Batch, error) { return NewSnake(n, c) })
	})
}

func benchmarkSteps(b *testing.B, maker vec.Maker) {
	const rows, tables = 1024, 16
	one, err := maker(1)
	if err != nil {
		b.Fatal(err)
	}
	v, err := vec.NewSerial(maker, rows/one.Spec().Agents)
	if err != nil {
		b.Fatal(err)
	}
	defer v.Close()
	if err := v.Reset(b.Context(), 1); err != nil {
		b.Fatal(err)
	}
	r := env.NewRand(7)
	var actions [tables][]int32
	for i := range actions {
		v.Buffers().SampleActions(v.Spec(), &r)
		actions[i] = append(actions[i], v.Buffers().Choices...)
	}
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		copy(v.Buffers().Choices, actions[i%tables])
		i++
		if err := v.Step(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*float64(v.Buffers().Rows)/b.Elapsed().Seconds()/1e6, "Msteps/s")
}
