package sandboxcmd

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/libdsec"
)

func (a app) extendCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "extend [flags] SANDBOX TIME",
		Short: "Give a sandbox more time",
		Long: "Makes a sandbox's running time (ttl.running_s) last for at least TIME from now on. It never makes it shorter, and it\n" +
			"can't outlast the time that --max-life has set.",
		Example:           "  dsec sandbox extend SANDBOX 30m\n  dsec sandbox extend -o json SANDBOX 2h",
		Args:              cli.Exactly("SANDBOX", "TIME"),
		ValidArgsFunction: a.CompleteSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			var by time.Duration
			if err := (*cli.Seconds)(&by).Set(args[1]); err != nil {
				return api.FieldError(api.CodeInvalid, "TIME", "such as 90s or 2h", "%v", err)
			}
			return a.WithClient(func(c *libdsec.Client) error {
				info, err := c.Sandbox(args[0]).Extend(cmd.Context(), by)
				if err != nil {
					return err
				}
				if format == cli.FormatTable {
					return a.names([]api.Sandbox{info})
				}
				return a.sandbox(format, info)
			})
		},
	}
	cli.OutputFlag(cmd, &format)
	return cmd
}
