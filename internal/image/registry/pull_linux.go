package registry

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image"
	"github.com/dsec-io/dsec/internal/image/importer"
	"github.com/dsec-io/dsec/internal/image/reference"
)

const (
	maxImage      = 128 << 30 // bytes that are fetched for one image
	progressPause = 200 * time.Millisecond
	maxWarnings   = 50 // that are told of one pull
)

// pull is one pull.
type pull struct {
	m        *Remote
	o        api.ImagePull
	ref      reference.Reference
	platform reference.Platform
}

func (p *pull) run(ctx context.Context, tell func(api.ImageEvent)) (api.ImageEvent, error) {
	ev, err := p.pull(ctx, tell)
	if e, typed := errors.AsType[*api.Error](err); typed && e.Field == "archive" {
		own := *e // the importer's name for what was uploaded
		own.Field = field
		return ev, &own
	}
	return ev, err
}

func (p *pull) pull(ctx context.Context, tell func(api.ImageEvent)) (api.ImageEvent, error) {
	there, err := p.there()
	if err != nil {
		return api.ImageEvent{}, err
	}
	fresh := api.ImageEvent{Type: "done", UpToDate: true}
	if there != nil && p.ref.Digest != "" {
		fresh.Image = there // a digest always leads to the same
		return fresh, nil
	}
	s, now, err := p.ask(ctx, there != nil)
	if err != nil {
		return api.ImageEvent{}, err
	}
	defer s.close()
	if there != nil && now == there.Source.Digest {
		fresh.Image = there
		return fresh, nil
	}
	w, err := p.m.cfg.Importer.Begin(ctx)
	if err != nil {
		return api.ImageEvent{}, err
	}
	defer w.Close()
	made, err := p.make(ctx, s, w, newVoice(tell))
	return api.ImageEvent{Type: "done", Image: &made}, err
}

// ask logs in and, where that's wanted, asks what the reference leads to now. The caller closes the session.
func (p *pull) ask(ctx context.Context, current bool) (s *session, now string, err error) {
	s, err = p.m.connect(ctx, p.ref, p.o.RegistryAccess, func(r name.Repository) []string { return []string{r.Scope(transport.PullScope)} })
	if err != nil || !current {
		return s, "", err
	}
	if now, err = s.current(ctx); err != nil {
		s.close()
	}
	return s, now, err
}

// there looks for an image of this name that was pulled by this reference, which is then replaced. Any other in its place
// is in the way, unless replace is said: better told before everything was fetched.
func (p *pull) there() (*api.Image, error) {
	im, err := p.m.cfg.Importer.Inspect(p.o.Name)
	switch {
	case api.IsCode(err, api.CodeNoSuchImage):
		return nil, nil //nolint:nilnil // there is none
	case err != nil:
		return nil, err
	case im.Source != nil && im.Source.Reference == p.ref.String() && im.Source.Platform == p.platform.String():
		p.o.Replace = true
		if im.Broken != "" {
			return nil, nil //nolint:nilnil // fetched anew
		}
		return &im, nil
	case !p.o.Replace:
		return nil, api.FieldError(api.CodeConflict, "name", "choose another with --name, or say --replace",
			"there is an image %s that doesn't come from %s for %s", p.o.Name, p.ref, p.platform)
	}
	return nil, nil //nolint:nilnil // one that is replaced
}

// make fetches the image and makes it one of this node.
func (p *pull) make(ctx context.Context, s *session, w *importer.Work, v *voice) (api.Image, error) {
	f, err := s.find(ctx, p.platform, v.warn)
	if err != nil {
		return api.Image{}, err
	}
	config, err := s.small(ctx, *f.Config, v.warn)
	if err != nil {
		return api.Image{}, err
	}
	created, err := p.fits(config)
	if err != nil {
		return api.Image{}, err
	}
	seen := map[string]bool{}
	for _, l := range f.Layers {
		if !seen[l.Digest] {
			seen[l.Digest] = true
			v.total += l.Size
		}
		if l.Size > maxImage || v.total > maxImage {
			return api.Image{}, api.FieldError(api.CodeTooLarge, field, "", "the image's layers have more than %d bytes", int64(maxImage))
		}
	}
	dl := &downloads{s: s, work: w, got: v.got, warn: v.warn}
	dl.fetch(ctx, f.Layers)
	defer dl.stop()
	return w.Assemble(ctx, api.ImageImport{Name: p.o.Name, Replace: p.o.Replace, Squash: p.o.Squash}, importer.Layered{
		Config: config, Layers: dl.layers(ctx, f.Layers),
		Source: &image.Source{Reference: p.ref.String(), Digest: f.top, Manifest: f.digest, Platform: p.platform.String(), Created: created},
	}, v.making)
}

// fits tells whether a configuration is of an image for the platform, and when the image was made.
func (p *pull) fits(config []byte) (created string, err error) {
	var c struct {
		OS           string    `json:"os"`
		Architecture string    `json:"architecture"`
		Created      time.Time `json:"created"`
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return "", fault("the image's configuration isn't what it should be: %v", err)
	}
	if c.OS != "" && c.OS != "linux" || c.Architecture != "" && c.Architecture != p.platform.Arch {
		return "", api.FieldError(api.CodeUnsupportedConstraint, "platform", "choose with --platform", "%s is for %s, not for %s",
			p.ref, clip(strings.Trim(c.OS+"/"+c.Architecture, "/")), p.platform)
	}
	if !c.Created.IsZero() {
		created = c.Created.UTC().Format(time.RFC3339)
	}
	return created, nil
}

// voice tells how far a pull is. Several goroutines may use it.
type voice struct {
	total int64 // bytes to fetch; constant once layers are fetched

	mu       sync.Mutex // guards the rest
	tell     func(api.ImageEvent)
	last     time.Time
	bytes    int64
	files    int
	warnings int
}

func newVoice(tell func(api.ImageEvent)) *voice { return &voice{tell: tell} }

// got counts bytes that have come.
func (v *voice) got(n int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.bytes += n
	if time.Since(v.last) < progressPause {
		return
	}
	v.last = time.Now()
	v.tell(api.ImageEvent{Type: "progress", Phase: "downloading", Bytes: max(v.bytes, 0), Total: v.total, Files: v.files})
}

func (v *voice) warn(text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.warnings++; v.warnings <= maxWarnings {
		v.tell(api.ImageEvent{Type: "progress", Phase: "downloading", Bytes: max(v.bytes, 0), Total: v.total, Warning: text})
	}
}

// making passes on what the importer tells. While layers still come, that is what is waited for.
func (v *voice) making(ev api.ImageEvent) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.files = ev.Files
	if ev.Phase != "reading" || v.bytes >= v.total {
		v.tell(ev)
	}
}
