package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/cmd/dsec/cli"
)

// referenceHead is what the reference says about all commands.
const referenceHead = `# The command line

Written by ` + "`go test ./cmd/dsec -run TestCommandReference -update`" + ` from the commands themselves; don't edit it.
` + "`dsec help COMMAND`" + ` says the same.

**Which server**: the flags ` + "`--endpoint` and `--token`, then `DSEC_ENDPOINT` and `DSEC_TOKEN`, then the file that `DSEC_CONTEXT`" + `
names, then the current context. A token of a context is only sent to that context's address.

**Output**: listings are tables; ` + "`-o json`, `-o yaml`" + ` (the names of the REST interface) and ` + "`-o name`" + ` (ids or names alone, one a
line) are for programs. What comes from outside is shown without control characters. Progress is for terminals only, on
stderr. ` + "`NO_COLOR`" + ` is obeyed.

**Errors** are one line on stderr, ` + "`dsec: …`, then `hint: …`" + ` where something can be done about it.

**Completion**: ` + "`source <(dsec completion bash)`" + `, or zsh, fish; ids, images, processes and contexts are those that there are now.

| exit code | meaning |
|---|---|
| 0 | done |
| the command's | of ` + "`run`, `exec`, `shell` and `attach`" + ` |
| 1 | of ` + "`doctor`: something required is missing; of `bench`: something failed" + ` |
| 124 | the command took longer than ` + "`--timeout`" + ` |
| 125 | DSec failed: its error is on stderr |
| 126 | the command can't be executed |
| 127 | the command isn't there |
| 128+n | the command was ended by signal n |
| 130 | interrupted (Ctrl-C) |
`

// TestCommandReference compares docs/cli.md with what the commands say of themselves; -update rewrites it.
func TestCommandReference(t *testing.T) {
	top := root(&cli.App{Env: []string{"HOME=/home/USER"}})
	var b strings.Builder
	b.WriteString(referenceHead)
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if !c.IsAvailableCommand() && c != top {
			return
		}
		reference(&b, c)
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(top)
	path := filepath.Join("..", "..", "docs", "cli.md")
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(have), b.String()); diff != "" {
		t.Errorf("%s isn't what the commands say (-has +says); run `go test ./cmd/dsec -run TestCommandReference -update`:\n%s", path, diff)
	}
}

// reference writes one command.
func reference(b *strings.Builder, c *cobra.Command) {
	fmt.Fprintf(b, "\n## %s\n\n", c.CommandPath())
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	fmt.Fprintf(b, "%s\n\n```\n%s\n```\n", text, c.UseLine())
	if len(c.Aliases) > 0 {
		fmt.Fprintf(b, "\nAlso: `%s`.\n", strings.Join(c.Aliases, "`, `"))
	}
	fmt.Fprintf(b, "\nExamples:\n\n```\n%s\n```\n", strings.TrimRight(unindented(c.Example), "\n"))
	c.InitDefaultHelpFlag()
	flags := c.LocalFlags()
	flags.Lookup("help").Hidden = true
	if usages := flags.FlagUsages(); usages != "" {
		fmt.Fprintf(b, "\nFlags:\n\n```\n%s```\n", usages)
	}
}

// unindented is a text without the two blanks before each line that cobra wants.
func unindented(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimPrefix(line, "  "))
	}
	return b.String()
}
