// Package iamcmd is `dsec project`, `dsec token` and `dsec audit`: who may do what, and who did.
package iamcmd

import (
	"context"
	"iter"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/cmd/dsec/show"
	"github.com/dsec-io/dsec/libdsec"
)

// app is what the commands have to work with.
type app struct{ *cli.App }

// Commands returns `dsec project`, `dsec token` and `dsec audit`.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{app{a}.projectCommand(), app{a}.tokenCommand(), app{a}.auditCommand()}
}

// collect makes a list of what a listing yields; it is never nil, so that it's printed as a list.
func collect[T any](seq iter.Seq2[T, error], most int) ([]T, error) {
	list := []T{}
	for item, err := range seq {
		if err != nil {
			return nil, err
		}
		if list = append(list, item); most > 0 && len(list) == most {
			break
		}
	}
	return list, nil
}

// completion makes a completion of what find lists.
func (a app) completion(find func(context.Context, *libdsec.Client) ([]cobra.Completion, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return a.Live(cmd, args, find)
	}
}

// CompleteProject completes the name of a project.
func CompleteProject(a *cli.App) cobra.CompletionFunc {
	return app{a}.completion(func(ctx context.Context, c *libdsec.Client) ([]cobra.Completion, error) {
		list, err := collect(c.Projects(ctx), 0)
		names := make([]cobra.Completion, len(list))
		for i := range list {
			names[i] = show.Line(list[i].Name)
		}
		return names, err
	})
}

func (a app) completeToken() cobra.CompletionFunc {
	return a.completion(func(ctx context.Context, c *libdsec.Client) ([]cobra.Completion, error) {
		list, err := collect(c.Tokens(ctx, api.TokenQuery{}), 0)
		ids := make([]cobra.Completion, len(list))
		for i := range list {
			ids[i] = cobra.CompletionWithDesc(show.Line(list[i].ID), show.Line(list[i].Label))
		}
		return ids, err
	})
}

// first completes the first argument alone.
func first(fn cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return fn(cmd, args, typed)
	}
}

// scopeNames are the scopes as flags take them.
func scopeNames() []string {
	var names []string
	for _, s := range api.Scopes() {
		names = append(names, string(s))
	}
	return names
}
