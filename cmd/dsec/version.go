package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
)

func versionLine() string {
	return fmt.Sprintf("dsec %s %s/%s %s\n", cli.Version(), runtime.GOOS, runtime.GOARCH, runtime.Version())
}

func versionCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  dsec version",
		Args:    cli.Exactly(),
		RunE: func(*cobra.Command, []string) error {
			return a.Write([]byte(versionLine()))
		},
	}
}

func completionCommand(a *cli.App) *cobra.Command {
	shells := []string{"bash", "zsh", "fish"}
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a script that completes commands, flags and sandbox ids",
		Example: "  source <(dsec completion bash)\n" +
			"  dsec completion zsh > \"${fpath[1]}/_dsec\"\n" +
			"  dsec completion fish > ~/.config/fish/completions/dsec.fish",
		Args:      cli.Exactly("SHELL"),
		ValidArgs: shells,
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(a.Stdout, true)
			case "zsh":
				return root.GenZshCompletion(a.Stdout)
			case "fish":
				return root.GenFishCompletion(a.Stdout, true)
			}
			return api.FieldError(api.CodeInvalid, "", "use one of bash, zsh, fish", "no completion for %q", args[0])
		},
	}
}
