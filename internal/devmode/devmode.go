// Package devmode runs every role of DSec in one process, over the same sockets and codecs as a cluster: the API server
// reaches the edge through its unix socket and the aether protocol, and nothing is short-cut. The only TCP listener is
// the API's.
//
// One data folder is one instance. What [Run] has started it takes down again in reverse, whichever step failed. After a
// kill -9 everything below the edge goes on, and the next Run on the same folder takes it over, with the same token.
package devmode

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/edge"
	"github.com/dsec-io/dsec/internal/fault"
	"github.com/dsec-io/dsec/internal/iam"
)

// Defaults of a [Config].
const (
	DefaultPool       = 16
	DefaultListen     = "127.0.0.1:7080"
	DefaultImageStore = "/var/lib/dsec/images"
)

// Names of files in the data folder.
const (
	contextName = "context.json"
	tokensName  = "tokens.json"
)

// Config is what `dsec dev` was told. Only DataDir is required.
type Config struct {
	DataDir    string        // made if missing, 0700
	Listen     string        // default 127.0.0.1:7080; port 0 picks one
	Keep       bool          // leave the sandboxes running at the end
	Hosts      []string      // further Host headers to accept, beside loopback names and the listen address
	Registries []string      // hosts, with the port where one is needed, that images may be pulled from and pushed to; none: any
	ImageStore string        // the machine-wide image store; default /var/lib/dsec/images
	IDRanges   string        // the machine-wide id range file; default /run/dsec/idranges.json
	PoolSize   int           // user namespaces kept ready per shard; 0: the default, negative: none
	Orphans    time.Duration // how long sandboxes go on when no edge looks after them; 0: the default, 1 h
	Capacity   edge.Capacity // what is promised to sandboxes in all; zero values: the edge's defaults
	Ready      io.Writer     // gets the line `ready http://…`; nil: nowhere
	Logger     *slog.Logger  // nil: nowhere
	// OnReady is called once, after context.json was written and before the ready line. Nil: not.
	OnReady func(ContextFile)
	// TestHooks gives aethers the methods by which tests disturb them; no program sets it.
	TestHooks bool
	// TestClock shifts the edge's wall clock, for tests of what must not depend on it.
	TestClock time.Duration
	// TestFaults is what tests make go wrong in the edge and its backend; no program sets it.
	TestFaults *fault.Set

	aether []byte // the program dsec-aether; nil: the embedded one
}

// ContextFile is DATA/context.json: how a client reaches this instance.
type ContextFile struct {
	Endpoint string `json:"endpoint"`
	Token    string `json:"token"`
	Path     string `json:"-"` // where it was written
}

func (c Config) withDefaults() (Config, error) {
	if c.DataDir == "" {
		return c, errors.New("no data folder")
	}
	c.Listen = cmp.Or(c.Listen, DefaultListen)
	c.ImageStore = cmp.Or(c.ImageStore, DefaultImageStore)
	c.PoolSize = cmp.Or(c.PoolSize, DefaultPool)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return c, api.FieldError(api.CodeInvalid, "--listen", "write HOST:PORT, such as "+DefaultListen, "%q is no address to listen on: %v", c.Listen, err)
	}
	return c, nil
}

// endpoint is where a client on this machine reaches a listener.
func endpoint(addr net.Addr) string {
	ap, err := netip.ParseAddrPort(addr.String())
	if err != nil || !ap.Addr().IsUnspecified() {
		return "http://" + addr.String()
	}
	host := "127.0.0.1"
	if ap.Addr().Is6() {
		host = "::1" // which a listener on :: takes whatever the system says of mapped addresses
	}
	return "http://" + net.JoinHostPort(host, fmt.Sprint(ap.Port()))
}

// oldToken is the token of an earlier run, so that its clients go on; "" where there is none to be read.
func oldToken(path string) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	var f ContextFile
	if err := json.Unmarshal(raw, &f); err != nil {
		return ""
	}
	return f.Token
}

func (f ContextFile) write() error {
	raw, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return fmt.Errorf("encode context: %w", err)
	}
	return iam.WriteFile(f.Path, append(raw, '\n'))
}
