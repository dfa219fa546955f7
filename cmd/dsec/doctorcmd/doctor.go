package doctorcmd

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/internal/doctor"
)

func (a app) command() *cobra.Command {
	var asJSON bool
	var data, images string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out what this machine can do for DSec",
		Long: "Tries each thing that DSec needs or can use, says what it found, and what to do about what's missing. What it\n" +
			"makes for a trial it removes. The exit code is 1 when something required is missing.",
		Example: "  dsec doctor\n  dsec doctor --json | jq '.checks[] | select(.status != \"ok\")'",
		Args:    cli.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if data == "" {
				data = a.DefaultDataDir()
			}
			report, err := probeMachine(cmd.Context(), doctor.Options{DataDir: data, ImageStore: images})
			if err != nil {
				return err
			}
			if asJSON {
				err = a.Document(cli.FormatJSON, report)
			} else {
				err = a.Table(func(w io.Writer) { printReport(w, report) })
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
	cli.TakesFolder(cmd, "data", "images")
	return cmd
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
