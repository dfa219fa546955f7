package vec_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/envs"
	"github.com/dsec-io/dsec/rl/vec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mustMaker returns the maker of an environment that's known.
func mustMaker(name string) vec.Maker {
	maker, err := envs.Maker(name)
	if err != nil {
		panic(err)
	}
	return maker
}

// player chooses for each row by itself, from what it saw and how often it played, and keeps a trace of each row.
type player struct {
	spec   env.Spec
	traces []uint64
	plays  []int
}

func newPlayer(spec env.Spec, b *env.Buffers) *player {
	return &player{spec: spec, traces: make([]uint64, b.Rows), plays: make([]int, b.Rows)}
}

// play looks at the rows that begin at lo, and acts.
func (p *player) play(lo int, b *env.Buffers) {
	for i := range b.Rows {
		h := fnv.New64a()
		n := p.spec.Obs.Len
		write := func(u8 []uint8, f32 []float32) {
			if p.spec.Obs.DType == env.Uint8 {
				h.Write(u8[i*n : (i+1)*n])
				return
			}
			for _, v := range f32[i*n : (i+1)*n] {
				fmt.Fprint(h, math.Float32bits(v), " ")
			}
		}
		fmt.Fprint(h, p.traces[lo+i], b.Rewards[i], b.Terminals[i], b.Truncations[i], b.Masks[i])
		write(b.ObsU8, b.ObsF32)
		if b.Done(i) {
			write(b.FinalU8, b.FinalF32)
		}
		p.traces[lo+i] = h.Sum64()
		p.plays[lo+i]++
		r := env.NewRand(p.traces[lo+i])
		for j, choices := range p.spec.Act.Choices {
			b.Choices[i*len(p.spec.Act.Choices)+j] = int32(r.IntN(choices))
		}
	}
}

func playVector(t testing.TB, v vec.Vector, seed uint64, steps int) *player {
	t.Helper()
	p := newPlayer(v.Spec(), v.Buffers())
	if err := v.Reset(t.Context(), seed); err != nil {
		t.Fatal(err)
	}
	for range steps {
		p.play(0, v.Buffers())
		if err := v.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	p.play(0, v.Buffers())
	return p
}

// playAsync has every row step as often, in whatever order blocks come.
func playAsync(t testing.TB, a *vec.Async, seed uint64, steps int) *player {
	t.Helper()
	p := newPlayer(a.Spec(), a.Buffers())
	if err := a.Reset(t.Context(), seed); err != nil {
		t.Fatal(err)
	}
	for out := a.Buffers().Rows; out > 0; {
		blocks, err := a.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var again []vec.Block
		for _, b := range blocks {
			p.play(b.Lo, b.Buffers)
			if p.plays[b.Lo] <= steps {
				again = append(again, b)
			} else {
				out -= b.Hi - b.Lo
			}
		}
		if err := a.Send(again...); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// TestSameEpisodes: what happens in an environment doesn't depend on how many workers there are, how environments are
// cut into blocks, or in which order these come ready. No number has to divide another.
func TestSameEpisodes(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		name := rapid.SampledFrom([]string{"squared", "cartpole", "2048", "maze", "forage", "snake"}).Draw(r, "name")
		most := 23
		if name == "snake" {
			most = 5
		}
		c := vec.Config{
			Envs:    rapid.IntRange(1, most).Draw(r, "envs"),
			Workers: rapid.IntRange(0, 9).Draw(r, "workers"),
			Blocks:  rapid.IntRange(0, 25).Draw(r, "blocks"),
			Batch:   rapid.IntRange(0, 25).Draw(r, "batch"),
			Ordered: rapid.Bool().Draw(r, "ordered"),
		}
		seed := rapid.Uint64().Draw(r, "seed")
		const steps = 40
		serial, err := vec.NewSerial(mustMaker(name), c.Envs)
		if err != nil {
			r.Fatal(err)
		}
		defer serial.Close()
		parallel, err := vec.NewParallel(mustMaker(name), c)
		if err != nil {
			r.Fatal(err)
		}
		defer parallel.Close()
		async, err := vec.NewAsync(mustMaker(name), c)
		if err != nil {
			r.Fatal(err)
		}
		defer async.Close()
		want := playVector(t, serial, seed, steps)
		for kind, got := range map[string]*player{
			"parallel": playVector(t, parallel, seed, steps),
			"async":    playAsync(t, async, seed, steps),
			// A reset in the middle of things begins anew.
			"async again": playAsync(t, async, seed, steps),
		} {
			for row := range want.traces {
				if got.traces[row] != want.traces[row] {
					r.Fatalf("%s: row %d differs after %d steps", kind, row, steps)
				}
			}
		}
		a, b := serial.(env.StatsTaker).TakeStats(), parallel.(env.StatsTaker).TakeStats()
		if a.Episodes != b.Episodes || a.Length != b.Length {
			r.Errorf("statistics %+v and %+v", a, b)
		}
		if again := parallel.(env.StatsTaker).TakeStats(); again.Episodes != 0 {
			r.Errorf("statistics taken twice: %+v", again)
		}
	})
}

// TestOrdered: what an ordered Async gives out is the same every time.
func TestOrdered(t *testing.T) {
	a, err := vec.NewAsync(mustMaker("squared"), vec.Config{Envs: 10, Workers: 3, Blocks: 5, Batch: 2, Ordered: true})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := a.Reset(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for range 8 {
		blocks, err := a.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range blocks {
			fmt.Fprint(&got, b.Index)
		}
		if err := a.Send(blocks[1], blocks[0]); err != nil {
			t.Fatal(err)
		}
	}
	if want := "0123401234012340"; got.String() != want {
		t.Errorf("order %s, want %s", got.String(), want)
	}
}

func TestOutOfTurn(t *testing.T) {
	a, err := vec.NewAsync(mustMaker("squared"), vec.Config{Envs: 4, Blocks: 2, Batch: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if _, err := a.Recv(t.Context()); !errors.Is(err, vec.ErrOutOfTurn) {
		t.Errorf("Recv before Reset: %v", err)
	}
	if err := a.Reset(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	blocks, err := a.Recv(t.Context())
	if err != nil || len(blocks) != 2 {
		t.Fatalf("Recv: %d blocks, %v", len(blocks), err)
	}
	if _, err := a.Recv(t.Context()); !errors.Is(err, vec.ErrOutOfTurn) {
		t.Errorf("Recv of what wasn't sent: %v", err)
	}
	if err := a.Send(blocks...); err != nil {
		t.Error(err)
	}
	if err := a.Send(blocks[0]); !errors.Is(err, vec.ErrOutOfTurn) {
		t.Errorf("Send twice: %v", err)
	}
	// With everything on its way: neither a reset nor a close hangs.
	if err := a.Reset(t.Context(), 2); err != nil {
		t.Error(err)
	}
	if err := a.Reset(t.Context(), 3); err != nil {
		t.Error(err)
	}
	if _, err := a.Recv(t.Context()); err != nil {
		t.Error(err)
	}
	for i := range 4 {
		if tick := a.Buffers().View(i, i+1); tick.Done(0) || tick.ObsU8[60] != 1 {
			t.Errorf("row %d isn't at the beginning of an episode", i)
		}
	}
}

func TestConfigsRefused(t *testing.T) {
	for name, c := range map[string]vec.Config{
		"no-envs":          {},
		"negative-workers": {Envs: 1, Workers: -1},
		"negative-blocks":  {Envs: 1, Blocks: -1},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := vec.NewParallel(mustMaker("squared"), c); err == nil {
				t.Error("NewParallel: no error")
			}
			if _, err := vec.NewAsync(mustMaker("squared"), c); err == nil {
				t.Error("NewAsync: no error")
			}
		})
	}
	broken := func(int) (env.Batch, error) { return nil, errors.New("no more memory") }
	if _, err := vec.NewParallel(broken, vec.Config{Envs: 3}); err == nil || !strings.Contains(err.Error(), "no more memory") {
		t.Errorf("a maker's error: %v", err)
	}
}

// gate is an environment that waits in each step until it's let through.
type gate struct {
	spec  env.Spec
	ready chan struct{}
	panic bool
}

func (g *gate) Spec() env.Spec { return g.spec }
func (g *gate) Close() error   { return nil }

func (g *gate) Reset(context.Context, uint64, *env.Buffers) error { return nil }

func (g *gate) Step(ctx context.Context, _ *env.Buffers) error {
	if g.panic {
		panic("gate fell")
	}
	select {
	case <-g.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// gates makes environments of which the first waits for slow; the others never wait.
func gates(slow chan struct{}, fall int) vec.Maker {
	made := 0
	open := make(chan struct{})
	close(open)
	return vec.Each(func() (env.Env, error) {
		spec, err := env.NewSpec("gate", 1, env.Bytes(1, 1), env.Discrete{N: 2})
		g := &gate{spec: spec, ready: open}
		if made == 0 && slow != nil {
			g.ready = slow
		}
		made++
		g.panic = made == fall
		return g, err
	})
}

// TestFirstReady: one slow environment holds up nobody but itself, and a Recv that waits for it ends with its context.
func TestFirstReady(t *testing.T) {
	slow := make(chan struct{})
	a, err := vec.NewAsync(gates(slow, 0), vec.Config{Envs: 4, Workers: 2, Blocks: 4, Batch: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := a.Reset(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		blocks, err := a.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Send(blocks...); err != nil {
			t.Fatal(err)
		}
	}
	var last []vec.Block
	for range 100 {
		blocks, err := a.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if blocks[0].Index == 0 {
			t.Fatal("the slow one was ready")
		}
		if err := a.Send(blocks...); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if last, err = a.Recv(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	go cancel(why)
	if _, err := a.Recv(ctx); !errors.Is(err, why) {
		t.Errorf("Recv with a context that ends: %v", err)
	}
	slow <- struct{}{}
	blocks, err := a.Recv(t.Context())
	if err != nil || blocks[0].Index != 0 {
		t.Errorf("Recv after the slow one: %v, %v", blocks, err)
	}
	// Close while a step waits: it doesn't hang.
	if err := a.Send(append(blocks, last...)...); err != nil {
		t.Error(err)
	}
}

// TestPanic: an environment that panics makes errors, not hangs or a dead process.
func TestPanic(t *testing.T) {
	for workers := 1; workers <= 3; workers++ {
		c := vec.Config{Envs: 6, Workers: workers, Blocks: 6, Batch: 6}
		p, err := vec.NewParallel(gates(nil, 4), c)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Reset(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := p.Step(t.Context()); err == nil || !strings.Contains(err.Error(), "gate fell") {
				t.Errorf("parallel, %d workers: %v", workers, err)
			}
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		a, err := vec.NewAsync(gates(nil, 4), c)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Reset(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		blocks, err := a.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Send(blocks...); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Recv(t.Context()); err == nil || !strings.Contains(err.Error(), "gate fell") {
			t.Errorf("async, %d workers: %v", workers, err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
}

func ExampleNewParallel() {
	ctx := context.Background()
	v, err := vec.NewParallel(mustMaker("squared"), vec.Config{Envs: 8, Workers: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer v.Close()
	if err := v.Reset(ctx, 42); err != nil {
		fmt.Println(err)
		return
	}
	for range 100 {
		for i := range v.Buffers().Choices {
			v.Buffers().Choices[i] = 1 // down, and out
		}
		if err := v.Step(ctx); err != nil {
			fmt.Println(err)
			return
		}
	}
	stats := v.(env.StatsTaker).TakeStats()
	fmt.Println(stats.Episodes > 100, stats.Mean().Length < 7)
	// Output: true true
}
