package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/show"
	"github.com/dsec-io/dsec/internal/doctor"
)

// jsonLine prints a value as one line.
func (a *app) jsonLine(v any) error {
	b, err := show.JSON(v, "")
	if err != nil {
		return err
	}
	return a.write(append(b, '\n'))
}

func (a *app) doctorCommand() *cobra.Command {
	var asJSON bool
	var data, images string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out what this machine can do for DSec",
		Long: "Tries each thing that DSec needs or can use, says what it found, and what to do about what's missing. What it\n" +
			"makes for a trial it removes. The exit code is 1 when something required is missing.",
		Example: "  dsec doctor\n  dsec doctor --json | jq '.checks[] | select(.status != \"ok\")'",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if data == "" {
				data = a.defaultDataDir()
			}
			report, err := probeMachine(cmd.Context(), doctor.Options{DataDir: data, ImageStore: images})
			if err != nil {
				return err
			}
			if asJSON {
				err = a.document(formatJSON, report)
			} else {
				err = a.table(func(w io.Writer) { printReport(w, report) })
			}
			if err == nil && !report.OK {
				err = &statusError{1}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	cmd.Flags().StringVar(&data, "data", "", "data folder that dsec dev would use")
	cmd.Flags().StringVar(&images, "images", "", "machine-wide image store (default /var/lib/dsec/images)")
	return cmd
}

func printReport(w io.Writer, r doctor.Report) {
	for _, c := range r.Checks {
		status := string(c.Status)
		if c.Required && c.Status == doctor.Missing {
			status = "MISSING"
		}
		row(w, status, c.Name, c.Found)
		if c.Fix != "" {
			row(w, "", "", "→ "+c.Fix)
		}
	}
}

// version is the module's version, as the build recorded it.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

func versionLine() string {
	return fmt.Sprintf("dsec %s %s/%s %s\n", version(), runtime.GOOS, runtime.GOARCH, runtime.Version())
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  dsec version",
		Args:    exactly(),
		RunE: func(*cobra.Command, []string) error {
			return a.write([]byte(versionLine()))
		},
	}
}

func (a *app) completionCommand() *cobra.Command {
	shells := []string{"bash", "zsh", "fish"}
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a script that completes commands, flags and sandbox ids",
		Example: "  source <(dsec completion bash)\n" +
			"  dsec completion zsh > \"${fpath[1]}/_dsec\"\n" +
			"  dsec completion fish > ~/.config/fish/completions/dsec.fish",
		Args:      exactly("SHELL"),
		ValidArgs: shells,
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(a.stdout, true)
			case "zsh":
				return root.GenZshCompletion(a.stdout)
			case "fish":
				return root.GenFishCompletion(a.stdout, true)
			}
			return api.FieldError(api.CodeInvalid, "", "use one of bash, zsh, fish", "no completion for %q", args[0])
		},
	}
}
