package train

import (
	"syscall"
	"testing"
	"time"
)

// cpuTime is what this process has used of processors: on a busy machine a fairer measure than the clock.
func cpuTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkTrain trains at PufferLib's usual sizes, and reports steps per second of processor time, as a whole and of
// the best update. Run it with GOMAXPROCS=1.
func BenchmarkTrain(b *testing.B) {
	for name, cfg := range map[string]Config{
		"squared-mlp128":   {},
		"squared-lstm128":  {Net: Net{LSTM: 128}},
		"cartpole-mlp128":  {},
		"cartpole-lstm128": {Net: Net{LSTM: 128}},
	} {
		b.Run(name, func(b *testing.B) {
			cfg.Seed, cfg.Steps = 1, int64(1024*64)*int64(b.N)
			env, best, last := name[:len(name)-len("-mlp128")], 0.0, cpuTime(b)
			if cfg.Net.LSTM > 0 {
				env = name[:len(name)-len("-lstm128")]
			}
			start := last
			b.ResetTimer()
			_, err := Run(b.Context(), cfg, maker(b, env), Hooks{Update: func(Progress) error {
				now := cpuTime(b)
				best, last = max(best, 65536/(now-last).Seconds()), now
				return nil
			}})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(cfg.Steps)/(cpuTime(b)-start).Seconds()/1e3, "Ksteps/cpu-s")
			b.ReportMetric(best/1e3, "best-Ksteps/cpu-s")
		})
	}
}
