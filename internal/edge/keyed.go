package edge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/aether/unixfd"
	"github.com/dsec-io/dsec/internal/edge/disk"
	"github.com/dsec-io/dsec/internal/edge/idem"
	"github.com/dsec-io/dsec/internal/edge/instance"
)

// keyedCreate bounds a create under a key, which its caller's leaving doesn't end.
const keyedCreate = 2 * time.Minute

// openKeys makes what serves streams with an idempotency key. The sandboxes are known by now.
func (e *Edge) openKeys() error {
	keys, err := idem.Open(idem.Config{Dir: filepath.Join(e.cfg.Instance.DataDir, "keys"), Logger: e.log, Limits: e.cfg.Keys, Now: e.cfg.Clock, Disk: disk.Files{Faults: e.cfg.Faults}})
	if err != nil {
		return err
	}
	e.keyed = &idem.Server{
		Keys: keys, Maker: maker{e}, Life: e.life, Go: e.goTask, Dial: e.dialSelf,
		NewID: func() string { return "p" + instance.Random(processRandom) },
	}
	return keys.Settle(func(id string) bool {
		sb := e.boxes[id]
		return sb != nil && sb.view().StartedAt != nil
	})
}

// dialSelf connects to the edge's own socket.
func (e *Edge) dialSelf(ctx context.Context) (*aether.Conn, error) {
	t, err := unixfd.Dial(ctx, e.cfg.Instance.Socket(SocketName), unixfd.Options{})
	if err != nil {
		return nil, fmt.Errorf("dial own socket: %w", err)
	}
	return aether.Client(t, aether.Options{Name: "edge"})
}

func (e *Edge) closeKeys() error {
	if e.keyed == nil {
		return nil
	}
	return errors.Join(e.keyed.Close(), e.keyed.Keys.Close())
}

// maker makes sandboxes for requests with a key.
type maker struct{ e *Edge }

// Pick implements [idem.Maker].
func (m maker) Pick(ctx context.Context, project string, body []byte) string {
	want, err := api.Decode[api.Spec](body)
	if err != nil {
		return NewID(m.e.cfg.Home) // Make says what is wrong
	}
	return m.e.pick(ctx, project, want)
}

// Drop implements [idem.Maker].
func (m maker) Drop(id string) { m.e.drop(id) }

// Make implements [idem.Maker].
func (m maker) Make(ctx context.Context, project, id string, body []byte) error {
	ctx, cancel := context.WithTimeoutCause(ctx, keyedCreate, api.Errorf(api.CodeTimeout, "the sandbox wasn't ready within %v", keyedCreate))
	defer cancel()
	want, err := api.Decode[api.Spec](body)
	if err == nil {
		_, err = m.e.create(ctx, project, id, want)
	}
	return err
}

// Unmake implements [idem.Maker].
func (m maker) Unmake(ctx context.Context, project, id string) error {
	sb, err := m.e.find(project, id)
	if err == nil {
		_, err = m.e.stop(ctx, sb, "nobody waited for the answer to its creation")
	}
	return err
}

// Made implements [idem.Maker].
func (m maker) Made(project, id string) ([]byte, error) {
	sb, err := m.e.find(project, id)
	if err != nil {
		return nil, err
	}
	sb.mu.Lock()
	v := sb.rec.Birth()
	sb.mu.Unlock()
	return json.Marshal(v)
}

// keepBorn notes the spec that a sandbox was made with, before it is changed. What is changed next is saved with it.
func (sb *sandbox) keepBorn() {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.rec.Born == nil {
		born := sb.rec.Spec
		sb.rec.Born = &born
	}
}
