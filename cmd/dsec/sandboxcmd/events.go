package sandboxcmd

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/cmd/dsec/show"
	"github.com/dsec-io/dsec/libdsec"
)

// eventFlags say which events and how to show them.
type eventFlags struct {
	follow bool
	since  int64
	format string
}

func (f *eventFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&f.follow, "follow", "f", false, "go on with what happens")
	cli.OutputFlag(cmd, &f.format)
}

func (a app) eventsCommand() *cobra.Command {
	var w eventFlags
	cmd := &cobra.Command{
		Use:     "events",
		Short:   "Show what happened to all sandboxes of the project",
		Example: "  dsec events\n  dsec events --follow -o json",
		Args:    cli.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.WithClient(func(c *libdsec.Client) error {
				return a.events(c.Events(cmd.Context(), libdsec.WatchOptions{Follow: w.follow}), &w)
			})
		},
	}
	w.add(cmd)
	return cmd
}

// eventRow has columns of fixed widths, since an event is printed before the next one is known.
const eventRow = "%-25s  %-22s  %-12s  %s\n"

// eventDetails says what an event's type doesn't. How a command ended comes as it is told elsewhere: by its exit code, its
// signal, or why there's neither.
func eventDetails(e api.Event) string {
	var parts []string
	if e.Message != "" {
		parts = append(parts, e.Message)
	}
	for _, k := range slices.Sorted(maps.Keys(e.Data)) {
		v := e.Data[k]
		if exit, ok := v.(map[string]any); ok && k == "exit" {
			for _, name := range []string{"exit_code", "signal", "timed_out", "oom_killed", "infra_error"} {
				if v := exit[name]; v != nil && v != false {
					parts = append(parts, name+"="+show.Value(v))
				}
			}
			continue
		}
		parts = append(parts, k+"="+show.Value(v))
	}
	return strings.Join(parts, " ")
}

// events prints events as they come: JSON and YAML a document each, so that a reader needn't wait for the end.
func (a app) events(list iter.Seq2[api.Event, error], w *eventFlags) error {
	if w.format == cli.FormatTable {
		if err := a.Write(fmt.Appendf(nil, eventRow, "TIME", "SANDBOX", "EVENT", "DETAILS")); err != nil {
			return err
		}
	}
	for e, err := range list {
		if err == nil {
			err = a.event(w.format, e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (a app) event(format string, e api.Event) error {
	switch format {
	case cli.FormatName:
		return a.names([]api.Sandbox{{ID: e.Sandbox}})
	case cli.FormatTable:
		return a.Write(fmt.Appendf(nil, eventRow, e.Time.Local().Format(time.RFC3339), show.Line(e.Sandbox), show.Line(e.Type),
			show.Line(eventDetails(e))))
	case cli.FormatYAML:
		if err := a.Write([]byte("---\n")); err != nil {
			return err
		}
		return a.Document(format, e)
	}
	return a.JSONLine(e)
}
