package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/show"
)

// Output formats.
const (
	formatTable = "table"
	formatJSON  = "json"
	formatYAML  = "yaml"
	formatName  = "name"
)

// outputFlag adds -o to a command.
func outputFlag(cmd *cobra.Command, format *string) {
	formats := []string{formatTable, formatJSON, formatYAML, formatName}
	cmd.Flags().StringVarP(format, "output", "o", formatTable, "output format: "+strings.Join(formats, ", "))
	complete(cmd, "output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	check := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if !slices.Contains(formats, *format) {
			return api.FieldError(api.CodeInvalid, "--output", "use one of "+strings.Join(formats, ", "), "no output format %q", *format)
		}
		if check != nil {
			return check(cmd, args)
		}
		return nil
	}
}

// complete registers a flag's completion. It can only fail for a flag that isn't there.
func complete(cmd *cobra.Command, flag string, fn cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, fn); err != nil {
		panic(err)
	}
}

// document prints a value as JSON or YAML with the names of the REST interface.
func (a *app) document(format string, v any) error {
	doc, err := show.JSON(v, "  ")
	if err != nil {
		return err
	}
	if format == formatYAML {
		if doc, err = show.YAML(doc); err != nil {
			return err
		}
		return a.write(doc)
	}
	return a.write(append(doc, '\n'))
}

func (a *app) write(b []byte) error {
	if _, err := a.stdout.Write(b); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// sandboxes prints a listing.
func (a *app) sandboxes(format string, list []api.Sandbox) error {
	switch format {
	case formatName:
		return a.names(list)
	case formatTable:
		return a.table(func(w io.Writer) {
			fmt.Fprintln(w, "ID\tSTATE\tIMAGE\tCPU\tMEMORY\tAGE\tLABELS")
			for i := range list {
				sb := &list[i]
				row(w, sb.ID, string(sb.State), sb.Spec.Image, cpuText(sb.Spec.Resources), memoryText(sb.Spec.Resources),
					show.Age(sb.CreatedAt), show.Map(sb.Spec.Labels))
			}
		})
	}
	if list == nil {
		list = []api.Sandbox{}
	}
	return a.document(format, list)
}

// sandbox prints one sandbox.
func (a *app) sandbox(format string, sb api.Sandbox) error {
	switch format {
	case formatName:
		return a.names([]api.Sandbox{sb})
	case formatTable:
		return a.table(func(w io.Writer) {
			state := string(sb.State)
			if sb.Reason != "" {
				state += " (" + sb.Reason + ")"
			}
			for _, kv := range [][2]string{
				{"ID", sb.ID},
				{"State", state},
				{"Project", sb.Project},
				{"Image", sb.Spec.Image},
				{"Command", strings.Join(sb.Spec.Command, " ")},
				{"CPU", cpuText(sb.Spec.Resources)},
				{"Memory", memoryText(sb.Spec.Resources)},
				{"PIDs", numberText(sb.Spec.Resources.PIDs)},
				{"User", sb.Spec.User},
				{"Workdir", sb.Spec.Workdir},
				{"Hostname", sb.Spec.Hostname},
				{"Job", sb.Spec.Job},
				{"Labels", show.Map(sb.Spec.Labels)},
				{"Env", show.Map(sb.Spec.Env)},
				{"Created", show.Time(&sb.CreatedAt)},
				{"Ended", show.Time(sb.EndedAt)},
			} {
				if kv[1] != "" {
					row(w, kv[0]+":", kv[1])
				}
			}
		})
	}
	return a.document(format, sb)
}

func (a *app) names(list []api.Sandbox) error {
	var b strings.Builder
	for i := range list {
		b.WriteString(show.Line(list[i].ID) + "\n")
	}
	return a.write([]byte(b.String()))
}

func (a *app) table(fill func(io.Writer)) error {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 3, ' ', 0)
	fill(w)
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// row writes cells that came from outside.
func row(w io.Writer, cells ...string) {
	for i, c := range cells {
		cells[i] = show.Line(c)
	}
	fmt.Fprintln(w, strings.Join(cells, "\t"))
}

func cpuText(r api.Resources) string {
	if r.CPU == nil {
		return ""
	}
	return fmt.Sprintf("%g", *r.CPU)
}

func memoryText(r api.Resources) string {
	switch {
	case r.MemoryMB == nil:
		return ""
	case *r.MemoryMB%1024 == 0:
		return fmt.Sprintf("%dg", *r.MemoryMB/1024)
	}
	return fmt.Sprintf("%dm", *r.MemoryMB)
}

func numberText(n *int64) string {
	if n == nil {
		return ""
	}
	return fmt.Sprint(*n)
}
