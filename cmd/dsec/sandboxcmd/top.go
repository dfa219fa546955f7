package sandboxcmd

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/cmd/dsec/show"
	"github.com/dsec-io/dsec/libdsec"
)

// topFlags say what is listed and how often.
type topFlags struct {
	listFlags
	every  time.Duration
	lines  int
	sort   string
	format string
}

// usage is a sandbox with what it uses.
type usage struct {
	ID          string  `json:"id"`
	Image       string  `json:"image"`
	Cores       float64 `json:"cores"` // used on average, over the interval
	MemoryBytes int64   `json:"memory_bytes"`
	PIDs        int64   `json:"pids"`
	resources   api.Resources
	created     time.Time
}

func (a app) topCommand() *cobra.Command {
	f := topFlags{every: watchEvery, sort: "cpu"}
	orders := []string{"cpu", "memory", "pids"}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show which sandboxes use most",
		Long: "Shows the running sandboxes by what they use: processors on average over the interval, memory and processes. At a\n" +
			"terminal it goes on until Ctrl-C; elsewhere it measures once, for one interval, and lists all of them.",
		Example: "  dsec top\n  dsec top --sort memory -l team=rl\n  dsec top -o json --interval 5s",
		Args:    cli.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(orders, f.sort) {
				return api.FieldError(api.CodeInvalid, "--sort", "cpu, memory or pids", "can't sort by %q", f.sort)
			}
			return a.WithClient(func(c *libdsec.Client) error { return a.top(cmd.Context(), c, &f) })
		},
	}
	fs := cmd.Flags()
	fs.Var((*cli.Seconds)(&f.every), "interval", "measure over this time (2s, 1m)")
	fs.IntVarP(&f.lines, "lines", "n", 0, "at most so many sandboxes (default: what the terminal has room for, else all)")
	fs.StringVar(&f.sort, "sort", f.sort, "most of what comes first: cpu, memory or pids")
	cli.Complete(cmd, "sort", cobra.FixedCompletions(orders, cobra.ShellCompDirectiveNoFileComp))
	fs.StringArrayVarP(&f.labels, "label", "l", nil, "only those with this label `KEY=VALUE` (repeatable)")
	cli.OutputFlag(cmd, &f.format)
	return cmd
}

func (a app) top(ctx context.Context, c *libdsec.Client, f *topFlags) error {
	f.state = string(api.StateRunning)
	before, _, err := samples(ctx, c, &f.listFlags)
	if err != nil {
		return err
	}
	measure := func(ctx context.Context) error {
		now, list, err := samples(ctx, c, &f.listFlags)
		if err != nil {
			return err
		}
		used := usages(list, before, now, f.sort)
		before = now
		return a.usages(f, used)
	}
	fd, tty := cli.Terminal(a.Stdout)
	if err := cli.Rest(ctx, f.every); err != nil {
		return err
	}
	if !tty || f.format != cli.FormatTable {
		return measure(ctx)
	}
	if f.lines == 0 {
		f.lines = max(int(sizeOf(fd).Rows)-3, 1)
	}
	return a.Repeat(ctx, f.every, measure)
}

// samples measures every sandbox of a listing. One that has ended meanwhile has no sample.
func samples(ctx context.Context, c *libdsec.Client, f *listFlags) (map[string]*sample, []api.Sandbox, error) {
	list, err := f.list(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	ids := make([]string, len(list))
	for i := range list {
		ids[i] = list[i].ID
	}
	var mu sync.Mutex // guards all
	all := make(map[string]*sample, len(ids))
	for i, err := range each(ctx, ids, func(id string) error {
		m, err := c.Sandbox(id).Metrics(ctx)
		if err == nil {
			s := newSample(m)
			mu.Lock()
			all[id] = &s
			mu.Unlock()
		}
		return err
	}) {
		if err != nil && !api.IsCode(err, api.CodeNotFound) && !api.IsCode(err, api.CodeWrongState) && !api.IsCode(err, api.CodeSandboxDied) {
			return nil, nil, fmt.Errorf("measure %s: %w", ids[i], err)
		}
	}
	return all, list, nil
}

func usages(list []api.Sandbox, before, now map[string]*sample, order string) []usage {
	used := []usage{}
	for i := range list {
		sb := &list[i]
		s, last := now[sb.ID], before[sb.ID]
		if s == nil {
			continue
		}
		u := usage{
			ID: sb.ID, Image: sb.Spec.Image, MemoryBytes: s.memory, PIDs: s.pids, resources: sb.Spec.Resources, created: sb.CreatedAt,
		}
		if last != nil {
			u.Cores = s.cores(last)
		}
		used = append(used, u)
	}
	slices.SortStableFunc(used, func(x, y usage) int {
		byCPU, byMemory := cmp.Compare(y.Cores, x.Cores), cmp.Compare(y.MemoryBytes, x.MemoryBytes)
		switch order {
		case "memory":
			return cmp.Or(byMemory, byCPU)
		case "pids":
			return cmp.Or(cmp.Compare(y.PIDs, x.PIDs), byCPU, byMemory)
		}
		return cmp.Or(byCPU, byMemory)
	})
	return used
}

func (a app) usages(f *topFlags, used []usage) error {
	total := len(used)
	if f.lines > 0 && total > f.lines {
		used = used[:f.lines]
	}
	switch f.format {
	case cli.FormatName:
		var list []api.Sandbox
		for i := range used {
			list = append(list, api.Sandbox{ID: used[i].ID})
		}
		return a.names(list)
	case cli.FormatTable:
		return a.Table(func(w io.Writer) {
			fmt.Fprintln(w, "ID\tIMAGE\tCPU\tOF\tMEMORY\tOF\tPIDS\tAGE")
			for i := range used {
				u := &used[i]
				cli.Row(w, u.ID, u.Image, fmt.Sprintf("%.2f", u.Cores), cpuText(u.resources), show.Size(u.MemoryBytes), memoryText(u.resources),
					fmt.Sprint(u.PIDs), show.Age(u.created))
			}
			if len(used) < total {
				fmt.Fprintf(w, "%d of %d\n", len(used), total)
			}
		})
	}
	return a.Document(f.format, used)
}
