package configcmd

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/libdsec"
)

// maxToken is the most that is read of a token, in bytes.
const maxToken = 64 << 10

func (a app) useCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "use CONTEXT|FILE",
		Short: "Make a context the current one",
		Long: "Makes a context the current one: one of the list, or a context file such as the one that dsec dev writes to its\n" +
			"data folder, which is then added to the list.",
		Example: "  dsec config use dev\n  dsec config use ./data/context.json",
		Args:    cli.Exactly("CONTEXT"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
			names, directive := a.CompleteContexts(cmd, args, typed)
			if len(args) == 0 {
				directive = cobra.ShellCompDirectiveDefault // files too
			}
			return names, directive
		},
		RunE: func(_ *cobra.Command, args []string) error {
			store := libdsec.UserContexts(a.Getenv)
			if !strings.ContainsRune(args[0], filepath.Separator) {
				return store.Use(args[0])
			}
			if _, err := libdsec.ReadContextFile(args[0]); err != nil {
				return api.FieldError(api.CodeInvalid, "FILE", "dsec dev writes one to its data folder", "%v", err)
			}
			return cli.Adopt(store, args[0])
		},
	}
}

func (a app) createCommand() *cobra.Command {
	var fromStdin, replace, use bool
	cmd := &cobra.Command{
		Use:   "create [flags] CONTEXT",
		Short: "Add a context: a server's address and a token",
		Long: "Adds a context of the address that --endpoint names, and a token. With --token-stdin the token is read from stdin,\n" +
			"where neither the shell's history nor a process list shows it. The server isn't asked.",
		Example: "  dsec config create lab --endpoint http://10.0.0.7:7080 --token-stdin < token\n" +
			"  dsec config create lab --endpoint http://10.0.0.7:7080 --token TOKEN --use",
		Args:              cli.Exactly("CONTEXT"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			s := libdsec.Settings{Endpoint: a.Endpoint, Token: a.Token}
			switch {
			case s.Endpoint == "":
				return cli.UsageError(cmd, errors.New("--endpoint is missing"))
			case fromStdin == (s.Token != ""):
				return cli.UsageError(cmd, errors.New("a token is needed: give it on stdin with --token-stdin, or with --token"))
			}
			if fromStdin {
				var err error
				if s.Token, err = readToken(a.Stdin); err != nil {
					return err
				}
			}
			return a.create(args[0], s, replace, use)
		},
	}
	cmd.Flags().BoolVar(&fromStdin, "token-stdin", false, "read the token from stdin")
	cmd.Flags().BoolVar(&replace, "replace", false, "take the place of a context of that name")
	cmd.Flags().BoolVar(&use, "use", false, "make it the current context")
	return cmd
}

func (a app) create(name string, s libdsec.Settings, replace, use bool) error {
	c, err := libdsec.New(libdsec.WithSettings(s)) // which checks the address
	if err != nil {
		return err
	}
	if err := c.Close(); err != nil {
		return err
	}
	store := libdsec.UserContexts(a.Getenv)
	names, err := store.Names()
	if err != nil {
		return err
	}
	if !replace && slices.Contains(names, name) {
		return api.FieldError(api.CodeConflict, "", "say --replace", "there is a context %q", name)
	}
	if err := store.Save(name, s); err != nil {
		return err
	}
	if use {
		return store.Use(name)
	}
	return nil
}

func readToken(r io.Reader) (string, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxToken+1))
	token := strings.TrimSpace(string(b))
	switch {
	case err != nil:
		return "", fmt.Errorf("read the token: %w", err)
	case len(b) > maxToken, token == "", strings.ContainsAny(token, " \t\r\n\x00"):
		return "", api.FieldError(api.CodeInvalid, "--token-stdin", "one line with the token alone", "there is no token on stdin")
	}
	return token, nil
}

func (a app) removeCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "rm CONTEXT...",
		Aliases: []string{"delete"},
		Short:   "Forget contexts",
		Long:    "Forgets contexts and prints their names. Servers and their tokens stay as they are. If the current context is among\nthem, there's none afterwards.",
		Example: "  dsec config rm lab",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.UsageError(cmd, errors.New("CONTEXT is missing"))
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
			names, directive := a.CompleteContexts(cmd, nil, typed)
			return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(args, name) }), directive
		},
		RunE: func(_ *cobra.Command, args []string) error {
			store := libdsec.UserContexts(a.Getenv)
			for _, name := range args {
				if err := store.Remove(name); err != nil {
					return err
				}
				if err := a.Write([]byte(name + "\n")); err != nil {
					return err
				}
			}
			return nil
		},
	}
}
