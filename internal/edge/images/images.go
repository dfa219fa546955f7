// Package images answers an edge's clients about images: it speaks the aether protocol on one side and to the node's
// image store on the other.
//
// A Server is safe for concurrent use and holds nothing of its own.
package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// Store is the node's image store as far as clients may change it.
type Store interface {
	// Import makes an image of what r has, and tells progress until it returns.
	Import(ctx context.Context, o api.ImageImport, r io.Reader, progress func(api.ImageEvent)) (api.Image, error)
	List(ctx context.Context) ([]api.Image, error)
	// Remove tells how many bytes it gives back. Sandboxes that were made from the image go on.
	Remove(ctx context.Context, name string) (int64, error)
	// Sweep removes what crashes have left and tells how many bytes it had.
	Sweep(ctx context.Context) (int64, error)
	// Export writes the image's tree as a tar.
	Export(ctx context.Context, name string, w io.Writer) error
}

// Registry is a store that also talks to registries. One that doesn't answers that it can't.
type Registry interface {
	// Pull fetches an image, and tells progress until it returns what came of it.
	Pull(ctx context.Context, o api.ImagePull, progress func(api.ImageEvent)) (api.ImageEvent, error)
	// Push sends an image to a registry, and tells progress until it returns.
	Push(ctx context.Context, image string, o api.ImagePush, progress func(api.ImageEvent)) (api.ImagePushed, error)
}

// Server answers about the images of a store.
type Server struct {
	Store  Store                 // nil: none
	Users  func() map[string]int // counts the living sandboxes by the image that they were made from
	Logger *slog.Logger
}

// query is the body of the methods about images that there are.
type query struct {
	Name  string `json:"name,omitempty"`
	Force bool   `json:"force,omitempty"` // remove: also if sandboxes were made from it
	All   bool   `json:"all,omitempty"`   // gc: also images that no living sandbox was made from
}

// Methods are the methods of the aether protocol that the server answers. An error that one returns is for the client.
func (v *Server) Methods() map[string]func(context.Context, *aether.Stream, aether.Open) error {
	return map[string]func(context.Context, *aether.Stream, aether.Open) error{
		"image.import": v.serveImport,
		"image.pull":   v.servePull,
		"image.push":   v.servePush,
		"image.list":   v.on(v.serveImages),
		"image.remove": v.on(v.serveRemove),
		"image.gc":     v.on(v.serveCollect),
		"image.export": v.on(v.serveExport),
	}
}

// on makes a handler of a method with a query.
func (v *Server) on(h func(context.Context, *aether.Stream, query) error) func(context.Context, *aether.Stream, aether.Open) error {
	decode := api.NewDecoder[query]()
	return func(ctx context.Context, s *aether.Stream, o aether.Open) error {
		if err := v.check(o); err != nil {
			return err
		}
		var q query
		if len(o.Body) > 0 {
			var err error
			if q, err = decode.Decode(o.Body); err != nil {
				return err
			}
		}
		return h(ctx, s, q)
	}
}

func (v *Server) check(o aether.Open) error {
	switch {
	case o.Project == "":
		return api.Errorf(api.CodeUnauthenticated, "the stream names no project")
	case v.Store == nil:
		return api.Errorf(api.CodeNotImplemented, "this edge has no image store of its own")
	}
	return nil
}

func reply(ctx context.Context, s *aether.Stream, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode reply: %w", err)
	}
	return s.Reply(ctx, raw)
}

// serveImport makes an image of what comes on stdin. Progress goes to stdout as lines of JSON.
func (v *Server) serveImport(ctx context.Context, s *aether.Stream, o aether.Open) error {
	if err := v.check(o); err != nil {
		return err
	}
	want, err := api.Decode[api.ImageImport](o.Body)
	if err != nil {
		return err
	}
	tell := teller{ctx: ctx, s: s}
	made, err := v.Store.Import(ctx, want, &stdinReader{ctx: ctx, s: s}, tell.tell)
	if err = errors.Join(err, tell.lost); err != nil {
		return err
	}
	v.Logger.Info("image imported", slog.String("image", made.Name), slog.String("digest", made.Digest), slog.String("project", o.Project))
	return reply(ctx, s, made)
}

// teller writes progress to stdout as lines of JSON.
type teller struct {
	ctx  context.Context //nolint:containedctx // of the one request that it serves
	s    *aether.Stream
	lost error // what was not told, and why
}

func (t *teller) tell(ev api.ImageEvent) {
	line, err := json.Marshal(ev)
	if err == nil {
		err = t.s.Write(t.ctx, aether.Stdout, append(line, '\n'))
	}
	t.lost = errors.Join(t.lost, err)
}

// registry is the store, as far as it talks to registries.
func (v *Server) registry(o aether.Open) (Registry, error) {
	if err := v.check(o); err != nil {
		return nil, err
	}
	r, ok := v.Store.(Registry)
	if !ok {
		return nil, api.Errorf(api.CodeNotImplemented, "this edge talks to no registries")
	}
	return r, nil
}

// servePull fetches an image from a registry. Nothing of the credentials in the body is kept, or told to the log.
func (v *Server) servePull(ctx context.Context, s *aether.Stream, o aether.Open) error {
	r, err := v.registry(o)
	if err != nil {
		return err
	}
	want, err := api.Decode[api.ImagePull](o.Body)
	if err != nil {
		return err
	}
	tell := teller{ctx: ctx, s: s}
	ev, err := r.Pull(ctx, want, tell.tell)
	if err = errors.Join(err, tell.lost); err != nil {
		return err
	}
	if from := ev.Image.Source; from != nil && !ev.UpToDate {
		v.Logger.Info("image pulled", slog.String("image", ev.Image.Name), slog.String("reference", from.Reference),
			slog.String("manifest", from.Manifest), slog.String("project", o.Project))
	}
	return reply(ctx, s, ev)
}

// servePush sends an image to a registry.
func (v *Server) servePush(ctx context.Context, s *aether.Stream, o aether.Open) error {
	r, err := v.registry(o)
	if err != nil {
		return err
	}
	q, err := api.Decode[struct {
		Name string        `json:"name"`
		Push api.ImagePush `json:"push"`
	}](o.Body)
	if err != nil {
		return err
	}
	tell := teller{ctx: ctx, s: s}
	done, err := r.Push(ctx, q.Name, q.Push, tell.tell)
	if err = errors.Join(err, tell.lost); err != nil {
		return err
	}
	v.Logger.Info("image pushed", slog.String("image", q.Name), slog.String("reference", done.Reference),
		slog.String("digest", done.Digest), slog.String("project", o.Project))
	return reply(ctx, s, api.ImageEvent{Type: "done", Pushed: &done})
}

// stdinReader reads what a client sends.
type stdinReader struct {
	ctx   context.Context //nolint:containedctx // a Reader has no other way to end
	s     *aether.Stream
	frame aether.Frame
	ended bool
}

func (r *stdinReader) Read(p []byte) (int, error) {
	for len(r.frame.Data) == 0 {
		r.frame.Release()
		if r.ended {
			return 0, io.EOF
		}
		f, err := r.s.Recv(r.ctx)
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("the upload has no end: %w", io.ErrUnexpectedEOF)
		}
		if err != nil {
			return 0, err
		}
		if f.Channel != aether.Stdin {
			f.Release()
			continue
		}
		r.frame, r.ended = f, f.End
	}
	n := copy(p, r.frame.Data)
	r.frame.Data = r.frame.Data[n:]
	return n, nil
}

// serveImages lists images, or the one that is named.
func (v *Server) serveImages(ctx context.Context, s *aether.Stream, q query) error {
	list, err := v.Store.List(ctx)
	if err != nil {
		return err
	}
	users := v.Users()
	for i := range list {
		list[i].InUse = users[list[i].Name]
	}
	if q.Name == "" {
		return reply(ctx, s, api.ImageList{Items: list})
	}
	i := slices.IndexFunc(list, func(im api.Image) bool { return im.Name == q.Name })
	if i < 0 {
		return noImage(q.Name)
	}
	return reply(ctx, s, list[i])
}

func noImage(name string) error {
	return api.FieldError(api.CodeNoSuchImage, "name", "`dsec image ls` lists those that there are", "there is no image %q on this machine", clip(name))
}

func (v *Server) serveRemove(ctx context.Context, s *aether.Stream, q query) error {
	if n := v.Users()[q.Name]; n > 0 && !q.Force {
		return api.FieldError(api.CodeConflict, "name", "stop them first, or say force: they go on with what they have",
			"image %s is in use: living sandboxes made from it: %d", clip(q.Name), n)
	}
	freed, err := v.Store.Remove(ctx, q.Name)
	if err != nil {
		return err
	}
	v.Logger.Info("image removed", slog.String("image", q.Name))
	return reply(ctx, s, api.ImageRemoved{Removed: []string{q.Name}, FreedBytes: freed})
}

// serveCollect removes what crashes have left, and with all the images that no living sandbox was made from, but for
// those of the machine.
func (v *Server) serveCollect(ctx context.Context, s *aether.Stream, q query) error {
	done := api.ImageRemoved{Removed: []string{}}
	freed, err := v.Store.Sweep(ctx)
	if err != nil {
		return err
	}
	done.FreedBytes = freed
	if !q.All {
		return reply(ctx, s, done)
	}
	list, err := v.Store.List(ctx)
	if err != nil {
		return err
	}
	for i := range list {
		im := &list[i]
		if im.Shared || v.Users()[im.Name] > 0 {
			continue
		}
		freed, err := v.Store.Remove(ctx, im.Name)
		if api.IsCode(err, api.CodeNoSuchImage) {
			continue
		}
		if err != nil {
			return err
		}
		done.Removed, done.FreedBytes = append(done.Removed, im.Name), done.FreedBytes+freed
	}
	return reply(ctx, s, done)
}

// serveExport writes the image's tree to stdout.
func (v *Server) serveExport(ctx context.Context, s *aether.Stream, q query) error {
	if err := v.Store.Export(ctx, q.Name, &stdoutWriter{ctx: ctx, s: s}); err != nil {
		return err
	}
	if err := s.CloseWrite(aether.Stdout); err != nil {
		return err
	}
	return s.Close()
}

// stdoutWriter writes to a client.
type stdoutWriter struct {
	ctx context.Context //nolint:containedctx // a Writer has no other way to end
	s   *aether.Stream
}

func (w *stdoutWriter) Write(p []byte) (int, error) {
	if err := w.s.Write(w.ctx, aether.Stdout, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// clip keeps what is told of a foreign name short.
func clip(s string) string {
	if len(s) > 140 {
		return s[:140] + "…"
	}
	return s
}
