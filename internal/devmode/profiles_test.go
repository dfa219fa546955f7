package devmode

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestServeProfiles: profiles of this process, for its owner alone, and no socket afterwards.
func TestServeProfiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pprof")
	// What a killed process leaves: a socket that nobody listens on.
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	stop, err := ServeProfiles(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v", st, err)
	}
	if _, err := ServeProfiles(t.Context(), path); err == nil || !strings.Contains(err.Error(), "somebody listens") {
		t.Errorf("a second server: %v", err)
	}
	var d net.Dialer
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", path) }}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://dsec/debug/pprof/goroutine?debug=2", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(b), "TestServeProfiles") {
		t.Errorf("goroutines: %d, %v, %.200s", res.StatusCode, err, b)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ServeProfiles(t.Context(), file); err == nil {
		t.Error("a file was replaced")
	}
}
