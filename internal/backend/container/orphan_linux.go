package container

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/chronus/orphan"
	"github.com/dsec-io/dsec/internal/edge"
)

// endOf is when a sandbox that is made now ends at the latest, whoever is there to end it; see record.State.
func endOf(ttl api.TTL) int64 {
	if ttl.MaxS == nil {
		return 0
	}
	return int64(orphan.Now() + time.Duration(*ttl.MaxS)*time.Second)
}

// whyGone asks a shard that an earlier process of this instance left whether it has ended a sandbox, and why.
func (b *Backend) whyGone(ctx context.Context, shard, id string) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := b.callConn(ctx, b.newShard(shard, "", false))
	if err != nil {
		return edge.ErrGone
	}
	defer func() { _ = conn.Close() }()
	body, err := aether.Unary(ctx, conn, aether.Open{Method: "ended"})
	if err != nil {
		return edge.ErrGone
	}
	var ended map[string]orphan.End
	if err := json.Unmarshal(body, &ended); err != nil {
		b.log.Warn("what a shard has ended can't be read", slog.String("shard", shard), slog.Any("err", err))
		return edge.ErrGone
	}
	if end, ok := ended[id]; ok {
		return &edge.GoneError{Reason: end.Reason}
	}
	return edge.ErrGone
}

// teachPause tells a shard that comes back without anything of what it had. It starts nothing in what is frozen, but it
// has to know, too.
func (x *box) teachPause(ctx context.Context, conn *aether.Conn) {
	paused, err := x.Paused()
	if err == nil && paused {
		_, err = aether.Unary(ctx, conn, aether.Open{Method: "box.pause", Sandbox: x.id, Project: x.st.Project, Body: []byte("1000")})
	}
	if err != nil {
		x.b.log.Warn("shard doesn't know that a sandbox is paused", slog.String("sandbox", x.id), slog.Any("err", err))
	}
}
