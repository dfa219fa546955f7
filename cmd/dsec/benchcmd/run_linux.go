package benchcmd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/internal/bench"
	"github.com/dsec-io/dsec/libdsec"
)

// bench runs a benchmark against the server of the current context, if that answers.
func (a app) bench(ctx context.Context, name string, f *benchFlags) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	o := bench.Options{
		Command: f.typed(name), N: f.n, Quick: f.quick, Concurrency: f.concurrency, Peers: f.peers, Sandboxes: f.sandboxes, MemoryMB: f.memoryMB,
		Originals: f.originals, Out: f.out, Profile: f.profile,
		Store: f.images, Self: self, Env: a.Env, Progress: a.Stderr,
	}
	if s, err := a.Settings(); err == nil && answers(ctx, s) {
		o.Endpoint, o.Token, o.Images = s.Endpoint, s.Token, ownImages(s.File)
	}
	doc, err := bench.Run(ctx, name, o)
	if err != nil {
		return err
	}
	if f.json {
		err = doc.WriteJSON(a.Stdout)
	} else {
		err = doc.WriteTable(a.Stdout)
	}
	if err == nil && doc.Failures() > 0 {
		err = &cli.StatusError{Code: 1}
	}
	return err
}

// answers tells whether there is a server behind settings.
func answers(ctx context.Context, s libdsec.Settings) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	c, err := libdsec.New(libdsec.WithSettings(s))
	if err != nil {
		return false
	}
	defer func() { _ = c.Close() }()
	return c.Healthy(ctx) == nil
}

// ownImages is the image folder of the data folder that a context file is in; empty when it isn't in one.
func ownImages(contextFile string) string {
	data := filepath.Dir(contextFile)
	if _, err := os.Stat(filepath.Join(data, "instance")); contextFile == "" || err != nil {
		return ""
	}
	return filepath.Join(data, "images")
}
