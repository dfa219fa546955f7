package configcmd

import (
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/cmd/dsec/show"
	"github.com/dsec-io/dsec/libdsec"
)

func (a app) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show and choose the server that commands talk to",
		Long: "A context is a server's address and a token. Settings come from, in this order: --endpoint and --token;\n" +
			"DSEC_ENDPOINT and DSEC_TOKEN; the file that DSEC_CONTEXT names; the current context.",
		Example: "  dsec config show\n  eval \"$(dsec config env)\"\n  dsec config contexts\n  dsec config use ./data/context.json\n" +
			"  dsec config create lab --endpoint http://10.0.0.7:7080 --token-stdin --use < token",
		Args: cli.Subcommand,
		RunE: cli.Group,
	}
	cmd.AddCommand(a.configShowCommand(), a.envCommand(), a.contextsCommand(), a.useCommand(), a.createCommand(), a.removeCommand())
	return cmd
}

// shownSettings are settings as they're printed: never with the token.
type shownSettings struct {
	Endpoint string `json:"endpoint"`
	Token    string `json:"token"` // "set" or "not set"
	Source   string `json:"source"`
	Folder   string `json:"folder"`
}

func (a app) configShowCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "show",
		Short:   "Show the settings in force and where they come from",
		Example: "  dsec config show\n  dsec config show -o json",
		Args:    cli.Exactly(),
		RunE: func(*cobra.Command, []string) error {
			s, err := a.Settings()
			if err != nil {
				return err
			}
			shown := shownSettings{Endpoint: s.Endpoint, Token: "not set", Source: s.Source, Folder: libdsec.UserContexts(a.Getenv).Dir}
			if s.Token != "" {
				shown.Token = "set"
			}
			switch format {
			case cli.FormatName:
				return a.Write([]byte(show.Line(s.Endpoint) + "\n"))
			case cli.FormatTable:
				return a.Table(func(w io.Writer) {
					cli.Row(w, "Endpoint:", shown.Endpoint)
					cli.Row(w, "Token:", shown.Token)
					cli.Row(w, "From:", shown.Source)
					cli.Row(w, "Contexts in:", shown.Folder)
				})
			}
			return a.Document(format, shown)
		},
	}
	cli.OutputFlag(cmd, &format)
	return cmd
}

// envCommand prints the settings in force for a shell: for curl, and for programs that aren't dsec.
func (a app) envCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "env",
		Short: "Print the settings in force as shell variables, the token included",
		Long: "Prints DSEC_ENDPOINT and DSEC_TOKEN as a shell takes them, for curl and for other programs. The token is a secret:\n" +
			"whoever has it may do what it allows.",
		Example: "  eval \"$(dsec config env)\"\n" +
			"  curl -H \"Authorization: Bearer $DSEC_TOKEN\" $DSEC_ENDPOINT/v1/sandboxes",
		Args: cli.Exactly(),
		RunE: func(*cobra.Command, []string) error {
			s, err := a.Settings()
			if err != nil {
				return err
			}
			text := "export " + libdsec.EnvEndpoint + "=" + quoted(s.Endpoint) + "\n"
			if s.Token != "" {
				text += "export " + libdsec.EnvToken + "=" + quoted(s.Token) + "\n"
			}
			return a.Write([]byte(text))
		},
	}
}

// quoted is a word that a shell takes as it is.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// shownContext is a context in a listing.
type shownContext struct {
	Name     string `json:"name"`
	Current  bool   `json:"current"`
	Endpoint string `json:"endpoint,omitempty"`
	Problem  string `json:"problem,omitempty"`
}

func (a app) contextsCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "contexts",
		Aliases: []string{"ls", "list"},
		Short:   "List the contexts",
		Example: "  dsec config contexts\n  dsec config contexts -o name",
		Args:    cli.Exactly(),
		RunE: func(*cobra.Command, []string) error {
			list, err := contexts(libdsec.UserContexts(a.Getenv))
			if err != nil {
				return err
			}
			return cli.Listing[shownContext]{
				Header: "CURRENT\tNAME\tENDPOINT",
				Name:   func(c *shownContext) string { return c.Name },
				Row: func(c *shownContext) []string {
					mark := ""
					if c.Current {
						mark = "*"
					}
					return []string{mark, c.Name, c.Endpoint + c.Problem}
				},
			}.Print(a.App, format, list)
		},
	}
	cli.OutputFlag(cmd, &format)
	return cmd
}

func contexts(store libdsec.Contexts) ([]shownContext, error) {
	names, err := store.Names()
	if err != nil {
		return nil, err
	}
	current, err := store.Current()
	if err != nil {
		return nil, err
	}
	list := make([]shownContext, 0, len(names))
	for _, name := range names {
		c := shownContext{Name: name, Current: name == current}
		if s, err := store.Read(name); err != nil {
			c.Problem = err.Error()
		} else {
			c.Endpoint = s.Endpoint
		}
		list = append(list, c)
	}
	return list, nil
}
