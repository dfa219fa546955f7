package chronus_test

import (
	"slices"
	"testing"
	"time"

	"github.com/dsec-io/dsec/internal/aether"
)

// BenchmarkExec is one command after the other on the shard's socket.
func BenchmarkExec(b *testing.B) {
	s := newSandbox(b)
	start := aether.ExecStart{Argv: bytesOf("/bin/busybox", "true"), Env: bytesOf("PATH=/bin")}
	run := func() time.Duration {
		began := time.Now()
		r := s.exec(start).finish()
		if r.err != nil || r.exited.Code != 0 {
			b.Fatalf("%v, %+v", r.err, r.exited)
		}
		return time.Since(began)
	}
	for range 50 {
		run()
	}
	var took []time.Duration
	b.ReportAllocs()
	for b.Loop() {
		took = append(took, run())
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/10].Microseconds()), "p10-us")
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
}
