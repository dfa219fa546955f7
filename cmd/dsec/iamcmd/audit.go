package iamcmd

import (
	"fmt"
	"iter"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/cmd/dsec/show"
	"github.com/dsec-io/dsec/libdsec"
)

// shownRecords is how many records are shown unless more are asked for.
const shownRecords = 50

func (a app) auditCommand() *cobra.Command {
	var o api.AuditQuery
	var format, action, decision string
	var since time.Duration
	limit := shownRecords
	cmd := &cobra.Command{
		Use:   "audit [SANDBOX]",
		Short: "Show who did what, and what was refused",
		Long: "Shows the newest records of the audit log, the newest first: what changed something and what was refused, by time,\n" +
			"token, scope, what it was about, and what came of it. With SANDBOX only what was done to it.",
		Example: "  dsec audit\n  dsec audit --decision deny --since 1h\n  dsec audit --resource image/mine\n  dsec audit saaaaq2vwkg3mxjhfe7d4t",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return cli.UsageError(cmd, fmt.Errorf("unexpected argument %q", args[1]))
			}
			return nil
		},
		ValidArgsFunction: a.CompleteSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Action, o.Decision, o.Page = api.Scope(action), api.Decision(decision), min(limit, 1000)
			if since > 0 {
				o.Since = time.Now().Add(-since)
			}
			return a.WithClient(func(c *libdsec.Client) error {
				var records iter.Seq2[api.AuditRecord, error]
				if len(args) > 0 {
					records = c.Sandbox(args[0]).Audit(cmd.Context())
				} else {
					records = c.Audit(cmd.Context(), o)
				}
				list, err := collect(records, limit)
				if err != nil {
					return err
				}
				return a.records(format, list)
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&o.Token, "of", "", "only what this `TOKEN` did, by its id")
	fs.StringVar(&action, "action", "", "only what needed this `SCOPE`")
	fs.StringVar(&o.Resource, "resource", "", "only what was about this: sandbox/ID, image/NAME, token/ID or project/NAME")
	fs.StringVar(&decision, "decision", "", "only what was decided so: allow or deny")
	fs.StringVar(&o.Result, "result", "", "only what ended so: ok, or the code of an error")
	fs.Var((*cli.Seconds)(&since), "since", "only what isn't older (10m, 24h)")
	fs.BoolVarP(&o.All, "all", "a", false, "of every project")
	fs.IntVarP(&limit, "limit", "n", shownRecords, "how many records; 0: all")
	cli.Complete(cmd, "action", cobra.FixedCompletions(scopeNames(), cobra.ShellCompDirectiveNoFileComp))
	cli.Complete(cmd, "decision", cobra.FixedCompletions([]string{string(api.Allow), string(api.Deny)}, cobra.ShellCompDirectiveNoFileComp))
	cli.Complete(cmd, "of", a.completeToken())
	cli.OutputFlag(cmd, &format)
	return cmd
}

// records prints records; by name: their requests.
func (a app) records(format string, list []api.AuditRecord) error {
	return cli.Listing[api.AuditRecord]{
		Header: "TIME\tTOKEN\tPROJECT\tACTION\tRESOURCE\tDECISION\tRESULT\tREQUEST",
		Name:   func(r *api.AuditRecord) string { return r.RequestID },
		Row: func(r *api.AuditRecord) []string {
			return []string{show.Time(&r.Time), r.Token, r.Project, r.Action, r.Resource, string(r.Decision), r.Result, r.RequestID}
		},
	}.Print(a.App, format, list)
}
