// Package rlcmd is `dsec rl`: it trains policies, tries them, and lists the environments. It needs no server.
//
// What is computed is rl/train's; here are flags, usual settings for each environment, and what is printed and written.
package rlcmd

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/rl/envs"
)

// Host is the program that the commands are part of.
type Host struct {
	Stdout, Stderr io.Writer
	Terminal       bool // Stdout is one
	// Route sends signals to handler, instead of ending the command, until the returned function is called.
	Route func(handler func(os.Signal)) (restore func())
	// Interrupted is the error of a command that a signal has ended.
	Interrupted func(os.Signal) error
}

// Command returns `dsec rl`.
func Command(h Host) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "rl",
		Short:   "Train and try policies on the built-in environments",
		Long:    "Trains policies by PPO on environments that run in this process, at memory speed. No server is needed.",
		Example: "  dsec rl envs\n  dsec rl train squared --out runs/squared\n  dsec rl eval squared --checkpoint runs/squared/checkpoint.safetensors",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return invalid("", "see `"+cmd.CommandPath()+" --help`", "unknown command %q", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(trainCommand(h), evalCommand(h), curvesCommand(h), envsCommand(h))
	return cmd
}

// oneEnv takes the name of an environment and nothing else.
func oneEnv(cmd *cobra.Command, args []string) error {
	hint := "`dsec rl envs` lists them"
	switch {
	case len(args) == 0:
		return api.FieldError(api.CodeInvalid, "", hint, "ENV is missing")
	case len(args) > 1:
		return api.FieldError(api.CodeInvalid, "", "see `"+cmd.CommandPath()+" --help`", "unexpected argument %q", args[1])
	}
	if _, err := envs.Maker(args[0]); err != nil {
		return api.FieldError(api.CodeInvalid, "", hint, "no environment %q", args[0])
	}
	return nil
}

func invalid(flag, hint, format string, args ...any) error {
	return api.FieldError(api.CodeInvalid, flag, hint, format, args...)
}

func completeEnvs(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return envs.Names(), cobra.ShellCompDirectiveNoFileComp
}

func wrote(err error) error {
	if err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}
