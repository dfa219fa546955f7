package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/show"
	"github.com/dsec-io/dsec/libdsec"
)

// aliveLimit is how long a server may take to show that it's there.
const aliveLimit = 2 * time.Second

func (a *app) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show and choose the server that commands talk to",
		Long: "A context is a server's address and a token. Settings come from, in this order: --endpoint and --token;\n" +
			"DSEC_ENDPOINT and DSEC_TOKEN; the file that DSEC_CONTEXT names; the current context.",
		Example: "  dsec config show\n  dsec config contexts\n  dsec config use ./data/context.json",
		Args:    subcommand,
		RunE:    group,
	}
	cmd.AddCommand(a.configShowCommand(), a.contextsCommand(), a.useCommand())
	return cmd
}

// shownSettings are settings as they're printed: never with the token.
type shownSettings struct {
	Endpoint string `json:"endpoint"`
	Token    string `json:"token"` // "set" or "not set"
	Source   string `json:"source"`
	Folder   string `json:"folder"`
}

func (a *app) configShowCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "show",
		Short:   "Show the settings in force and where they come from",
		Example: "  dsec config show\n  dsec config show -o json",
		Args:    exactly(),
		RunE: func(*cobra.Command, []string) error {
			s, err := a.settings()
			if err != nil {
				return err
			}
			shown := shownSettings{Endpoint: s.Endpoint, Token: "not set", Source: s.Source, Folder: libdsec.UserContexts(a.getenv).Dir}
			if s.Token != "" {
				shown.Token = "set"
			}
			switch format {
			case formatName:
				return a.write([]byte(show.Line(s.Endpoint) + "\n"))
			case formatTable:
				return a.table(func(w io.Writer) {
					row(w, "Endpoint:", shown.Endpoint)
					row(w, "Token:", shown.Token)
					row(w, "From:", shown.Source)
					row(w, "Contexts in:", shown.Folder)
				})
			}
			return a.document(format, shown)
		},
	}
	outputFlag(cmd, &format)
	return cmd
}

// shownContext is a context in a listing.
type shownContext struct {
	Name     string `json:"name"`
	Current  bool   `json:"current"`
	Endpoint string `json:"endpoint,omitempty"`
	Problem  string `json:"problem,omitempty"`
}

func (a *app) contextsCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "contexts",
		Short:   "List the contexts",
		Example: "  dsec config contexts\n  dsec config contexts -o name",
		Args:    exactly(),
		RunE: func(*cobra.Command, []string) error {
			list, err := contexts(libdsec.UserContexts(a.getenv))
			if err != nil {
				return err
			}
			switch format {
			case formatName:
				for _, c := range list {
					fmt.Fprintln(a.stdout, c.Name)
				}
				return nil
			case formatTable:
				return a.table(func(w io.Writer) {
					fmt.Fprintln(w, "CURRENT\tNAME\tENDPOINT")
					for _, c := range list {
						mark := ""
						if c.Current {
							mark = "*"
						}
						row(w, mark, c.Name, c.Endpoint+c.Problem)
					}
				})
			}
			return a.document(format, list)
		},
	}
	outputFlag(cmd, &format)
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

func (a *app) useCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "use CONTEXT|FILE",
		Short: "Make a context the current one",
		Long: "Makes a context the current one: one of the list, or a context file such as the one that dsec dev writes to its\n" +
			"data folder, which is then added to the list.",
		Example: "  dsec config use dev\n  dsec config use ./data/context.json",
		Args:    exactly("CONTEXT"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			names, err := libdsec.UserContexts(a.getenv).Names()
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			return names, cobra.ShellCompDirectiveDefault
		},
		RunE: func(_ *cobra.Command, args []string) error {
			store := libdsec.UserContexts(a.getenv)
			if !strings.ContainsRune(args[0], filepath.Separator) {
				return store.Use(args[0])
			}
			if _, err := libdsec.ReadContextFile(args[0]); err != nil {
				return api.FieldError(api.CodeInvalid, "FILE", "dsec dev writes one to its data folder", "%v", err)
			}
			return adopt(store, args[0])
		},
	}
}

// adopt adds a context that follows a context file, and makes it current. Contexts of servers whose files are gone are
// forgotten on the way: nothing can come back there.
func adopt(store libdsec.Contexts, file string) error {
	abs, err := filepath.Abs(file)
	if err != nil {
		return fmt.Errorf("context file: %w", err)
	}
	if err := store.Prune(); err != nil {
		return err
	}
	name := contextNameFor(abs)
	if err := store.SaveFile(name, abs); err != nil {
		return err
	}
	return store.Use(name)
}

// contextNameFor names the context of a data folder after it.
func contextNameFor(file string) string {
	dir := filepath.Dir(file)
	return sanitised(filepath.Base(filepath.Dir(dir))+"-"+filepath.Base(dir)) + "-" + shortHash(dir)
}

// alive tells whether the server of the current context answers. Anything wrong on the way there means no.
func alive(ctx context.Context, store libdsec.Contexts) bool {
	name, err := store.Current()
	if err != nil || name == "" {
		return false
	}
	s, err := store.Read(name)
	if err != nil {
		return false
	}
	c, err := libdsec.New(libdsec.WithSettings(s))
	if err != nil {
		return false
	}
	defer c.Close() //nolint:errcheck // nothing was sent that could be lost
	ctx, cancel := context.WithTimeout(ctx, aliveLimit)
	defer cancel()
	return c.Healthy(ctx) == nil
}

// defaultDataDir is where dsec dev keeps its data unless told: in the user's state folder, or the machine's for a user
// without a home.
func (a *app) defaultDataDir() string {
	if dir := a.getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "dsec", "dev")
	}
	if home := a.getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", "dsec", "dev")
	}
	return filepath.Join(string(os.PathSeparator), "var", "lib", "dsec", "dev")
}
