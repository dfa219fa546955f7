package doctorcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/cmd/dsec/show"
	"github.com/dsec-io/dsec/internal/doctor"
)

func (a app) command() *cobra.Command {
	var asJSON, clean, kept bool
	var data, images, idRanges string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out what this machine can do for DSec",
		Long: "Tries each thing that DSec needs or can use, says what it found, and what to do about what's missing. What it\n" +
			"makes for a trial it removes. The exit code is 1 when something required is missing.\n\n" +
			"With --clean it tries nothing, but removes what instances have left that nobody serves any more: those whose data\n" +
			"folder is gone, and empty cgroups. Sandboxes that a dsec dev on the same data folder would take over (after --keep\n" +
			"or a crash) go on, unless --kept. Of an instance that is served nothing is touched.",
		Example: "  dsec doctor\n  dsec doctor --json | jq '.checks[] | select(.status != \"ok\")'\n  dsec doctor --clean",
		Args:    cli.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if data == "" {
				data = a.DefaultDataDir()
			}
			o := doctor.Options{DataDir: data, ImageStore: images, IDRanges: idRanges}
			switch {
			case clean:
				return a.clean(cmd.Context(), o, kept, asJSON)
			case kept:
				return cli.UsageError(cmd, errors.New("--kept says what --clean removes"))
			}
			report, err := probeMachine(cmd.Context(), o)
			if err != nil {
				return err
			}
			if asJSON {
				err = a.Document(cli.FormatJSON, report)
			} else if err = a.Table(func(w io.Writer) { printReport(w, report) }); err == nil {
				err = a.Write([]byte("\n" + verdict(report) + "\n"))
			}
			if err == nil && !report.OK {
				err = &cli.StatusError{Code: 1}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	cmd.Flags().StringVar(&data, "data", "", "data folder that dsec dev would use")
	cmd.Flags().StringVar(&images, "images", "", "machine-wide image store (default /var/lib/dsec/images)")
	cmd.Flags().StringVar(&idRanges, "id-ranges", "", "machine-wide file of id ranges (default /run/dsec/idranges.json)")
	cmd.Flags().BoolVar(&clean, "clean", false, "remove what instances have left that nobody serves")
	cmd.Flags().BoolVar(&kept, "kept", false, "with --clean: also sandboxes that could be taken over")
	cli.TakesFolder(cmd, "data", "images")
	cli.TakesFile(cmd, "id-ranges")
	return cmd
}

// clean removes leftovers and prints what they were, also when it fails halfway.
func (a app) clean(ctx context.Context, o doctor.Options, kept, asJSON bool) error {
	removed, err := cleanMachine(ctx, o, kept)
	if asJSON {
		if removed == nil {
			removed = []doctor.Leftover{}
		}
		return errors.Join(a.Document(cli.FormatJSON, removed), err)
	}
	for i := range removed {
		if err := a.Write([]byte("removed " + show.Line(removed[i].String()) + "\n")); err != nil {
			return err
		}
	}
	if len(removed) == 0 && err == nil {
		fmt.Fprintln(a.Stderr, "nothing to remove")
	}
	return err
}

// verdict sums a report up.
func verdict(r doctor.Report) string {
	var lacking []string
	less := 0
	for _, c := range r.Checks {
		switch {
		case c.Required && c.Status == doctor.Missing:
			lacking = append(lacking, c.Name)
		case c.Status != doctor.OK:
			less++
		}
	}
	if slices.Contains(lacking, "root") {
		return "dsec dev needs root, and only root can find out the rest: sudo dsec doctor"
	}
	text := "dsec dev runs on this machine"
	if len(lacking) > 0 {
		text = "dsec dev can't run on this machine: it lacks " + strings.Join(lacking, ", ")
	}
	if less > 0 {
		text += fmt.Sprintf("; of what it can do without, %d missing or degraded", less)
	}
	return text
}

func printReport(w io.Writer, r doctor.Report) {
	for _, c := range r.Checks {
		status := string(c.Status)
		if c.Required && c.Status == doctor.Missing {
			status = "MISSING"
		}
		cli.Row(w, status, c.Name, c.Found)
		if c.Fix != "" {
			cli.Row(w, "", "", "→ "+c.Fix)
		}
	}
}
