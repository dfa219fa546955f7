package portcmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/libdsec"
)

func (a app) command() *cobra.Command {
	var address, format string
	cmd := &cobra.Command{
		Use:   "port-forward [flags] SANDBOX [LOCAL:]REMOTE...",
		Short: "Make ports of this machine lead to ports inside a sandbox",
		Long: "Listens on ports of this machine and connects whoever comes with a port inside the sandbox, where a program listens\n" +
			"on 127.0.0.1, ::1 or all addresses. Prints a line for each port and goes on until it's interrupted or the sandbox\n" +
			"ends. LOCAL is the same as REMOTE unless it's given; 0 is any that is free.",
		Example: "  dsec sandbox port-forward SANDBOX 8080\n" +
			"  dsec sandbox port-forward SANDBOX 15432:5432 0:8080\n" +
			"  dsec sandbox port-forward --address 0.0.0.0 SANDBOX 8080   # anybody who reaches this machine",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return cli.UsageError(cmd, fmt.Errorf("%s is missing", []string{"SANDBOX", "REMOTE"}[len(args)]))
			}
			return nil
		},
		ValidArgsFunction: a.CompleteSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			var all []*forward
			for _, word := range args[1:] {
				f, err := parse(word, address)
				if err != nil {
					return err
				}
				all = append(all, f)
			}
			return a.WithClient(func(c *libdsec.Client) error { return a.forward(cmd.Context(), c.Sandbox(args[0]), all, format) })
		},
	}
	cmd.Flags().StringVar(&address, "address", "127.0.0.1", "address of this machine to listen on: an `IP`")
	cli.Complete(cmd, "address", cobra.FixedCompletions([]string{"127.0.0.1", "::1", "0.0.0.0"}, cobra.ShellCompDirectiveNoFileComp))
	cli.OutputFlag(cmd, &format)
	return cmd
}

// forward is one port of this machine and where it leads.
type forward struct {
	local   string // where to listen
	remote  int
	ln      net.Listener
	address string // where it listens
}

// parse reads [LOCAL:]REMOTE.
func parse(word, address string) (*forward, error) {
	local, remote, both := strings.Cut(word, ":")
	if !both {
		local, remote = word, word
	}
	to, err := strconv.ParseUint(remote, 10, 16)
	if err != nil || to == 0 {
		return nil, api.FieldError(api.CodeInvalid, "", "write [LOCAL:]REMOTE; ports go from 1 to 65535", "%q isn't a port of a sandbox", word)
	}
	from, err := strconv.ParseUint(local, 10, 16)
	if err != nil {
		return nil, api.FieldError(api.CodeInvalid, "", "write [LOCAL:]REMOTE; 0 is any that is free", "%q isn't a port of this machine", word)
	}
	if net.ParseIP(address) == nil {
		return nil, api.FieldError(api.CodeInvalid, "--address", "127.0.0.1, ::1 or 0.0.0.0, for example", "%q isn't an IP address", address)
	}
	return &forward{local: net.JoinHostPort(address, strconv.FormatUint(from, 10)), remote: int(to)}, nil
}

// forward listens until ctx or the sandbox ends, which its error says.
func (a app) forward(ctx context.Context, sb *libdsec.Sandbox, all []*forward, format string) error {
	info, err := sb.Refresh(ctx)
	if err != nil {
		return err
	}
	if info.State.Ended() {
		return endedError(info)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	var lc net.ListenConfig
	for _, f := range all {
		if f.ln, err = lc.Listen(ctx, "tcp", f.local); err != nil {
			return api.FieldError(api.CodeConflict, "", "use another port of this machine: LOCAL:REMOTE, or 0:REMOTE for any", "%v", err)
		}
		context.AfterFunc(ctx, func() { f.ln.Close() }) // ctx ends with this function
		f.address = f.ln.Addr().String()
		if err := a.told(f, format); err != nil {
			return errors.Join(err, f.ln.Close())
		}
	}
	for _, f := range all {
		wg.Go(func() { a.accept(ctx, sb, f) })
	}
	wg.Go(func() { cancel(untilEnd(ctx, sb)) })
	<-ctx.Done()
	return context.Cause(ctx)
}

// told prints where a port leads.
func (a app) told(f *forward, format string) error {
	switch format {
	case cli.FormatJSON:
		return a.JSONLine(map[string]any{"address": f.address, "port": f.remote})
	case cli.FormatYAML:
		return a.Document(format, []map[string]any{{"address": f.address, "port": f.remote}})
	case cli.FormatName:
		return a.Write([]byte(f.address + "\n"))
	}
	return a.Write(fmt.Appendf(nil, "%s -> %d\n", f.address, f.remote))
}

// Pauses between two looks at a sandbox that can't be reached.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 3 * time.Second
)

// untilEnd returns when the sandbox has ended, and how. A server that is away for a while is none.
func untilEnd(ctx context.Context, sb *libdsec.Sandbox) error {
	since := int64(0)
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		for e, err := range sb.Events(ctx, libdsec.WatchOptions{Follow: true, Since: since}) {
			if err != nil {
				break
			}
			since, pause = e.Seq, firstPause
		}
		info, err := sb.Refresh(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case api.IsCode(err, api.CodeNotFound), api.IsCode(err, api.CodeUnauthenticated), api.IsCode(err, api.CodeForbidden):
			return err
		case err == nil && info.State.Ended():
			return endedError(info)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func endedError(info api.Sandbox) error {
	text := fmt.Sprintf("sandbox %s is %s", info.ID, info.State)
	if info.Reason != "" {
		text += ": " + info.Reason
	}
	return api.Errorf(api.CodeSandboxDied, "%s", text)
}
