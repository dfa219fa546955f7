package sandboxcmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/libdsec"
)

// maxTail is the most that --tail keeps in memory; the server keeps little more of a log.
const maxTail = 8 << 20

func (a app) logsCommand() *cobra.Command {
	var o libdsec.WatchOptions
	var tail int
	cmd := &cobra.Command{
		Use:   "logs [flags] SANDBOX",
		Short: "Print the output of a sandbox's start process",
		Long: "Prints what the start process has written, as far as it's kept: its stdout here on stdout, its stderr on stderr.\n" +
			"A log has no times: --since counts bytes of stdout.",
		Example:           "  dsec sandbox logs SANDBOX\n  dsec sandbox logs -f --tail 20 SANDBOX\n  dsec sandbox logs --since 4096 SANDBOX",
		Args:              cli.Exactly("SANDBOX"),
		ValidArgsFunction: a.CompleteSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Since < 0 {
				return api.FieldError(api.CodeInvalid, "--since", "a number of bytes", "%d is negative", o.Since)
			}
			return a.WithClient(func(c *libdsec.Client) error {
				sb := c.Sandbox(args[0])
				if cmd.Flags().Changed("tail") {
					if tail < 0 {
						return api.FieldError(api.CodeInvalid, "--tail", "a number of lines", "%d is negative", tail)
					}
					return a.logsTail(cmd.Context(), sb, o, tail)
				}
				return a.logs(cmd.Context(), sb, o)
			})
		},
	}
	cmd.Flags().BoolVarP(&o.Follow, "follow", "f", false, "go on with what comes")
	cmd.Flags().Int64Var(&o.Since, "since", 0, "begin at this `BYTE` of stdout")
	cmd.Flags().IntVarP(&tail, "tail", "n", 0, "only the last `LINES` of stdout and of stderr (default: all)")
	return cmd
}

func (a app) logs(ctx context.Context, sb *libdsec.Sandbox, o libdsec.WatchOptions) error {
	for chunk, err := range sb.Logs(ctx, o) {
		if err != nil {
			return err
		}
		if err := a.logChunk(chunk.Stream, chunk.Data); err != nil {
			return err
		}
	}
	return nil
}

func (a app) logChunk(stream string, data []byte) error {
	out := a.Stdout
	if stream == "stderr" {
		out = a.Stderr
	}
	if _, err := out.Write(data); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// logsTail prints the last lines of each output, and follows from there if wanted.
func (a app) logsTail(ctx context.Context, sb *libdsec.Sandbox, o libdsec.WatchOptions, lines int) error {
	follow := o.Follow
	o.Follow = false
	stdout, stderr := tail{most: lines}, tail{most: lines}
	for chunk, err := range sb.Logs(ctx, o) {
		if err != nil {
			return err
		}
		end := chunk.Offset + int64(len(chunk.Data))
		if chunk.Stream == "stderr" {
			stderr.add(chunk.Data)
			o.SinceStderr = end
		} else {
			stdout.add(chunk.Data)
			o.Since = end
		}
	}
	err := errors.Join(a.logChunk("stdout", bytes.Join(stdout.lines, nil)), a.logChunk("stderr", bytes.Join(stderr.lines, nil)))
	if err != nil {
		return err
	}
	if !follow {
		return nil
	}
	o.Follow = true
	return a.logs(ctx, sb, o)
}

// tail keeps the last lines of a stream.
type tail struct {
	most  int
	size  int
	lines [][]byte // with their newlines, but for a last one that goes on
}

func (t *tail) add(data []byte) {
	for len(data) > 0 {
		line, rest := data, []byte(nil)
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			line, rest = data[:i+1], data[i+1:]
		}
		data = rest
		if last := len(t.lines) - 1; last >= 0 && !bytes.HasSuffix(t.lines[last], []byte("\n")) {
			t.lines[last] = append(t.lines[last], line...)
		} else {
			t.lines = append(t.lines, bytes.Clone(line))
		}
		t.size += len(line)
		for len(t.lines) > t.most || t.size > maxTail && len(t.lines) > 1 {
			t.size -= len(t.lines[0])
			t.lines = t.lines[1:]
		}
	}
}
