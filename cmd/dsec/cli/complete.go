package cli

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

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
const completionLimit = 2 * time.Second

// CompleteSandbox completes the id of one living sandbox.
func (a *App) CompleteSandbox(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.CompleteSandboxes(cmd, args, "")
}

// CompleteSandboxes completes ids that aren't there yet.
func (a *App) CompleteSandboxes(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionLimit)
	defer cancel()
	var ids []cobra.Completion
	err := a.WithClient(func(c *libdsec.Client) error {
		list, err := Collect(ctx, c, libdsec.ListOptions{})
		for i := range list {
			if sb := &list[i]; !sb.State.Ended() && !slices.Contains(args, sb.ID) {
				ids = append(ids, cobra.CompletionWithDesc(show.Line(sb.ID), show.Line(sb.Spec.Image+" "+string(sb.State))))
			}
		}
		return err
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError | cobra.ShellCompDirectiveNoFileComp
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
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
	ctx, cancel := context.WithTimeout(cmd.Context(), completionLimit)
	defer cancel()
	var names []cobra.Completion
	err := a.WithClient(func(c *libdsec.Client) error {
		list, err := c.Images().List(ctx)
		for i := range list {
			if im := &list[i]; !slices.Contains(args, im.Name) {
				names = append(names, cobra.CompletionWithDesc(show.Line(im.Name), show.Size(im.SizeBytes)))
			}
		}
		return err
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError | cobra.ShellCompDirectiveNoFileComp
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
