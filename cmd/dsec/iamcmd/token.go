package iamcmd

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/cmd/dsec/show"
	"github.com/dsec-io/dsec/libdsec"
)

func (a app) tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Create, list and revoke tokens",
		Long: "A token says who sends a request. It belongs to a project and may do there what its role and its scopes say:\n" +
			"  admin      everything; on one project: not what concerns the whole machine, such as importing images\n" +
			"  developer  sandboxes and what is in them, images to start from\n" +
			"  reader     what there is and how it is, nothing from inside a sandbox\n" +
			"Scopes: " + strings.Join(scopeNames()[:7], ", ") + ",\n" + strings.Join(scopeNames()[7:], ", ") + ".",
		Example: "  dsec token create --label ci\n  dsec token create --role reader --expires 24h\n  dsec token ls\n  dsec token revoke dsec_abc",
		Args:    cli.Subcommand,
		RunE:    cli.Group,
	}
	cmd.AddCommand(a.createToken(), a.listTokens(), a.revokeToken(), a.whoami())
	return cmd
}

// tokenFlags say what a token is made of.
type tokenFlags struct {
	label, role    string
	scopes, grants []string
	expires        time.Duration
}

func (f *tokenFlags) spec() (api.TokenSpec, error) {
	spec := api.TokenSpec{Label: f.label, Role: api.Role(f.role)}
	for _, s := range f.scopes {
		spec.Scopes = append(spec.Scopes, api.Scope(s))
	}
	for _, g := range f.grants {
		project, role, ok := strings.Cut(g, "=")
		if !ok || project == "" || role == "" {
			return spec, api.FieldError(api.CodeInvalid, "--grant", "write PROJECT=ROLE, or '*=ROLE' for every project", "%q isn't PROJECT=ROLE", g)
		}
		spec.Grants = append(spec.Grants, api.Grant{Project: project, Role: api.Role(role)})
	}
	if f.expires > 0 {
		spec.ExpiresIn = new(int64(math.Ceil(f.expires.Seconds())))
	}
	return spec, nil
}

func (a app) createToken() *cobra.Command {
	var f tokenFlags
	var format string
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a token and print its secret, once",
		Long: "Makes a token for the project that --project names, else for the one the own token belongs to, and prints its secret\n" +
			"alone on stdout. It can't be shown again: what is kept is a hash. A token can be given only what one has oneself.",
		Example: "  dsec token create --label ci > token\n  dsec token create --project team-a --role reader --expires 720h\n" +
			"  dsec token create --scope sandbox:read --scope audit:read\n  dsec token create --grant team-a=developer --grant team-b=reader",
		Args: cli.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format == cli.FormatName {
				return cli.UsageError(cmd, errors.New("with -o name the secret would be lost"))
			}
			spec, err := f.spec()
			if err != nil {
				return err
			}
			return a.WithClient(func(c *libdsec.Client) error {
				made, err := c.CreateToken(cmd.Context(), spec)
				if err != nil {
					return err
				}
				if format != cli.FormatTable {
					return a.Document(format, made)
				}
				if err := a.Write([]byte(show.Line(made.Secret) + "\n")); err != nil {
					return err
				}
				fmt.Fprintf(a.Stderr, "token %s of project %s: this is the only time that its secret is shown\n", show.Line(made.ID), show.Line(made.Project))
				return nil
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.label, "label", "", "what it is for, as listings show it")
	fs.StringVar(&f.role, "role", "", "admin, developer or reader (default developer, without scopes and grants)")
	fs.StringArrayVar(&f.scopes, "scope", nil, "allow `SCOPE`, besides what the role allows, if one is given (repeatable)")
	fs.StringArrayVar(&f.grants, "grant", nil, "allow what a role allows in another project: `PROJECT=ROLE` (repeatable)")
	fs.Var((*cli.Seconds)(&f.expires), "expires", "how long it is accepted (90s, 720h; default: until it's revoked)")
	cli.Complete(cmd, "role", cobra.FixedCompletions([]string{string(api.RoleAdmin), string(api.RoleDeveloper), string(api.RoleReader)}, cobra.ShellCompDirectiveNoFileComp))
	cli.Complete(cmd, "scope", cobra.FixedCompletions(scopeNames(), cobra.ShellCompDirectiveNoFileComp))
	cli.OutputFlag(cmd, &format)
	return cmd
}

func (a app) listTokens() *cobra.Command {
	var o api.TokenQuery
	var format string
	cmd := &cobra.Command{
		Use:     "ls [PREFIX]",
		Aliases: []string{"list"},
		Short:   "List tokens, never their secrets",
		Long:    "Lists the tokens of a project, those whose id or secret begins with PREFIX if one is given: a token's secret begins\nwith dsec_ and its id, so that a leaked one is found. The last use is exact to the minute.",
		Example: "  dsec token ls\n  dsec token ls dsec_ab\n  dsec token ls --all -o name",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return cli.UsageError(cmd, fmt.Errorf("unexpected argument %q", args[1]))
			}
			return nil
		},
		ValidArgsFunction: first(a.completeToken()),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				o.Prefix = args[0]
			}
			return a.WithClient(func(c *libdsec.Client) error {
				list, err := collect(c.Tokens(cmd.Context(), o), 0)
				if err != nil {
					return err
				}
				return a.tokens(format, list)
			})
		},
	}
	cmd.Flags().BoolVarP(&o.All, "all", "a", false, "of every project")
	cli.OutputFlag(cmd, &format)
	return cmd
}

// tokens prints a listing.
func (a app) tokens(format string, list []api.Token) error {
	return cli.Listing[api.Token]{
		Header: "ID\tPROJECT\tMAY\tAGE\tEXPIRES\tLAST USED\tLABEL",
		Name:   func(t *api.Token) string { return t.ID },
		Row: func(t *api.Token) []string {
			return []string{t.ID, t.Project, grantsText(t.Grants), show.Age(t.CreatedAt), expiryText(t), usedText(t), t.Label}
		},
	}.Print(a.App, format, list)
}

func grantsText(grants []api.Grant) string {
	var parts []string
	for _, g := range grants {
		words := []string{}
		if g.Role != "" {
			words = append(words, string(g.Role))
		}
		for _, s := range g.Scopes {
			words = append(words, string(s))
		}
		parts = append(parts, g.Project+"="+strings.Join(words, "+"))
	}
	return show.Clip(strings.Join(parts, " "))
}

func expiryText(t *api.Token) string {
	switch {
	case t.ExpiresAt.IsZero():
		return "never"
	case t.Expired:
		return "expired"
	}
	return "in " + time.Until(t.ExpiresAt).Round(time.Second).String()
}

func usedText(t *api.Token) string {
	if t.LastUsedAt.IsZero() {
		return "never"
	}
	if time.Since(t.LastUsedAt) < time.Minute {
		return "<1m ago" // it's kept to the minute
	}
	return show.Age(t.LastUsedAt) + " ago"
}

func (a app) revokeToken() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "revoke TOKEN",
		Aliases: []string{"rm", "delete"},
		Short:   "End a token at once",
		Long: "Ends a token, named by its id, by a beginning of it that no other token has, or by its secret (of which only the id is\n" +
			"sent). When the command returns, the token isn't accepted any more, and what was running for it has been cancelled.",
		Example:           "  dsec token revoke 543rzm5ytm\n  dsec token revoke dsec_543",
		Args:              cli.Exactly("TOKEN"),
		ValidArgsFunction: first(a.completeToken()),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.WithClient(func(c *libdsec.Client) error {
				gone, err := c.RevokeToken(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				if format == cli.FormatTable {
					format = cli.FormatName
				}
				if format == cli.FormatName {
					return a.tokens(format, []api.Token{gone})
				}
				return a.Document(format, gone)
			})
		},
	}
	cli.OutputFlag(cmd, &format)
	return cmd
}

func (a app) whoami() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "whoami",
		Short:   "Show the own token and what it may do",
		Example: "  dsec token whoami\n  dsec token whoami --project team-a",
		Args:    cli.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.WithClient(func(c *libdsec.Client) error {
				who, err := c.Self(cmd.Context())
				if err != nil {
					return err
				}
				switch format {
				case cli.FormatName:
					return a.Write([]byte(show.Line(who.Token.ID) + "\n"))
				case cli.FormatTable:
					return a.Table(func(w io.Writer) {
						cli.Row(w, "Token:", who.Token.ID)
						if who.Token.Label != "" {
							cli.Row(w, "Label:", who.Token.Label)
						}
						cli.Row(w, "Project:", who.Project)
						cli.Row(w, "Grants:", grantsText(who.Token.Grants))
						var may []string
						for _, s := range who.Scopes {
							may = append(may, string(s))
						}
						cli.Row(w, "May:", strings.Join(may, " "))
						cli.Row(w, "Expires:", expiryText(&who.Token))
					})
				}
				return a.Document(format, who)
			})
		},
	}
	cli.OutputFlag(cmd, &format)
	return cmd
}
