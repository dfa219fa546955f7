package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/cmd/dsec/cli"
)

// helpCommand is `dsec help`. Unlike cobra's own it fails for a command that isn't there, and says which was meant.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND...]",
		Short:   "Explain a command",
		Long:    "Explains a command, as --help after it does.",
		Example: "  dsec help\n  dsec help sandbox exec",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			found, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var names []cobra.Completion
			for _, sub := range found.Commands() {
				if sub.IsAvailableCommand() {
					names = append(names, cobra.CompletionWithDesc(sub.Name(), sub.Short))
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			found, rest, err := cmd.Root().Find(args)
			switch {
			case err != nil:
				return cli.UsageError(cmd, err)
			case len(rest) > 0 && found.HasAvailableSubCommands():
				return cli.Subcommand(found, rest)
			case len(rest) > 0:
				return cli.UsageError(found, fmt.Errorf("there is no command `%s %s`", found.CommandPath(), rest[0]))
			}
			found.InitDefaultHelpFlag() // so that it is listed
			return found.Help()
		},
	}
}
