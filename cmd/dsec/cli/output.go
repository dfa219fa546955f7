package cli

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
	FormatTable = "table"
	FormatJSON  = "json"
	FormatYAML  = "yaml"
	FormatName  = "name"
)

// OutputFlag adds -o to a command.
func OutputFlag(cmd *cobra.Command, format *string) {
	formats := []string{FormatTable, FormatJSON, FormatYAML, FormatName}
	cmd.Flags().StringVarP(format, "output", "o", FormatTable, "output format: "+strings.Join(formats, ", "))
	Complete(cmd, "output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
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

// Complete registers a flag's completion. It can only fail for a flag that isn't there.
func Complete(cmd *cobra.Command, flag string, fn cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, fn); err != nil {
		panic(err)
	}
}

// TakesFile marks flags whose value is a file.
func TakesFile(cmd *cobra.Command, flags ...string) {
	for _, name := range flags {
		if err := cmd.MarkFlagFilename(name); err != nil {
			panic(err) // a flag that isn't there
		}
	}
}

// TakesFolder marks flags whose value is a folder.
func TakesFolder(cmd *cobra.Command, flags ...string) {
	for _, name := range flags {
		if err := cmd.MarkFlagDirname(name); err != nil {
			panic(err) // a flag that isn't there
		}
	}
}

// Document prints a value as JSON or YAML with the names of the REST interface.
func (a *App) Document(format string, v any) error {
	doc, err := show.JSON(v, "  ")
	if err != nil {
		return err
	}
	if format == FormatYAML {
		if doc, err = show.YAML(doc); err != nil {
			return err
		}
		return a.Write(doc)
	}
	return a.Write(append(doc, '\n'))
}

// Write prints on stdout.
func (a *App) Write(b []byte) error {
	if _, err := a.Stdout.Write(b); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// Table prints what fill writes as a table: cells end with tabs, rows with newlines (see [Row]).
func (a *App) Table(fill func(io.Writer)) error {
	w := tabwriter.NewWriter(a.Stdout, 0, 0, 3, ' ', 0)
	fill(w)
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// Row writes cells that came from outside.
func Row(w io.Writer, cells ...string) {
	for i, c := range cells {
		cells[i] = show.Line(c)
	}
	fmt.Fprintln(w, strings.Join(cells, "\t"))
}

// JSONLine prints a value as one line.
func (a *App) JSONLine(v any) error {
	b, err := show.JSON(v, "")
	if err != nil {
		return err
	}
	return a.Write(append(b, '\n'))
}
