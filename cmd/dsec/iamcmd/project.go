package iamcmd

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/cmd/dsec/show"
	"github.com/dsec-io/dsec/libdsec"
)

func (a app) projectCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "project",
		Short:   "Create, list and delete projects",
		Long:    "A project is a tenant: its sandboxes and tokens know nothing of another's. The project default is always there.\nEvery command takes --project NAME to act in another one, if the token has a grant on it.",
		Example: "  dsec project create team-a\n  dsec token create --project team-a\n  dsec project ls",
		Args:    cli.Subcommand,
		RunE:    cli.Group,
	}
	cmd.AddCommand(a.createProject(), a.listProjects(), a.getProject(), a.removeProject())
	return cmd
}

func (a app) createProject() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "create NAME",
		Short:   "Make a project",
		Long:    "Makes a project and prints its name: 1 to 63 of a-z, 0-9 and '-', from a letter on.",
		Example: "  dsec project create team-a",
		Args:    cli.Exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.WithClient(func(c *libdsec.Client) error {
				made, err := c.CreateProject(cmd.Context(), api.ProjectSpec{Name: args[0]})
				if err != nil {
					return err
				}
				if format == cli.FormatTable {
					format = cli.FormatName
				}
				return a.project(format, made)
			})
		},
	}
	cli.OutputFlag(cmd, &format)
	return cmd
}

func (a app) listProjects() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the projects that the token may look at",
		Example: "  dsec project ls\n  dsec project ls -o name",
		Args:    cli.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.WithClient(func(c *libdsec.Client) error {
				list, err := collect(c.Projects(cmd.Context()), 0)
				if err != nil {
					return err
				}
				return cli.Listing[api.Project]{
					Header: "NAME\tAGE\tCREATED BY",
					Name:   func(p *api.Project) string { return p.Name },
					Row:    func(p *api.Project) []string { return []string{p.Name, show.Age(p.CreatedAt), p.CreatedBy} },
				}.Print(a.App, format, list)
			})
		},
	}
	cli.OutputFlag(cmd, &format)
	return cmd
}

func (a app) getProject() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:               "get PROJECT",
		Aliases:           []string{"inspect"},
		Short:             "Show a project",
		Example:           "  dsec project get team-a -o json",
		Args:              cli.Exactly("PROJECT"),
		ValidArgsFunction: first(CompleteProject(a.App)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.WithClient(func(c *libdsec.Client) error {
				got, err := c.Project(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				return a.project(format, got)
			})
		},
	}
	cli.OutputFlag(cmd, &format)
	return cmd
}

// project prints one project.
func (a app) project(format string, p api.Project) error {
	switch format {
	case cli.FormatName:
		return a.Write([]byte(show.Line(p.Name) + "\n"))
	case cli.FormatTable:
		return a.Table(func(w io.Writer) {
			cli.Row(w, "Name:", p.Name)
			if !p.CreatedAt.IsZero() {
				cli.Row(w, "Created:", show.Time(&p.CreatedAt))
				cli.Row(w, "By token:", p.CreatedBy)
			}
			if p.Deleting {
				cli.Row(w, "State:", "a deletion was broken off: repeat it")
			}
		})
	}
	return a.Document(format, p)
}

func (a app) removeProject() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:               "rm PROJECT",
		Aliases:           []string{"delete"},
		Short:             "Delete a project and revoke its tokens",
		Long:              "Deletes a project in which no sandbox lives, revokes its tokens, and takes the grants on it from other tokens. Its name\ncan't be taken again for an hour, as long as records of its sandboxes can be read.",
		Example:           "  dsec project rm team-a",
		Args:              cli.Exactly("PROJECT"),
		ValidArgsFunction: first(CompleteProject(a.App)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.WithClient(func(c *libdsec.Client) error {
				done, err := c.DeleteProject(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				if format == cli.FormatJSON || format == cli.FormatYAML {
					return a.Document(format, done)
				}
				if format == cli.FormatTable && done.RevokedTokens > 0 {
					fmt.Fprintf(a.Stderr, "%d tokens revoked\n", done.RevokedTokens)
				}
				return a.Write([]byte(show.Line(done.Name) + "\n"))
			})
		},
	}
	cli.OutputFlag(cmd, &format)
	return cmd
}
