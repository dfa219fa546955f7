package sandboxcmd

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/cmd/dsec/show"
	"github.com/dsec-io/dsec/libdsec"
)

func (a app) psCommand() *cobra.Command {
	var format string
	var all bool
	cmd := &cobra.Command{
		Use:   "ps [flags] SANDBOX",
		Short: "List the commands that run in a sandbox",
		Long: "Lists the commands that were started in a sandbox and run, not what they started; with --all also those that\n" +
			"ended and are still remembered. `dsec sandbox attach` connects to one.",
		Example:           "  dsec sandbox ps SANDBOX\n  dsec sandbox ps --all -o json SANDBOX",
		Args:              cli.Exactly("SANDBOX"),
		ValidArgsFunction: a.CompleteSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.WithClient(func(c *libdsec.Client) error {
				all, err := processes(cmd, c, args[0], all)
				if err != nil {
					return err
				}
				return a.processes(format, all)
			})
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also those that have ended")
	cli.OutputFlag(cmd, &format)
	return cmd
}

func processes(cmd *cobra.Command, c *libdsec.Client, sandbox string, all bool) ([]api.Process, error) {
	known, err := c.Sandbox(sandbox).Processes(cmd.Context())
	list := []api.Process{}
	for i := range known {
		if all || known[i].Running {
			list = append(list, known[i])
		}
	}
	return list, err
}

func (a app) processes(format string, list []api.Process) error {
	return cli.Listing[api.Process]{
		Header: "PROCESS\tPID\tSTATE\tAGE\tSESSION\tCOMMAND",
		Name:   func(p *api.Process) string { return p.ID },
		Row: func(p *api.Process) []string {
			pid := ""
			if p.PID > 0 {
				pid = fmt.Sprint(p.PID)
			}
			return []string{p.ID, pid, processState(p), show.Age(p.StartedAt), p.Session, show.Clip(strings.Join(p.Argv, " "))}
		},
	}.Print(a.App, format, list)
}

// processState is how a process is, or how it ended.
func processState(p *api.Process) string {
	switch {
	case p.Running:
		return "running"
	case p.Exit == nil:
		return "ended"
	case p.Exit.TimedOut:
		return "timed out"
	case p.Exit.ExitCode != nil:
		return fmt.Sprintf("exit %d", *p.Exit.ExitCode)
	case p.Exit.Signal != "":
		return p.Exit.Signal
	}
	return "unknown"
}
