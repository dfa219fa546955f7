package main

import (
	"io"
	"iter"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/api"
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
	outputFlag(cmd, &f.format)
}

func (a *app) eventsCommand() *cobra.Command {
	var w eventFlags
	cmd := &cobra.Command{
		Use:     "events",
		Short:   "Show what happens to all sandboxes of the project",
		Example: "  dsec events\n  dsec events --follow -o json",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(func(c *libdsec.Client) error {
				return a.events(c.Events(cmd.Context(), libdsec.WatchOptions{Follow: w.follow}), &w)
			})
		},
	}
	w.add(cmd)
	return cmd
}

// events prints events as they come: JSON and YAML a document each, so that a reader needn't wait for the end.
func (a *app) events(list iter.Seq2[api.Event, error], w *eventFlags) error {
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

func (a *app) event(format string, e api.Event) error {
	switch format {
	case formatName:
		return a.names([]api.Sandbox{{ID: e.Sandbox}})
	case formatTable:
		return a.table(func(out io.Writer) {
			row(out, e.Time.Local().Format(time.RFC3339), e.Sandbox, e.Type, e.Message)
		})
	case formatYAML:
		if err := a.write([]byte("---\n")); err != nil {
			return err
		}
		return a.document(format, e)
	}
	return a.jsonLine(e)
}
