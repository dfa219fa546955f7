package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/aether/unixfd"
)

// connect dials the shard, makes sure that it knows every sandbox of its, and declares it up.
func (sh *shard) connect(ctx context.Context) error {
	if err := sh.b.cfg.Faults.At("shard:connect"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	// The keeper holds the listening socket, so that this connects also while the shard is being restarted, and waits.
	if sh.isEnded() {
		return errShardEnded // its socket is gone for good
	}
	raw, err := unixfd.Dial(ctx, sh.socket(), unixfd.Options{})
	if err != nil {
		return fmt.Errorf("dial %s: %w", sh.name, err)
	}
	conn, err := aether.Client(raw, aether.Options{Name: "edge"})
	if err != nil {
		return fmt.Errorf("greet %s: %w", sh.name, err)
	}
	if err := sh.teach(ctx, conn); err != nil {
		return errors.Join(err, conn.Close())
	}
	sh.mu.Lock()
	ended := sh.ended
	if !ended {
		sh.conn, sh.up = conn, true
		sh.changeLocked()
	}
	sh.mu.Unlock()
	if ended {
		return errors.Join(errShardEnded, conn.Close())
	}
	return nil
}

var errShardEnded = errors.New("shard has been ended")

func (sh *shard) changeLocked() {
	close(sh.changed)
	sh.changed = make(chan struct{})
}

// teach tells the shard how long to go on alone, and gives it the sandboxes that it doesn't know.
func (sh *shard) teach(ctx context.Context, conn *aether.Conn) error {
	if limit := sh.b.cfg.OrphanLimit; limit > 0 {
		if _, err := aether.Unary(ctx, conn, aether.Open{Method: "orphan.limit", Body: []byte(limit.String())}); err != nil {
			return fmt.Errorf("tell %s how long to go on alone: %w", sh.name, err)
		}
	}
	sh.mu.Lock()
	boxes := make([]*box, 0, len(sh.boxes))
	for _, x := range sh.boxes {
		boxes = append(boxes, x)
	}
	sh.mu.Unlock()
	if len(boxes) == 0 {
		return nil
	}
	known, err := knownBoxes(ctx, conn)
	if err != nil {
		return fmt.Errorf("ask %s for its sandboxes: %w", sh.name, err)
	}
	for _, x := range boxes {
		if known[x.id] || x.isDead() {
			continue
		}
		if err := x.addTo(ctx, conn); err != nil {
			return err
		}
		x.teachPause(ctx, conn)
	}
	return nil
}

func knownBoxes(ctx context.Context, conn *aether.Conn) (map[string]bool, error) {
	body, err := aether.Unary(ctx, conn, aether.Open{Method: "boxes"})
	if err != nil {
		return nil, err
	}
	var names []string
	if err := json.Unmarshal(body, &names); err != nil {
		return nil, fmt.Errorf("list of sandboxes: %w", err)
	}
	known := make(map[string]bool, len(names))
	for _, n := range names {
		known[n] = true
	}
	return known, nil
}

// stayConnected connects again whenever the connection is lost, until the shard is ended or ctx is.
func (sh *shard) stayConnected(ctx context.Context) {
	for {
		sh.mu.Lock()
		conn, ended := sh.conn, sh.ended
		sh.mu.Unlock()
		if ended {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-conn.Done():
		}
		lost := time.Now()
		names := sh.down()
		if !sh.reconnect(ctx) {
			return
		}
		sh.pruneSoon()
		sh.b.log.Info("shard is back", slog.String("shard", sh.name), slog.Duration("after", time.Since(lost)))
		for _, n := range names {
			sh.b.notify(n, AetherBack)
		}
	}
}

// down declares the shard down and returns the sandboxes that were told.
func (sh *shard) down() []string {
	sh.mu.Lock()
	sh.up = false
	sh.changeLocked()
	ended := sh.ended
	var names []string
	for n := range sh.boxes {
		names = append(names, n)
	}
	sh.mu.Unlock()
	if ended {
		return nil
	}
	sh.b.log.Warn("shard is lost", slog.String("shard", sh.name))
	for _, n := range names {
		sh.b.notify(n, AetherLost)
	}
	return names
}

func (b *Backend) notify(id string, n Notice) {
	if b.cfg.Notify != nil {
		b.cfg.Notify(id, n, nil)
	}
}

// reconnect tries until it succeeds; false: not any more.
func (sh *shard) reconnect(ctx context.Context) bool {
	pause := redialPause
	for {
		err := sh.connect(ctx)
		switch {
		case err == nil:
			return true
		case ctx.Err() != nil, errors.Is(err, errShardEnded):
			return false
		}
		if pause == longestPause {
			sh.b.log.Warn("shard can't be reached", slog.String("shard", sh.name), slog.Any("err", err))
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return false
		case <-t.C:
		}
		pause = min(2*pause, longestPause)
	}
}

// connection returns the connection to the shard, waiting while it is being restarted.
func (sh *shard) connection(ctx context.Context) (*aether.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for {
		sh.mu.Lock()
		conn, up, ended, changed := sh.conn, sh.up, sh.ended, sh.changed
		sh.mu.Unlock()
		if ended {
			return nil, errShardEnded
		}
		if up && conn.Err() == nil {
			return conn, nil
		}
		if up {
			// stayConnected hasn't seen it yet.
			changed = nil
			select {
			case <-ctx.Done():
				return nil, fmt.Errorf("%s is down: %w", sh.name, context.Cause(ctx))
			case <-time.After(time.Millisecond):
				continue
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("%s is down: %w", sh.name, context.Cause(ctx))
		}
	}
}
