package main

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/cmd/dsec/show"
	"github.com/dsec-io/dsec/internal/transfer"
	"github.com/dsec-io/dsec/libdsec"
)

func (a *app) copyCommand() *cobra.Command {
	var user string
	cmd := &cobra.Command{
		Use:   "cp [flags] SOURCE DESTINATION",
		Short: "Copy files and directories into or out of a sandbox",
		Long: "One side is SANDBOX:PATH with an absolute path, the other a local path, or - for a tar stream on stdin or stdout.\n" +
			"A directory is copied with everything below it; what is in the destination already is merged with. As with cp, a\n" +
			"source goes into a destination that is a directory, under its own name; SOURCE/. is what is in it. What is made\n" +
			"in the sandbox belongs to its user (see --user); what is made here belongs to you.",
		Example: "  dsec sandbox cp ./project SANDBOX:/work\n  dsec sandbox cp SANDBOX:/work/result.json .\n" +
			"  tar c src | dsec sandbox cp - SANDBOX:/work\n  dsec sandbox cp SANDBOX:/work - | tar t",
		Args:              exactly("SOURCE", "DESTINATION"),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, to := parsePlace(args[0]), parsePlace(args[1])
			if (from.sandbox == "") == (to.sandbox == "") {
				return usageError(cmd, errors.New("exactly one side must be SANDBOX:PATH"))
			}
			return a.withClient(func(c *libdsec.Client) error {
				x := &transfer.Copy{Stdin: a.stdin, Stdout: a.stdout}
				defer a.progressOf(args[0], &x.Meter)()
				if to.sandbox != "" {
					return x.Upload(cmd.Context(), c.Sandbox(to.sandbox).Files().As(user), from.path, to.path)
				}
				return x.Download(cmd.Context(), c.Sandbox(from.sandbox).Files().As(user), from.path, to.path)
			})
		},
	}
	cmd.Flags().StringVarP(&user, "user", "u", "", "user of the sandbox who reads and writes there: NAME, UID, NAME:GROUP or UID:GID")
	return cmd
}

// filePlace is one side of a copy.
type filePlace struct{ sandbox, path string }

// parsePlace takes SANDBOX:PATH apart. A local path with a colon is written with a slash before it, as for scp.
func parsePlace(arg string) filePlace {
	id, p, ok := strings.Cut(arg, ":")
	if !ok || id == "" || strings.ContainsAny(id, "/.") {
		return filePlace{path: arg}
	}
	return filePlace{id, p}
}

// progressOf is [app.progress] with a meter.
func (a *app) progressOf(what string, m *transfer.Meter) (done func()) {
	if _, tty := terminal(a.stderr); !tty {
		return func() {}
	}
	stop := make(chan struct{})
	start := time.Now()
	var wg sync.WaitGroup
	wg.Go(func() {
		timer := time.NewTimer(progressDelay)
		defer timer.Stop()
		for shown := false; ; shown = true {
			select {
			case <-timer.C:
				fmt.Fprintf(a.stderr, "\r%s %s\x1b[K", show.Line(what), m.Line(time.Since(start)))
				timer.Reset(progressTick)
			case <-stop:
				if shown {
					fmt.Fprint(a.stderr, "\r\x1b[K")
				}
				return
			}
		}
	})
	return func() {
		close(stop)
		wg.Wait()
	}
}
