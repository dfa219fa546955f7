package devmode

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/pprof" // served on a socket that root alone may open, never by the API
	"os"
	"time"
)

// ServeProfiles serves this process's profiles (see [net/http/pprof]) on a Unix socket that its owner alone may open,
// until the returned function is called. A socket that nobody listens on any more is replaced, anything else isn't.
func ServeProfiles(ctx context.Context, path string) (stop func() error, err error) {
	if err := removeDeadSocket(ctx, path); err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("serve profiles: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("serve profiles: %w", err), ln.Close())
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1) // its result
	go func() { ended <- srv.Serve(ln) }()
	return func() error {
		err := srv.Close()
		if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		return err
	}, nil
}

// removeDeadSocket removes a socket that a process has left that was killed.
func removeDeadSocket(ctx context.Context, path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("serve profiles: %w", err)
	}
	if st.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("serve profiles: %s is there and isn't a socket", path)
	}
	var d net.Dialer
	if c, err := d.DialContext(ctx, "unix", path); err == nil {
		return errors.Join(fmt.Errorf("serve profiles: somebody listens on %s", path), c.Close())
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("serve profiles: %w", err)
	}
	return nil
}
