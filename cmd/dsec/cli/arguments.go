package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/nearest"
)

// TakesCommand marks commands whose arguments are a name and then a command line of its own.
const TakesCommand = "takes-command"

// WithDash puts the "--" before CMD that `NAME CMD...` leaves away: flags may then stand before and after NAME, and
// everything from the first word of CMD on is its own, flags and a "--" included.
func WithDash(root *cobra.Command, args []string) []string {
	cmd, rest, err := root.Find(args)
	if err != nil || cmd.Annotations[TakesCommand] == "" {
		return args
	}
	flags := cmd.Flags()
	flags.AddFlagSet(cmd.InheritedFlags())
	named := false
	for i := 0; i < len(rest); i++ {
		switch word := rest[i]; {
		case word == "--":
			return args
		case strings.HasPrefix(word, "-") && word != "-":
			if wantsValue(flags, word) {
				i++
			}
		case named:
			return slices.Concat(strings.Fields(cmd.CommandPath())[1:], rest[:i], []string{"--"}, rest[i:])
		default:
			named = true
		}
	}
	return args
}

// wantsValue tells whether a flag's value is the next word.
func wantsValue(flags *pflag.FlagSet, word string) bool {
	if name, long := strings.CutPrefix(word, "--"); long {
		f := flags.Lookup(name) // nil for --name=value too
		return f != nil && f.NoOptDefVal == ""
	}
	for i, c := range word[1:] { // -itm 1g: the first that takes a value takes what is left, else the next word
		if c > '~' {
			return false
		}
		f := flags.ShorthandLookup(string(c))
		switch {
		case f == nil:
			return false
		case f.NoOptDefVal == "":
			return i == len(word)-2
		}
	}
	return false
}

// WithCommand checks "NAME [-- CMD...]".
func WithCommand(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 || cmd.ArgsLenAtDash() == 0 {
			return UsageError(cmd, fmt.Errorf("%s is missing", name))
		}
		return nil
	}
}

// CommandOf is the command after NAME.
func CommandOf(args []string) []string {
	if len(args) == 1 {
		return nil
	}
	return args[1:]
}

// Exactly is cobra.ExactArgs with a message that says what is missing.
func Exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return UsageError(cmd, fmt.Errorf("%s is missing", names[len(args)]))
		case len(args) > len(names):
			return UsageError(cmd, fmt.Errorf("unexpected argument %q", args[len(names)]))
		}
		return nil
	}
}

// Subcommand is the Args of a command that only groups others.
func Subcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("there is no command `%s %s`", cmd.CommandPath(), args[0])
	if meant := meantBy(cmd, args[0]); meant != "" {
		return api.FieldError(api.CodeInvalid, "", "did you mean `"+meant+"`?", "%v", err)
	}
	return UsageError(cmd, err)
}

// meantBy finds the command that was meant: of that name one level down, a sandbox's before others, or of nearly that
// name here.
func meantBy(cmd *cobra.Command, word string) string {
	isSandbox := func(c *cobra.Command) int {
		if c.Name() == "sandbox" {
			return 0
		}
		return 1
	}
	subs := slices.SortedStableFunc(slices.Values(cmd.Commands()), func(x, y *cobra.Command) int {
		return cmp.Compare(isSandbox(x), isSandbox(y))
	})
	for _, sub := range subs {
		for _, c := range slices.Concat([]*cobra.Command{sub}, sub.Commands()) {
			if slices.Contains(c.SuggestFor, word) { // what others call it
				return c.CommandPath()
			}
		}
	}
	for _, sub := range subs {
		for _, c := range sub.Commands() {
			if c.Name() == word || c.HasAlias(word) {
				return c.CommandPath()
			}
		}
	}
	cmd.SuggestionsMinimumDistance = min(2, len(word)/2) // of "ls" nothing is left when both letters may differ
	if near := cmd.SuggestionsFor(word); len(near) > 0 {
		slices.SortStableFunc(near, func(x, y string) int { // what begins as what was typed is nearest
			return cmp.Compare(strings.Index(word+" "+x, x), strings.Index(word+" "+y, y))
		})
		return cmd.CommandPath() + " " + near[0]
	}
	return ""
}

// Group is what a command that only groups others does.
func Group(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// FlagError is the error of a flag that is wrong; of one that there isn't it says which was meant.
func FlagError(cmd *cobra.Command, err error) error {
	if missing, ok := errors.AsType[*pflag.NotExistError](err); ok {
		if hint := flagMeantBy(cmd, missing.GetSpecifiedName()); hint != "" {
			return api.FieldError(api.CodeInvalid, "", hint, "%v", err)
		}
	}
	return UsageError(cmd, err)
}

// FlagHints marks a command with what to say of flags that others have for the like: "name=hint", one a line.
const FlagHints = "flag-hints"

// flagMeantBy says what to do instead of giving a flag that there isn't.
func flagMeantBy(cmd *cobra.Command, name string) string {
	for line := range strings.Lines(cmd.Annotations[FlagHints]) {
		if known, hint, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "="); known == name {
			return hint
		}
	}
	best, meant := min(2, len(name)/2)+1, ""
	if len(name) < 2 {
		return ""
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if d := nearest.Distance(name, f.Name); d < best && !f.Hidden {
			best, meant = d, f.Name
		}
	})
	if meant == "" {
		return ""
	}
	return "did you mean `--" + meant + "`?"
}

// UsageError is the error of a command line that is wrong; it says where help is.
func UsageError(cmd *cobra.Command, err error) error {
	return api.FieldError(api.CodeInvalid, "", "see `"+cmd.CommandPath()+" --help`", "%v", err)
}
