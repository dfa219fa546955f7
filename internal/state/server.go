package state

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
)

// Names of the sockets.
const (
	clientSocket = "c.sock"
	peerSocket   = "p.sock"
)

const (
	// startTime bounds a start; it usually takes a fifth of a second.
	startTime = 30 * time.Second
	// stopTime bounds an end, which takes a few milliseconds.
	stopTime = 10 * time.Second
	// maxSocketPath is what the kernel takes (108 bytes), with some room.
	maxSocketPath = 100
	// A single member elects itself after one election time, so that is the time that opening takes.
	tickMS, electionMS = 20, 200
	// keptRevisions is how far back a watcher may lag before it has to list anew.
	keptRevisions = "1000"
	maxBackend    = 256 << 20 // bytes; what is kept here is small
	// logSegment is what the write-ahead log takes at a time: twice that is on disk from the start. etcd's default of
	// 64 MB is for clusters.
	logSegment = 4 << 20
	// logAfter is how many entries are kept in memory before they are only in the database.
	logAfter = 2000
)

// server is an etcd in this process.
type server struct {
	etcd   *embed.Etcd
	client url.URL
	log    *zap.Logger
	dead   <-chan string // tells why etcd has given up

	closing atomic.Bool
}

// privateFolder makes a folder that nobody else may enter, or makes one that is there so.
func privateFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.Chmod(dir, 0o700)
}

// config is etcd's, for a cluster of one member that nobody else knows.
func config(cfg Config) (*embed.Config, error) {
	dir, err := filepath.Abs(cfg.SocketDir)
	if err != nil {
		return nil, err
	}
	client, peer := filepath.Join(dir, clientSocket), filepath.Join(dir, peerSocket)
	if len(client) >= maxSocketPath {
		return nil, fmt.Errorf("socket %s: the path is over %d bytes", client, maxSocketPath)
	}
	c := embed.NewConfig()
	c.Name, c.Dir = "dsec", cfg.DataDir
	c.ListenClientUrls = []url.URL{{Scheme: "unix", Path: client}}
	c.AdvertiseClientUrls = c.ListenClientUrls
	// For clients etcd listens on host and path, for peers on the host alone: with a path alone that would be a socket
	// of the abstract kind, which no folder protects.
	c.ListenPeerUrls = []url.URL{{Scheme: "unix", Host: peer}}
	// Nobody calls it, and it is in the data for good, so it doesn't name a folder, which may be moved.
	c.AdvertisePeerUrls = []url.URL{{Scheme: "unix", Path: "/dsec-peer"}}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.EnableGRPCGateway = false
	c.TickMs, c.ElectionMs = tickMS, electionMS
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModeRevision, keptRevisions
	c.QuotaBackendBytes = maxBackend
	c.MaxTxnOps = MaxTxn
	c.SnapshotCount, c.SnapshotCatchUpEntries = logAfter, logAfter
	return c, nil
}

// startServer starts etcd and waits until it answers.
func startServer(cfg Config) (*server, error) {
	if wal.SegmentSizeBytes != logSegment {
		wal.SegmentSizeBytes = logSegment // a setting of the whole process; only the first start finds it otherwise
	}
	c, err := config(cfg)
	if err == nil {
		err = errors.Join(privateFolder(cfg.DataDir), privateFolder(filepath.Dir(c.ListenClientUrls[0].Path)))
	}
	if err != nil {
		return nil, err
	}
	s := &server{client: c.ListenClientUrls[0]}
	log, dead := quietLogger(cfg.Logger, &s.closing)
	s.log, s.dead = log, dead
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(s.log)
	if s.etcd, err = startEtcd(c, dead); err != nil {
		return nil, err
	}
	select {
	case <-s.etcd.Server.ReadyNotify():
		return s, nil
	case <-s.etcd.Server.StopNotify():
		err = errors.New("etcd has stopped by itself")
	case err = <-s.etcd.Err():
	case why := <-dead:
		return nil, fmt.Errorf("%w: %s", errBroken, why) // and stopping it might wait for ever
	case <-time.After(startTime):
		err = fmt.Errorf("etcd isn't ready after %s", startTime)
	}
	return nil, errors.Join(err, s.stop())
}

// startEtcd starts etcd. Where it finds its data broken, etcd would end the process, from any of its goroutines; of the
// others some would then wait for ever. So the whole start is a goroutine that is left where it is if that happens.
func startEtcd(c *embed.Config, dead <-chan string) (*embed.Etcd, error) {
	type result struct {
		e   *embed.Etcd
		err error
	}
	started := make(chan result, 1) // so that nobody has to be there
	go func() {
		e, err := embed.StartEtcd(c)
		started <- result{e, err}
	}()
	var err error
	select {
	case r := <-started:
		if r.err == nil {
			return r.e, nil
		}
		err = r.err
	case why := <-dead:
		err = fmt.Errorf("%w: %s", errBroken, why)
	case <-time.After(startTime):
		err = fmt.Errorf("%w: it hasn't started after %s", errBroken, startTime)
	}
	return nil, fmt.Errorf("start etcd in %s: %w", c.Dir, err)
}

// errBroken says that etcd gave up. It may hold files and memory, so it isn't tried again in this process.
var errBroken = errors.New("etcd can't use its data")

func (s *server) dial() (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{s.client.String()}, DialTimeout: startTime, Logger: s.log})
}

// hasDied tells why etcd has given up since it was started, as on a full disk; nil: it hasn't. It tells it once.
func (s *server) hasDied() error {
	select {
	case why := <-s.dead:
		return fmt.Errorf("%w: %s; it's tried again at the next start of this server", errBroken, why)
	default:
		return nil
	}
}

// stop ends etcd in order: what was written is on disk anyway. One that has given up would never end: it is left.
func (s *server) stop() error {
	s.closing.Store(true)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.etcd.Close()
	}()
	select {
	case <-ended:
		return nil
	case why := <-s.dead:
		return fmt.Errorf("stop etcd: %w: %s", errBroken, why)
	case <-time.After(stopTime):
		return fmt.Errorf("etcd hasn't stopped after %s", stopTime)
	}
}
