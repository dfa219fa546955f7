package main

import (
	"errors"
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

// bareBash lets the script work where the package bash-completion isn't there: the words of the line are then found by
// its spaces, since bash's own also end at : and =.
const bareBash = `
__dsec_init_completion()
{
    COMPREPLY=()
    if declare -F _get_comp_words_by_ref >/dev/null 2>&1; then
        _get_comp_words_by_ref "$@" cur prev words cword
        return
    fi
    local line="${COMP_LINE:0:COMP_POINT}"
    read -ra words <<<"$line"
    [[ $line != *[[:space:]] ]] || words+=("")
    cword=$((${#words[@]} - 1))
    cur=${words[cword]}
    prev=${words[cword - 1]}
}
`

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
				return errors.Join(root.GenBashCompletionV2(a.Stdout, true), a.Write([]byte(bareBash)))
			case "zsh":
				return root.GenZshCompletion(a.Stdout)
			case "fish":
				return root.GenFishCompletion(a.Stdout, true)
			}
			return api.FieldError(api.CodeInvalid, "", "use one of bash, zsh, fish", "no completion for %q", args[0])
		},
	}
}
