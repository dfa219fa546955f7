package container_test

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsec-io/dsec/internal/backend/backendtest"
	"github.com/dsec-io/dsec/internal/backend/container"
	"github.com/dsec-io/dsec/internal/edge"
	"github.com/dsec-io/dsec/internal/fault"
	"github.com/dsec-io/dsec/internal/idrange"
	"github.com/dsec-io/dsec/internal/image"
	"github.com/dsec-io/dsec/internal/linux/cgroup"
	"github.com/dsec-io/dsec/internal/need"
)

// aether builds dsec-aether once: the tests are of this tree's, whatever `make build` embedded last.
var aether = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "aether")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "a"), "github.com/dsec-io/dsec/cmd/dsec-aether")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(dir, "a"))
})

// host is a data folder with its instance, on which backends follow each other.
type host struct {
	instance, data, run string
	pool                int
	newID               func() string // names what is made ahead; nil: nothing is
	spare               func() bool   // whether there is memory for it; nil: there is
	notify              func(string, container.Notice, map[string]any)

	mu  sync.Mutex // guards log
	log strings.Builder

	images string // "": the machine's store
	faults *fault.Set
	ids    *idrange.Allocator // of the latest backend
}

func newHost(t testing.TB, instance string, pool int) *host {
	t.Helper()
	need.Root(t)
	// Short, because of the sockets.
	run := filepath.Join("/run/dsec", instance)
	h := &host{instance: instance, data: t.TempDir(), run: run, pool: pool}
	t.Cleanup(func() {
		if err := cgroup.RemoveAll(context.Background(), instance); err != nil {
			t.Error(err)
		}
		if log, err := os.ReadFile(filepath.Join(run, "aether.log")); err == nil && t.Failed() {
			t.Logf("log of shards and keeper:\n%s", log)
		}
		if err := os.RemoveAll(run); err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h *host) open(t testing.TB) *container.Backend {
	t.Helper()
	if h.images == "" {
		h.images = filepath.Dir(need.Image(t, "busybox"))
	}
	program, err := aether()
	if err != nil {
		t.Fatal(err)
	}
	groups, err := cgroup.Open(h.instance)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { groups.Close() })
	ids, err := idrange.Open(t.Context(), idrange.Config{
		Instance: h.instance, DataDir: h.data,
	})
	if err != nil {
		t.Fatal(err)
	}
	h.ids = ids
	logger := slog.New(slog.NewTextHandler(io.MultiWriter(t.Output(), h), nil))
	b, err := container.New(t.Context(), container.Config{
		InstanceID: h.instance, DataDir: h.data, RunDir: h.run, IDs: ids, Cgroups: groups, Logger: logger, PoolSize: h.pool, NewID: h.newID, Spare: h.spare,
		Images: image.NewStore(logger, h.images), Aether: program, Notify: h.notify, Faults: h.faults,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Write keeps the backend's log.
func (h *host) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.log.Write(b)
}

// logged tells if the backend has said something.
func (h *host) logged(what string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Contains(h.log.String(), what)
}

// close closes a backend as the end of its process would.
func (h *host) close(t testing.TB, b *container.Backend) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := b.Close(ctx); err != nil {
		t.Errorf("Close() = %v", err)
	}
}

// left lists what is on disk for sandboxes. Removal goes on in the background for a moment.
func (h *host) left() ([]string, error) {
	deadline := time.Now().Add(time.Minute)
	for {
		names, err := filepath.Glob(filepath.Join(h.data, "upper", "*"))
		hidden, err2 := filepath.Glob(filepath.Join(h.data, "upper", ".*"))
		if err == nil {
			err = err2
		}
		if names = append(names, hidden...); err != nil || len(names) == 0 || time.Now().After(deadline) {
			return names, err
		}
	}
}

func TestConformance(t *testing.T) {
	for name, pool := range map[string]int{"without-pool": 0, "with-pool": 4} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, "k"+strconv.Itoa(os.Getpid())+"c", pool)
			backendtest.Run(t, backendtest.Node{
				Open:     func(t *testing.T) edge.Backend { return h.open(t) },
				Instance: h.instance, Image: "busybox", Left: h.left,
			})
		})
	}
}
