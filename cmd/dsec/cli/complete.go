package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/show"
	"github.com/dsec-io/dsec/libdsec"
)

// Collect lists the sandboxes that a listing is asked for.
func Collect(ctx context.Context, c *libdsec.Client, o libdsec.ListOptions) ([]api.Sandbox, error) {
	var list []api.Sandbox
	for sb, err := range c.List(ctx, o) {
		if err != nil {
			return nil, err
		}
		list = append(list, sb.Info())
	}
	return list, nil
}

// completionLimit bounds how long a shell waits for completions.
const completionLimit = time.Second

// Live asks the server for completions, for a short time, and leaves out what is among args already. A prompt is no place
// for an error: then there are none.
func (a *App) Live(cmd *cobra.Command, args []string, find func(context.Context, *libdsec.Client) ([]cobra.Completion, error)) ([]cobra.Completion, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionLimit)
	defer cancel()
	var found []cobra.Completion
	_ = a.WithClient(func(c *libdsec.Client) (err error) {
		found, err = find(ctx, c)
		return err
	})
	return slices.DeleteFunc(found, func(c cobra.Completion) bool {
		name, _, _ := strings.Cut(string(c), "\t")
		return slices.Contains(args, name)
	}), cobra.ShellCompDirectiveNoFileComp
}

// CompleteSandbox completes the id of one living sandbox.
func (a *App) CompleteSandbox(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.CompleteSandboxes(cmd, args, "")
}

// CompleteSandboxes completes ids that aren't there yet.
func (a *App) CompleteSandboxes(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.Live(cmd, args, func(ctx context.Context, c *libdsec.Client) (ids []cobra.Completion, err error) {
		list, err := Collect(ctx, c, libdsec.ListOptions{})
		for i := range list {
			if sb := &list[i]; !sb.State.Ended() {
				ids = append(ids, cobra.CompletionWithDesc(show.Line(sb.ID), show.Line(sb.Spec.Image+" "+string(sb.State))))
			}
		}
		return ids, err
	})
}

// CompleteImage completes the name of one image.
func (a *App) CompleteImage(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.CompleteImages(cmd, args, "")
}

// CompleteImages completes names that aren't there yet.
func (a *App) CompleteImages(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.Live(cmd, args, func(ctx context.Context, c *libdsec.Client) (names []cobra.Completion, err error) {
		list, err := c.Images().List(ctx)
		for i := range list {
			names = append(names, cobra.CompletionWithDesc(show.Line(list[i].Name), show.Size(list[i].SizeBytes)))
		}
		return names, err
	})
}

// CompleteProcess completes a living sandbox and then one of the commands that run in it.
func (a *App) CompleteProcess(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return a.CompleteSandbox(cmd, args, "")
	}
	return a.Live(cmd, nil, func(ctx context.Context, c *libdsec.Client) (ids []cobra.Completion, err error) {
		list, err := c.Sandbox(args[0]).Processes(ctx)
		for i := range list {
			if p := &list[i]; p.Running {
				ids = append(ids, cobra.CompletionWithDesc(show.Line(p.ID), show.Clip(show.Line(strings.Join(p.Argv, " ")))))
			}
		}
		return ids, err
	})
}

// CompleteContexts completes the name of a context.
func (a *App) CompleteContexts(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names, _ := libdsec.UserContexts(a.Getenv).Names() // a prompt is no place for an error
	return names, cobra.ShellCompDirectiveNoFileComp
}

// OnlyKnown makes shells offer files only where a command or a flag takes one: where it says so (see
// [cobra.Command.MarkFlagFilename]) or completes by itself. Call it when the tree of commands is whole.
func OnlyKnown(cmd *cobra.Command) {
	if cmd.ValidArgsFunction == nil && len(cmd.ValidArgs) == 0 && !cmd.HasSubCommands() {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		_, known := cmd.GetFlagCompletionFunc(f.Name)
		if known || f.NoOptDefVal != "" || takesFile(f) {
			return
		}
		Complete(cmd, f.Name, cobra.NoFileCompletions)
	})
	for _, sub := range cmd.Commands() {
		OnlyKnown(sub)
	}
}

func takesFile(f *pflag.Flag) bool {
	_, file := f.Annotations[cobra.BashCompFilenameExt]
	_, dir := f.Annotations[cobra.BashCompSubdirsInDir]
	return file || dir
}
