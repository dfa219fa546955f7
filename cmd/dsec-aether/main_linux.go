// Command dsec-aether is what DSec runs beside sandboxes: the shard, which runs commands in them, and the keeper, the
// shards' parent. It isn't meant to be started by hand.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/internal/chronus"
	"github.com/dsec-io/dsec/internal/keeper"
)

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

func run(args []string, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprintln(stderr, "usage: dsec-aether keeper|shard [flags]")
		return 2
	}
	flags := flag.NewFlagSet("dsec-aether "+args[0], flag.ContinueOnError)
	flags.SetOutput(stderr)
	name := flags.String("name", "", "name of the shard or instance, for the log")
	empty := flags.String("empty", "", "keeper: directory that becomes the shards' root")
	hooks := flags.Bool("test-hooks", false, "shard: methods that tests use to disturb it")
	if err := flags.Parse(args[1:]); err != nil {
		return 2
	}
	logger := slog.New(slog.NewJSONHandler(stderr, nil)).With(slog.String("role", args[0]), slog.String("name", *name))
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	var err error
	switch args[0] {
	case "keeper":
		err = keeper.Run(ctx, keeper.Options{EmptyDir: *empty, Logger: logger})
	case "shard":
		err = chronus.Main(ctx, chronus.Options{Name: *name, Logger: logger, TestHooks: *hooks})
	default:
		fmt.Fprintf(stderr, "dsec-aether: unknown role %q\n", args[0])
		return 2
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		logger.Error("ended", slog.Any("err", err))
		return 1
	}
	return 0
}
