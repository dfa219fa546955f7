package main

import (
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"github.com/lmittmann/tint"
	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/devmode"
)

// devFlags are dsec dev's.
type devFlags struct {
	data      string
	listen    string
	keep      bool
	noContext bool
	hosts     []string
	images    string
	idRanges  string
	pool      int
	logLevel  string
	logFormat string
}

func (a *app) devCommand() *cobra.Command {
	var f devFlags
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole DSec on this machine",
		Long: "Runs the API server and an edge in one process, and prints `ready http://…` when it answers. It writes its\n" +
			"address and token to context.json in the data folder, and makes that the current context if there's none or its\n" +
			"server is dead. At the end (Ctrl-C) it stops its sandboxes, unless --keep. After a crash sandboxes go on, and the\n" +
			"next start with the same data folder finds them again.\n\nNeeds root on Linux; `dsec doctor` tells whether this machine will do.",
		Example: "  dsec dev\n  dsec dev --data /srv/dsec --listen 127.0.0.1:0 --no-context\n  dsec dev --keep      # sandboxes stay at the end",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			logger, err := a.logger(f.logLevel, f.logFormat)
			if err != nil {
				return err
			}
			return a.serveDev(cmd.Context(), &f, logger)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.data, "data", a.defaultDataDir(), "data folder; made if missing, used by one dsec dev at a time")
	fs.StringVar(&f.listen, "listen", "127.0.0.1:7080", "address to listen on; port 0 picks one")
	fs.BoolVar(&f.keep, "keep", false, "leave the sandboxes running at the end")
	fs.BoolVar(&f.noContext, "no-context", false, "never make this server the current context")
	fs.StringArrayVar(&f.hosts, "host", nil, "further host name to answer to (repeatable)")
	fs.StringVar(&f.images, "images", "", "machine-wide image store (default /var/lib/dsec/images)")
	fs.StringVar(&f.idRanges, "id-ranges", "", "machine-wide file of id ranges (default /run/dsec/idranges.json)")
	fs.IntVar(&f.pool, "pool", devmode.DefaultPool, "user namespaces and roots kept ready per shard; 0: none")
	addLogFlags(cmd, &f.logLevel, &f.logFormat)
	return cmd
}

func addLogFlags(cmd *cobra.Command, level, format *string) {
	cmd.Flags().StringVar(level, "log-level", "info", "debug, info, warn or error")
	cmd.Flags().StringVar(format, "log-format", "", "text or json (default: text at a terminal, else json)")
	complete(cmd, "log-level", cobra.FixedCompletions([]string{"debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp))
	complete(cmd, "log-format", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
}

// logger logs to stderr.
func (a *app) logger(level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, api.FieldError(api.CodeInvalid, "--log-level", "debug, info, warn or error", "no level %q", level)
	}
	_, tty := terminal(a.stderr)
	if format == "" {
		format = "json"
		if tty {
			format = "text"
		}
	}
	switch format {
	case "json":
		return slog.New(slog.NewJSONHandler(a.stderr, &slog.HandlerOptions{Level: l})), nil
	case "text":
		colour := tty && a.getenv("NO_COLOR") == ""
		return slog.New(tint.NewTextHandler(a.stderr, &tint.Options{Level: l, TimeFormat: time.TimeOnly, NoColor: !colour})), nil
	}
	return nil, api.FieldError(api.CodeInvalid, "--log-format", "text or json", "no format %q", format)
}

// sanitised makes a context's name of a folder's.
func sanitised(s string) string {
	s = regexp.MustCompile(`[^A-Za-z0-9._-]+`).ReplaceAllString(s, "-")
	s = strings.TrimLeft(s, ".-_")
	return s[:min(len(s), 40)]
}

func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:3])
}
