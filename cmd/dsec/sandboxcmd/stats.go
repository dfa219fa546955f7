package sandboxcmd

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/cmd/dsec/show"
	"github.com/dsec-io/dsec/libdsec"
)

// statsEvery is how often a sandbox's figures are asked for when they are followed.
const statsEvery = time.Second

func (a app) statsCommand() *cobra.Command {
	var format string
	var follow bool
	cmd := &cobra.Command{
		Use:   "stats [flags] SANDBOX",
		Short: "Show what a sandbox uses now",
		Long: "Shows what a sandbox uses and its limits. With --follow it prints a row each second until Ctrl-C; -o json and yaml\n" +
			"then print a document each time.",
		Example:           "  dsec sandbox stats SANDBOX\n  dsec sandbox stats -o json SANDBOX\n  dsec sandbox stats --follow SANDBOX",
		Args:              cli.Exactly("SANDBOX"),
		ValidArgsFunction: a.CompleteSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.WithClient(func(c *libdsec.Client) error {
				sb := c.Sandbox(args[0])
				if follow {
					return a.followStats(cmd.Context(), format, sb)
				}
				m, err := sb.Metrics(cmd.Context())
				if err != nil {
					return err
				}
				return a.stats(format, args[0], m)
			})
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "print them each second, until Ctrl-C")
	cli.OutputFlag(cmd, &format)
	return cmd
}

func (a app) stats(format, id string, m map[string]any) error {
	switch format {
	case cli.FormatName:
		return a.names([]api.Sandbox{{ID: id}})
	case cli.FormatTable:
		return a.Table(func(w io.Writer) {
			for _, k := range slices.Sorted(maps.Keys(m)) {
				cli.Row(w, k+":", show.Figure(k, m[k]))
			}
		})
	}
	return a.Document(format, m)
}

// statsRow has columns of fixed widths, since a row is printed before the next one is known.
const statsRow = "%-8s  %8s  %12s  %8s\n"

// followStats prints figures until the sandbox ends or ctx does. CPU is in cores, between one row and the next.
func (a app) followStats(ctx context.Context, format string, sb *libdsec.Sandbox) error {
	var before *sample
	return a.Every(ctx, statsEvery, func(ctx context.Context) error {
		m, err := sb.Metrics(ctx)
		if err != nil {
			return err
		}
		now := newSample(m)
		last := before
		before = &now
		switch format {
		case cli.FormatJSON:
			return a.JSONLine(m)
		case cli.FormatYAML:
			if err := a.Write([]byte("---\n")); err != nil {
				return err
			}
			return a.Document(format, m)
		case cli.FormatName:
			return a.stats(format, sb.ID(), m)
		}
		if last == nil {
			if err := a.Write(fmt.Appendf(nil, statsRow, "TIME", "CPU", "MEMORY", "PIDS")); err != nil {
				return err
			}
		}
		return a.Write(fmt.Appendf(nil, statsRow, now.at.Local().Format(time.TimeOnly), now.coresSince(last), show.Size(now.memory), fmt.Sprint(now.pids)))
	})
}

// sample is what a sandbox used at a time.
type sample struct {
	at     time.Time
	cpu    time.Duration
	memory int64 // bytes
	pids   int64
}

func newSample(m map[string]any) sample {
	number := func(name string) int64 {
		v, _ := m[name].(float64)
		return int64(v)
	}
	return sample{at: time.Now(), cpu: time.Duration(number("cpu_ns")), memory: number("memory_bytes"), pids: number("pids")}
}

// cores is how many processors were used on average since an earlier sample.
func (s *sample) cores(before *sample) float64 {
	took := s.at.Sub(before.at)
	if took <= 0 || s.cpu < before.cpu {
		return 0
	}
	return float64(s.cpu-before.cpu) / float64(took)
}

// coresSince is [sample.cores] as text; nothing without an earlier sample.
func (s *sample) coresSince(before *sample) string {
	if before == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f", s.cores(before))
}
