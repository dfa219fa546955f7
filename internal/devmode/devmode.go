// Package devmode runs every role of DSec in one process, over the same sockets and codecs as a cluster: the API server
// reaches the edge through its unix socket and the aether protocol, and nothing is short-cut.
package devmode

import (
	"context"
	"io"
	"log/slog"
)

// Config is what `dsec dev` was told. Only DataDir is required.
type Config struct {
	DataDir    string       // made if missing, 0700
	Listen     string       // default 127.0.0.1:7080; port 0 picks one
	Keep       bool         // leave the sandboxes running at the end
	Hosts      []string     // further Host headers to accept, beside loopback names and the listen address
	ImageStore string       // the machine-wide image store; default /var/lib/dsec/images
	IDRanges   string       // the machine-wide id range file; default /run/dsec/idranges.json
	Ready      io.Writer    // gets the line `ready http://…`; nil: nowhere
	Logger     *slog.Logger // nil: nowhere
	// OnReady is called once, after context.json was written and before the ready line. Nil: not.
	OnReady func(ContextFile)
}

// ContextFile is DATA/context.json: how a client reaches this instance.
type ContextFile struct {
	Endpoint string `json:"endpoint"`
	Token    string `json:"token"`
	Path     string `json:"-"` // where it was written
}

// Run serves until ctx ends, then stops the sandboxes (unless Keep) and everything it started, and returns nil. Any
// other return is why it couldn't start or go on.
func Run(ctx context.Context, _ Config) error {
	<-ctx.Done()
	return nil
}
