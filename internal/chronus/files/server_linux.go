package files

import (
	"bytes"
	"context"
	"encoding/json"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/chronus/account"
	"github.com/dsec-io/dsec/internal/chronus/launch"
	"github.com/dsec-io/dsec/internal/spawn"
)

// Place is the sandbox whose files are worked on. Places of one sandbox are equal.
type Place interface {
	// Account finds a user of the sandbox; "" is the sandbox's own. While the sandbox is paused it fails with api.CodeFrozen.
	Account(who string) (*account.Account, error)
	// Visit runs f, which makes a child that joins the sandbox, while the box's descriptors stay open. While the sandbox is
	// paused it fails with api.CodeFrozen before f is run.
	Visit(f func(launch.Box) error) error
	// Await returns when the sandbox isn't paused any more, with an error when it has ended or gone is closed.
	Await(gone <-chan struct{}) error
	// Keep remembers that there is an unfinished file at path. Done ends that if the file is gone; if it is left, or this
	// process dies before, somebody calls [Server.Discard].
	Keep(path []byte) (done func(gone bool))
	// Ended is closed when the sandbox has ended.
	Ended() <-chan struct{}
}

// Server serves the file methods of a shard.
type Server struct {
	launcher *launch.Launcher
	scripts  sync.Pool // *spawn.Script
	probes   probes
	chunks   sync.Pool     // *[]byte
	lists    sync.Pool     // *directory, for watches
	turns    chan struct{} // one for each stream that may hold descriptors
	watches  watches
}

const (
	maxStreams = 64       // at work at one time; further ones wait for their turn
	chunkSize  = 64 << 10 // of content
)

// New makes a Server whose helpers l runs.
func New(l *launch.Launcher) *Server {
	return &Server{
		launcher: l,
		scripts:  sync.Pool{New: func() any { return new(spawn.Script) }},
		chunks:   sync.Pool{New: func() any { b := make([]byte, chunkSize); return &b }},
		turns:    make(chan struct{}, maxStreams), // the bound is the point
		watches:  watches{boxes: make(map[Place]int)},
	}
}

// visitor is a request on its way: a user of a sandbox.
type visitor struct {
	*Server
	place Place
	who   *account.Account
	req   api.FileRequest
	gone  <-chan struct{} // closed when nobody waits any more
	turn  bool            // it has one of the turns
	begun bool            // something has been done
}

// Serve serves one stream of the methods file.read, file.write, file.list, file.op, file.tar, file.untar and file.watch.
func (s *Server) Serve(ctx context.Context, st *aether.Stream, p Place) error {
	open := st.Open()
	v := &visitor{Server: s, place: p, gone: st.Done()}
	if v.turn = open.Method != "file.watch"; v.turn { // which lasts, and has bounds of its own
		select {
		case s.turns <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-st.Done():
			return nil // nobody waits any more
		}
		defer func() { <-s.turns }()
	}
	if err := json.Unmarshal(open.Body, &v.req); err != nil {
		return api.Errorf(api.CodeInvalid, "%s: %v", open.Method, err)
	}
	if err := v.check(); err != nil {
		return err
	}
	var err error
	if v.who, err = p.Account(v.req.User); err != nil {
		return err
	}
	switch open.Method {
	case "file.read":
		return v.read(ctx, st)
	case "file.write":
		return v.write(ctx, st)
	case "file.list":
		return v.list(ctx, st)
	case "file.tar":
		return v.tar(ctx, st)
	case "file.untar":
		return v.untar(ctx, st)
	case "file.watch":
		return v.watch(ctx, st)
	}
	body, err := v.operate(ctx)
	if err != nil {
		return err
	}
	return st.Reply(ctx, body)
}

// check refuses what no file can be.
func (v *visitor) check() error {
	r := &v.req
	if err := checkPath("path", r.Path); err != nil {
		return err
	}
	if r.Op == api.FileRename {
		if err := checkPath("to", r.To); err != nil {
			return err
		}
	}
	const modes = 0o7777
	switch {
	case r.Offset < 0, r.Length < 0, r.MaxBytes < 0:
		return api.FieldError(api.CodeInvalid, "offset", "", "offset %d, length %d and limit %d may not be negative", r.Offset, r.Length, r.MaxBytes)
	case r.Mode != nil && *r.Mode > modes:
		return api.FieldError(api.CodeInvalid, "mode", "permission bits go up to 07777", "mode %#o", *r.Mode)
	case r.UID != nil && *r.UID > maxID, r.GID != nil && *r.GID > maxID:
		return api.FieldError(api.CodeInvalid, "uid", "ids in a sandbox go from 0 to 65535", "an id is out of range")
	}
	return nil
}

const (
	maxID   = 65535
	maxPath = 4095
)

func checkPath(field string, path []byte) error {
	switch {
	case len(path) == 0 || path[0] != '/':
		return api.FieldError(api.CodeInvalid, field, "give an absolute path", "path %q isn't absolute", shown(path))
	case len(path) > maxPath:
		return api.FieldError(api.CodeInvalid, field, "", "a path of %d bytes is over %d", len(path), maxPath)
	case bytes.IndexByte(path, 0) >= 0:
		return api.FieldError(api.CodeInvalid, field, "", "path %q has a NUL byte", shown(path))
	}
	return nil
}

// visit runs a helper whose script build writes. Steps that may fail by what they are asked for have to be ignored: the
// error is of those that may not. A request that has begun waits while the sandbox is paused.
func (v *visitor) visit(build func(h *spawn.Script), after func()) error {
	for {
		err := v.visitOnce(build, after)
		if !api.IsCode(err, api.CodeFrozen) || !v.begun {
			return err
		}
		if v.turn { // others need none of what stands still
			<-v.turns
		}
		err = v.place.Await(v.gone)
		if v.turn {
			v.turns <- struct{}{}
		}
		if err != nil {
			return err
		}
	}
}

func (v *visitor) visitOnce(build func(h *spawn.Script), after func()) error {
	h := v.scripts.Get().(*spawn.Script) // the pool holds nothing else
	defer v.scripts.Put(h)
	return v.place.Visit(func(b launch.Box) error {
		v.begun = true
		launch.Enter(h, b, v.who)
		build(h)
		h.Exit()
		err := v.launcher.Visit(b, h)
		after() // also after an error: descriptors may have been opened
		return err
	})
}

const (
	atFDCWD = ^uintptr(99) // AT_FDCWD
	cloexec = unix.O_CLOEXEC
)

func closeFD(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd) // read from, or reported by the visit that finished it
	}
}

// split cuts a path into its directory and its last part, which is empty, "." or ".." where there is none.
func split(path []byte) (dir, base []byte) {
	for len(path) > 1 && path[len(path)-1] == '/' {
		path = path[:len(path)-1]
	}
	i := bytes.LastIndexByte(path, '/')
	return path[:max(i, 1)], path[i+1:]
}

// named tells whether base names an entry of its directory.
func named(base []byte) bool {
	return len(base) > 0 && string(base) != "." && string(base) != ".."
}
