// Package state keeps the small and shared state of the control plane in etcd. It is the only room that talks to etcd;
// what is kept there, and what it means, is for others to say.
//
// A Store made by [New] runs an etcd of its own inside this process, for an instance of one machine. It is opened by
// the first call that needs it and by nothing else, so that an instance that never needs it never pays for it. It
// listens on unix sockets in a folder of mode 0700 and on nothing else. What [Store.Commit] has answered is on disk:
// it survives kill -9 and a loss of power.
//
// A Store is safe for concurrent use. A call that finds etcd broken fails when its context ends; the next
// opens it anew only if opening itself had failed, and not if its data were found broken.
package state

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Errors that callers branch on.
var (
	// ErrConflict says that a [Condition] of a transaction didn't hold: nothing was written.
	ErrConflict = errors.New("the state has changed meanwhile")
	// ErrCompacted says that the changes asked for are no longer kept: list anew.
	ErrCompacted = errors.New("older changes are no longer kept")
	// ErrClosed says that the store was closed.
	ErrClosed = errors.New("the state store is closed")
)

// callTime bounds a call whose context has no earlier end. A call on a healthy etcd takes a millisecond or two.
const callTime = 10 * time.Second

// Config says where a [Store] lives. DataDir and SocketDir are required.
type Config struct {
	DataDir   string       // of etcd alone; made when first needed, 0700
	SocketDir string       // for its sockets; made when first needed, 0700. At most 90 bytes long
	Logger    *slog.Logger // nil: nowhere
}

// Store is an etcd that is opened when it's first needed.
type Store struct {
	cfg  Config
	turn chan struct{} // holds one token: whoever has it may use the fields below

	server *server
	client *clientv3.Client
	broken error // why it isn't tried again
	closed bool
}

// New makes a Store and touches nothing.
func New(cfg Config) *Store {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Store{cfg: cfg, turn: make(chan struct{}, 1)}
	s.turn <- struct{}{}
	return s
}

// Exists tells whether there may be anything in the store: whether it was ever opened. It doesn't open it.
func (s *Store) Exists() bool {
	_, err := os.Stat(filepath.Join(s.cfg.DataDir, "member"))
	return err == nil
}

// open gives the client, after starting etcd where that hasn't been done.
func (s *Store) open(ctx context.Context) (*clientv3.Client, error) {
	select {
	case <-s.turn:
	case <-ctx.Done():
		return nil, fmt.Errorf("open state: %w", context.Cause(ctx))
	}
	defer func() { s.turn <- struct{}{} }()
	switch {
	case s.closed:
		return nil, ErrClosed
	case s.broken != nil:
		return nil, s.broken
	case s.client != nil:
		if s.broken = s.server.hasDied(); s.broken != nil {
			return nil, s.broken
		}
		return s.client, nil
	}
	begun := time.Now()
	srv, err := startServer(s.cfg)
	if err != nil {
		err = fmt.Errorf("open state: %w", err)
		if errors.Is(err, errBroken) {
			s.broken = err
		}
		return nil, err
	}
	client, err := srv.dial()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open state: %w", err), srv.stop())
	}
	s.server, s.client = srv, client
	s.cfg.Logger.Info("state opened", slog.Int64("ms", time.Since(begun).Milliseconds()))
	return client, nil
}

// Opened tells whether etcd runs.
func (s *Store) Opened() bool {
	<-s.turn
	defer func() { s.turn <- struct{}{} }()
	return s.client != nil
}

// Socket is where etcd answers once it runs.
func (s *Store) Socket() string { return filepath.Join(s.cfg.SocketDir, clientSocket) }

// Close stops etcd. Calls that are under way fail. A closed store isn't opened again.
func (s *Store) Close() error {
	<-s.turn
	defer func() { s.turn <- struct{}{} }()
	s.closed = true
	if s.client == nil {
		return nil
	}
	err := s.client.Close()
	if errors.Is(err, context.Canceled) {
		err = nil // that is how it says that it is closed
	}
	if s.broken == nil { // else it would wait for what has ended long ago
		err = errors.Join(err, s.server.stop())
	}
	s.client, s.server = nil, nil
	return err
}

// Entry is a key with its value. Revision is when it was last written.
type Entry struct {
	Key      string
	Value    []byte
	Revision int64
}

// List tells all entries whose keys begin with prefix, in the order of their keys, and the revision at which that was so.
func (s *Store) List(ctx context.Context, prefix string) ([]Entry, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	c, err := s.open(ctx)
	if err != nil {
		return nil, 0, err
	}
	got, err := c.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, 0, fmt.Errorf("list %s: %w", prefix, err)
	}
	list := make([]Entry, len(got.Kvs))
	for i, kv := range got.Kvs {
		list[i] = Entry{Key: string(kv.Key), Value: kv.Value, Revision: kv.ModRevision}
	}
	return list, got.Header.Revision, nil
}

// Condition demands that a key was last written at a revision; 0: that it isn't there.
type Condition struct {
	Key      string
	Revision int64
}

// Txn is written as a whole or not at all. It may have [MaxTxn] conditions, and as many writes.
type Txn struct {
	If     []Condition
	Put    []Entry // without Revision
	Delete []string
}

// MaxTxn is how many conditions a transaction may have, and how many writes.
const MaxTxn = 1000

// Commit writes t if all of its conditions hold, else it returns [ErrConflict]. When it returns a revision, all is on
// disk. After any other error it isn't known whether it was written.
func (s *Store) Commit(ctx context.Context, t Txn) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	c, err := s.open(ctx)
	if err != nil {
		return 0, err
	}
	conds := make([]clientv3.Cmp, len(t.If))
	for i, cond := range t.If {
		conds[i] = clientv3.Compare(clientv3.ModRevision(cond.Key), "=", cond.Revision)
	}
	ops := make([]clientv3.Op, 0, len(t.Put)+len(t.Delete))
	for _, e := range t.Put {
		ops = append(ops, clientv3.OpPut(e.Key, string(e.Value)))
	}
	for _, key := range t.Delete {
		ops = append(ops, clientv3.OpDelete(key))
	}
	got, err := c.Txn(ctx).If(conds...).Then(ops...).Commit()
	switch {
	case err != nil:
		return 0, fmt.Errorf("write state: %w", err)
	case !got.Succeeded:
		return 0, ErrConflict
	}
	return got.Header.Revision, nil
}

// Change is a write of an entry. Of a deleted one there is only the key and the revision.
type Change struct {
	Entry
	Deleted bool
}

// Watch tells every change of keys that begin with prefix after a revision, in order and none twice, until ctx ends or
// the store does. told gets the changes of one revision or of several, and the revision up to which they are complete.
func (s *Store) Watch(ctx context.Context, prefix string, after int64, told func(revision int64, changes []Change)) error {
	c, err := s.open(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(clientv3.WithRequireLeader(ctx))
	defer cancel(nil)
	for got := range c.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(after+1)) {
		if got.CompactRevision != 0 {
			return ErrCompacted
		}
		if err := got.Err(); err != nil {
			return fmt.Errorf("watch %s: %w", prefix, err)
		}
		changes := make([]Change, len(got.Events))
		for i, ev := range got.Events {
			changes[i] = Change{
				Entry:   Entry{Key: string(ev.Kv.Key), Value: ev.Kv.Value, Revision: ev.Kv.ModRevision},
				Deleted: ev.Type == clientv3.EventTypeDelete,
			}
		}
		told(got.Header.Revision, changes)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return ErrClosed
}
