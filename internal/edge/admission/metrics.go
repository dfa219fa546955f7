package admission

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Register adds what there is in all and what of it is promised to the figures of the node.
func (r *Room) Register(to prometheus.Registerer) error {
	for _, k := range []struct {
		kind string
		of   func(Claim) int64
	}{
		{"sandboxes", func(c Claim) int64 { return c.Sandboxes }},
		{"memory_mb", func(c Claim) int64 { return c.MemoryMB }},
		{"cpu_thousandths", func(c Claim) int64 { return c.MilliCPU }},
		{"pids", func(c Claim) int64 { return c.PIDs }},
	} {
		gauge := func(name, help string, claim func() Claim) error {
			return to.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: name, Help: help, ConstLabels: prometheus.Labels{"kind": k.kind},
			}, func() float64 { return float64(k.of(claim())) }))
		}
		if err := gauge("dsec_capacity_total", "What is promised to sandboxes at most, by kind.", r.Total); err != nil {
			return fmt.Errorf("capacity metrics: %w", err)
		}
		if err := gauge("dsec_capacity_used", "What is promised to sandboxes, by kind.", r.Used); err != nil {
			return fmt.Errorf("capacity metrics: %w", err)
		}
	}
	return nil
}
