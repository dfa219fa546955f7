package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image/importer"
	"github.com/dsec-io/dsec/internal/image/reference"
)

// Push sends an image to a registry, as one layer. The same image gives the same digests, and what the registry has isn't
// sent again. progress is called now and then, never after the return.
func (m *Remote) Push(ctx context.Context, image string, o api.ImagePush, progress func(api.ImageEvent)) (api.ImagePushed, error) {
	ref, err := reference.Parse(o.Reference)
	if err != nil {
		return api.ImagePushed{}, err
	}
	if ref.Digest != "" {
		return api.ImagePushed{}, api.FieldError(api.CodeInvalid, field, "write HOST/REPOSITORY:TAG", "an image is pushed under a tag: its digest is found out by that")
	}
	im, err := m.cfg.Importer.Inspect(image)
	if err != nil {
		return api.ImagePushed{}, err
	}
	from, err := mountable(ref, o.MountFrom)
	if err != nil {
		return api.ImagePushed{}, err
	}
	s, err := m.connect(ctx, ref, o.RegistryAccess, func(r name.Repository) []string {
		scopes := []string{r.Scope(transport.PushScope)}
		if from != nil {
			scopes = append(scopes, from.Scope(transport.PullScope))
		}
		return scopes
	})
	if err != nil {
		return api.ImagePushed{}, err
	}
	defer s.close()
	w, err := m.cfg.Importer.Begin(ctx)
	if err != nil {
		return api.ImagePushed{}, err
	}
	defer w.Close()
	if progress == nil {
		progress = func(api.ImageEvent) {}
	}
	l, err := m.pack(ctx, w, im, progress)
	if err != nil {
		return api.ImagePushed{}, err
	}
	defer l.file.Close()
	return s.push(ctx, im, l, from, progress)
}

// mountable is the repository that may have the layer already; nil if none is said.
func mountable(ref reference.Reference, from string) (*name.Repository, error) {
	if from == "" {
		return nil, nil //nolint:nilnil // there is none
	}
	other, err := reference.Parse(ref.Host + "/" + from)
	if err != nil || other.Digest != "" || strings.Contains(from, ":") {
		return nil, api.FieldError(api.CodeInvalid, "mount_from", "write it without host and tag", "%.200q isn't a repository of %s", from, ref.Host)
	}
	repo, err := other.Repo(false)
	return &repo, err
}

// layer is a packed tree, in a file without a name.
type layer struct {
	file          *os.File
	size          int64
	digest, plain v1.Hash
}

// pack packs an image's tree.
func (m *Remote) pack(ctx context.Context, w *importer.Work, im api.Image, progress func(api.ImageEvent)) (_ *layer, err error) {
	f, err := w.File()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	tell := newPace(progress)
	packed, plain := sha256.New(), sha256.New()
	disk := &counted{w: io.MultiWriter(f, packed), told: func(int64) {}}
	z := gzip.NewWriter(disk)
	tree := &counted{w: io.MultiWriter(z, plain), told: func(n int64) { tell(api.ImageEvent{Type: "progress", Phase: "packing", Bytes: n}) }}
	if err := m.cfg.Importer.Export(ctx, im.Name, tree); err != nil {
		return nil, importer.Stored("pack the image", err)
	}
	if err := z.Close(); err != nil {
		return nil, importer.Stored("pack the image", err)
	}
	return &layer{f, disk.n, hashOf(packed), hashOf(plain)}, nil
}

func hashOf(h hash.Hash) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}
}

// counted tells how much was written.
type counted struct {
	w    io.Writer
	n    int64
	told func(int64)
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	c.told(c.n)
	return n, err
}

// newPace passes on progress only now and then.
func newPace(progress func(api.ImageEvent)) func(api.ImageEvent) {
	var last time.Time
	return func(ev api.ImageEvent) {
		if time.Since(last) >= progressPause {
			last = time.Now()
			progress(ev)
		}
	}
}

// The methods of [v1.Layer].

func (l *layer) Digest() (v1.Hash, error)             { return l.digest, nil }
func (l *layer) DiffID() (v1.Hash, error)             { return l.plain, nil }
func (l *layer) Size() (int64, error)                 { return l.size, nil }
func (l *layer) MediaType() (types.MediaType, error)  { return types.OCILayer, nil }
func (l *layer) Compressed() (io.ReadCloser, error)   { return io.NopCloser(l.reader()), nil }
func (l *layer) Uncompressed() (io.ReadCloser, error) { return gzip.NewReader(l.reader()) }
func (l *layer) reader() io.Reader                    { return io.NewSectionReader(l.file, 0, l.size) }

// push sends what the registry hasn't.
func (s *session) push(ctx context.Context, im api.Image, l *layer, from *name.Repository, progress func(api.ImageEvent)) (api.ImagePushed, error) {
	var send v1.Layer = l
	if from != nil {
		send = &remote.MountableLayer{Layer: l, Reference: from.Tag("latest")}
	}
	img, err := describe(im, send)
	if err != nil {
		return api.ImagePushed{}, err
	}
	digest, err := img.Digest()
	if err != nil {
		return api.ImagePushed{}, err
	}
	updates := make(chan v1.Update, 16)
	told := make(chan struct{})
	go func() { // ends with updates, which Write closes
		defer close(told)
		tell := newPace(progress)
		for u := range updates {
			tell(api.ImageEvent{Type: "progress", Phase: "uploading", Bytes: u.Complete, Total: u.Total})
		}
	}()
	err = remote.Write(s.repo.Tag(s.ref.Tag), img, remote.WithTransport(s.signed), remote.WithContext(ctx), remote.WithProgress(updates))
	<-told
	if err != nil {
		if ctx.Err() != nil {
			return api.ImagePushed{}, context.Cause(ctx)
		}
		return api.ImagePushed{}, s.explainPush(err)
	}
	return api.ImagePushed{Reference: s.ref.String(), Digest: digest.String(), SizeBytes: l.size}, nil
}

func (s *session) explainPush(err error) error {
	if e, ok := errors.AsType[*transport.Error](err); ok && e.StatusCode == 405 {
		return refusal("push to another registry", "%s takes no images", s.ref.Host)
	}
	return s.explain(err, s.ref.Repository+":"+s.ref.Tag)
}

// describe makes the manifest and the configuration of an image.
func describe(im api.Image, l v1.Layer) (v1.Image, error) {
	said := ""
	if im.Source != nil {
		said = im.Source.Platform
	}
	p, err := reference.ParsePlatform(said)
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err = mutate.Append(img, mutate.Addendum{Layer: l, MediaType: types.OCILayer, History: v1.History{CreatedBy: "dsec image push"}})
	if err != nil {
		return nil, fmt.Errorf("describe image %s: %w", im.Name, err)
	}
	c, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("describe image %s: %w", im.Name, err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Variant = "linux", p.Arch, p.Variant
	if im.Source != nil {
		if t, err := time.Parse(time.RFC3339, im.Source.Created); err == nil {
			c.Created = v1.Time{Time: t}
		}
	}
	c.Config = v1.Config{Env: im.Env, User: im.User, WorkingDir: im.Workdir, Entrypoint: im.Entrypoint, Cmd: im.Cmd}
	return mutate.ConfigFile(img, c)
}
