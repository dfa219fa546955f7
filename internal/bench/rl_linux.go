package bench

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/rl/adv"
	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/envs"
	"github.com/dsec-io/dsec/rl/f32"
	"github.com/dsec-io/dsec/rl/rlbench"
	"github.com/dsec-io/dsec/rl/train"
)

// rl measures environments, advantages and training, in this process; with Options.Sandboxes, steps in sandboxes.
func (b *bench) rl(ctx context.Context) error {
	if b.Sandboxes > 0 {
		return b.rlSandboxes(ctx)
	}
	b.notef("steps of environments and advantages are by the processor time of their thread, training by that of the whole process; what is named for workers by the time on the wall")
	for _, measure := range []func(context.Context) error{b.rlEnvs, b.rlAdvantages, b.rlTraining} {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := measure(ctx); err != nil {
			return err
		}
	}
	return nil
}

// vectors tells which loops over numbers this build has.
func vectors() string {
	return fmt.Sprintf("loops: advantages %s, networks %s (avx with GOEXPERIMENT=simd only)", adv.Backend(), f32.Backend())
}

// used is a clock of processor time.
func used(clock int32) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		panic(err) // these clocks are there since Linux 2.6.12
	}
	return time.Duration(ts.Nano())
}

// rlEnvs measures how fast environments step. One that doesn't compute what it should fails the benchmark.
func (b *bench) rlEnvs(ctx context.Context) error {
	const rows = 1024
	peers, closePeers, err := b.openOriginals(ctx, rows)
	if err != nil {
		return err
	}
	defer closePeers()
	c := rlbench.Config{Rows: rows, Clock: func() time.Duration { return used(unix.CLOCK_THREAD_CPUTIME_ID) }, Peers: peers}
	if b.Quick {
		c.Samples, c.Sample = 3, 10*time.Millisecond
	}
	b.sayf("rl: environments")
	results, err := rlbench.Run(ctx, c)
	if err != nil {
		return err
	}
	for _, r := range results {
		result := Result{
			Name: RL + "." + strings.ReplaceAll(r.Name, "/", "."), Unit: r.Unit, Value: r.Value, N: int(r.N), Concurrency: 1, Peak: 1,
			P50: r.Value, P90: r.Best, P99: r.Best,
		}
		if r.Peer > 0 {
			result.against("original", Figure{Value: r.Peer, N: int(r.N), P50: r.Peer, P90: r.PeerBest, P99: r.PeerBest}, true)
		}
		b.document.Results = append(b.document.Results, result)
	}
	b.notef("of environments p50 is the median sample, p90 and p99 the best of a few, p10 isn't kept; every sample's end was computed again by another vector")
	return nil
}

// rates turns measured times of operations, each of so many things, into a result of things a second.
func (b *bench) rates(name, unit string, each int, times []time.Duration) {
	t := &tally{done: len(times) * each, peak: 1}
	s := t.step("dsec", name)
	for _, d := range times {
		t.rates = append(t.rates, float64(each)/max(d, 1).Seconds())
		s.times = append(s.times, d)
	}
	f := t.throughput()
	f.Value = f.P50
	b.document.Results = append(b.document.Results, t.result(RL+"."+name, unit, 1, f))
	b.keep(1, map[string]*tally{name: t})
}

// rlAdvantages measures one million transitions at once, as much as doesn't fit into a cache.
func (b *bench) rlAdvantages(ctx context.Context) error {
	const steps, cols = 64, 16384
	b.sayf("rl: advantages")
	r := rollout(steps, cols)
	out := make([]float32, steps*cols)
	_, samples := b.counts(0, 0)
	samples *= 8
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, form := range []adv.Form{adv.GAE, adv.VTrace3, adv.VTrace4} {
		p := adv.Params{Form: form, Gamma: 0.995, Lambda: 0.9}
		if err := checkAdvantages(p, r, out); err != nil {
			return err
		}
		var times []time.Duration
		for range samples {
			if err := ctx.Err(); err != nil {
				return err
			}
			began := used(unix.CLOCK_THREAD_CPUTIME_ID)
			if err := adv.Compute(p, r, out); err != nil {
				return err
			}
			times = append(times, used(unix.CLOCK_THREAD_CPUTIME_ID)-began)
		}
		b.rates("advantage."+form.String(), "transitions/s", steps*cols, times)
	}
	b.notef("advantages: %d steps of %d columns", steps, cols)
	return nil
}

func rollout(steps, cols int) *adv.Rollout {
	rnd, n := env.NewRand(5), steps*cols
	r := &adv.Rollout{
		Steps: steps, Cols: cols, Values: make([]float32, n), Rewards: make([]float32, n), Importance: make([]float32, n),
		Next: make([]float32, cols), Dones: make([]uint8, n),
	}
	for i := range n {
		r.Values[i], r.Rewards[i], r.Importance[i] = rnd.Range(-1, 1), rnd.Range(-1, 1), rnd.Range(0, 2)
		if rnd.IntN(20) == 0 {
			r.Dones[i] = 1
		}
	}
	for i := range r.Next {
		r.Next[i] = rnd.Range(-1, 1)
	}
	return r
}

// checkAdvantages compares with the plain way.
func checkAdvantages(p adv.Params, r *adv.Rollout, out []float32) error {
	want, err := adv.Reference(p, r)
	if err != nil {
		return err
	}
	if err := adv.Compute(p, r, out); err != nil {
		return err
	}
	largest, off := 0.0, 0.0
	for i, w := range want {
		largest, off = max(largest, math.Abs(w)), max(off, math.Abs(w-float64(out[i])))
	}
	if !(off <= 4e-6*(1+largest)) {
		return fmt.Errorf("advantages of %v are off by %g", p.Form, off)
	}
	return nil
}

// rlTraining measures whole updates at the sizes that are compared elsewhere.
func (b *bench) rlTraining(ctx context.Context) error {
	maker, err := envs.Maker("squared")
	if err != nil {
		return err
	}
	for _, run := range []struct {
		name           string
		lstm           int
		updates, quick int
	}{{"mlp128", 0, 21, 4}, {"lstm128", 128, 8, 3}} {
		updates, _ := b.counts(run.updates, run.quick)
		b.sayf("rl: training squared, %s, %d updates", run.name, updates)
		const each = 1024 * 64
		var times []time.Duration
		last := used(unix.CLOCK_PROCESS_CPUTIME_ID)
		_, err := train.Run(ctx, train.Config{Seed: 1, Steps: int64(updates) * each, Net: train.Net{LSTM: run.lstm}}, maker, train.Hooks{
			Update: func(train.Progress) error {
				now := used(unix.CLOCK_PROCESS_CPUTIME_ID)
				times = append(times, now-last)
				last = now
				return nil
			},
		})
		if err != nil {
			return err
		}
		if len(times) > 1 {
			times = times[1:] // memory is touched for the first time in the first
		}
		b.rates("train.squared."+run.name, "steps/s", each, times)
	}
	b.notef("training: PPO with rl/train's usual settings, 1024 environments, 64 steps an update, minibatches of 8192; environments, policy and learning together; the first update isn't counted")
	return nil
}
