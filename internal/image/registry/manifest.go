package registry

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image/reference"
)

const (
	maxManifest  = 4 << 20
	maxManifests = 16 // that are read for one image
	maxNested    = 3  // lists of lists
	maxLayers    = 1000
	maxPoisoned  = 3  // times that wrong bytes may come
	maxMet       = 20 // other platforms that are told of
)

const (
	typeIndex       = "application/vnd.oci.image.index.v1+json"
	typeManifest    = "application/vnd.oci.image.manifest.v1+json"
	typeDockerList  = "application/vnd.docker.distribution.manifest.list.v2+json"
	typeDockerImage = "application/vnd.docker.distribution.manifest.v2+json"
	typeSchema1     = "application/vnd.docker.distribution.manifest.v1"
)

// descriptor names something by its digest.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	URLs        []string          `json:"urls"`
	Annotations map[string]string `json:"annotations"`
	Platform    *struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
		Variant      string `json:"variant"`
	} `json:"platform"`
}

func (d descriptor) check() error {
	hash, ok := strings.CutPrefix(d.Digest, "sha256:")
	if !ok || len(hash) != 64 || strings.Trim(hash, "0123456789abcdef") != "" || d.Size < 0 {
		return fault("a blob is named by %.100q and %d bytes, which isn't a SHA-256 digest and a size", d.Digest, d.Size)
	}
	return nil
}

// document is a manifest: of an image, or a list of manifests.
type document struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	ArtifactType  string       `json:"artifactType"`
	Manifests     []descriptor `json:"manifests"`
	Config        *descriptor  `json:"config"`
	Layers        []descriptor `json:"layers"`
}

// fault is a fault of what a registry has.
func fault(format string, args ...any) error {
	return api.FieldError(api.CodeInvalid, field, "", format, args...)
}

func refusal(hint, format string, args ...any) error {
	return api.FieldError(api.CodeUnsupportedConstraint, field, hint, format, args...)
}

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(h[:])
}

// short is a digest as messages have it.
func short(digest string) string { return digest[:min(len(digest), len("sha256:")+12)] }

// found is the manifest of an image.
type found struct {
	document
	top    string // the digest of what the reference led to
	digest string // of the manifest itself
}

// search looks for the manifest of an image in lists, and lists of lists.
type search struct {
	s        *session
	platform reference.Platform
	warn     func(string)
	read     int
	has      []string // platforms that were met
}

// find follows the reference to the image for a platform.
func (s *session) find(ctx context.Context, p reference.Platform, warn func(string)) (found, error) {
	w := &search{s: s, platform: p, warn: warn}
	raw, digest, err := w.fetch(ctx, s.ref.ID(), descriptor{Digest: s.ref.Digest, Size: -1})
	if err != nil {
		return found{}, err
	}
	f, err := w.follow(ctx, raw, digest, 0)
	if errors.Is(err, errNotHere) {
		has := "none that says what it is for"
		if len(w.has) > 0 {
			has = "only for " + clip(strings.Join(w.has, ", "))
		}
		return f, api.FieldError(api.CodeUnsupportedConstraint, "platform", "choose with --platform", "%s has no image for %s, %s", s.ref, p, has)
	}
	f.top = digest
	return f, err
}

// errNotHere says that a list has no image for the platform.
var errNotHere = errors.New("no image for the platform")

// fetch reads a manifest, which must be what want says.
func (w *search) fetch(ctx context.Context, id string, want descriptor) (raw []byte, digest string, err error) {
	if w.read++; w.read > maxManifests {
		return nil, "", fault("lists of images lead to further lists without end")
	}
	what := w.s.ref.Repository + ":" + id
	if strings.HasPrefix(id, "sha256:") {
		what = w.s.ref.Repository + "@" + short(id)
	}
	for try := 1; ; try++ {
		var said string
		raw, said, err = w.s.get(ctx, id)
		if err != nil {
			return nil, "", w.s.explain(err, what)
		}
		digest = sum(raw)
		switch {
		case want.Digest != "" && want.Digest != digest, want.Digest == "" && strings.HasPrefix(said, "sha256:") && said != digest:
			err = fmt.Errorf("the manifest %s came with other bytes than its digest says", what)
		case want.Size >= 0 && want.Size != int64(len(raw)):
			err = fmt.Errorf("the manifest %s has %d bytes and not %d", what, len(raw), want.Size)
		default:
			return raw, digest, nil
		}
		if try == maxPoisoned {
			return nil, "", poisoned(w.s, err)
		}
		w.warn(err.Error() + ": asked for again")
	}
}

func poisoned(s *session, err error) error {
	return api.FieldError(api.CodeUnavailable, field, "the registry, or something on the way to it, changes what is stored", "%s: %v", s.ref.Host, err)
}

// get reads a manifest, and what the registry says its digest is.
func (s *session) get(ctx context.Context, id string) ([]byte, string, error) {
	resp, err := s.request(ctx, http.MethodGet, "/manifests/"+id, acceptManifests(), http.StatusOK)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close() // only read from
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxManifest+1))
	if err == nil && len(raw) > maxManifest {
		err = api.FieldError(api.CodeTooLarge, field, "", "the manifest has more than %d bytes", maxManifest)
	}
	return raw, resp.Header.Get("Docker-Content-Digest"), err
}

// current asks what the reference leads to now, without reading it where the registry says so.
func (s *session) current(ctx context.Context) (string, error) {
	resp, err := s.request(ctx, http.MethodHead, "/manifests/"+s.ref.ID(), acceptManifests(), http.StatusOK)
	if err != nil {
		return "", s.explain(err, s.ref.Repository+":"+s.ref.ID())
	}
	resp.Body.Close()
	if said := resp.Header.Get("Docker-Content-Digest"); said != "" {
		return said, nil
	}
	raw, _, err := s.get(ctx, s.ref.ID())
	if err != nil {
		return "", s.explain(err, s.ref.Repository+":"+s.ref.ID())
	}
	return sum(raw), nil
}

func acceptManifests() http.Header {
	return http.Header{"Accept": {strings.Join([]string{typeIndex, typeManifest, typeDockerList, typeDockerImage}, ", ")}}
}

// follow goes from a manifest to that of the image.
func (w *search) follow(ctx context.Context, raw []byte, digest string, depth int) (found, error) {
	var d document
	if err := json.Unmarshal(raw, &d); err != nil {
		return found{}, fault("the manifest %s isn't what it should be: %v", short(digest), err)
	}
	image := d.Config != nil || len(d.Layers) > 0
	switch {
	case d.SchemaVersion == 1 || strings.HasPrefix(d.MediaType, typeSchema1):
		return found{}, refusal("push it again with a current tool", "%s is in Docker's schema 1, which says too little of the image to check it", w.s.ref)
	case image && d.Manifests != nil:
		return found{}, fault("the manifest %s is of an image and a list at once, so that nobody can say what it is", short(digest))
	case image && (d.MediaType == typeIndex || d.MediaType == typeDockerList), d.Manifests != nil && (d.MediaType == typeManifest || d.MediaType == typeDockerImage):
		return found{}, fault("the manifest %s isn't of the type %s that it says", short(digest), d.MediaType)
	case image:
		return found{document: d, digest: digest}, checkImage(&d)
	case d.Manifests == nil:
		return found{}, refusal("", "%s is of a type that isn't known here: %.100q", w.s.ref, d.MediaType)
	case depth >= maxNested:
		return found{}, fault("lists of images lead to further lists without end")
	}
	return w.choose(ctx, d.Manifests, depth)
}

// choose takes the first of a list that is for the platform, or may be because it doesn't say. What isn't an image, such
// as an attestation, isn't for any.
func (w *search) choose(ctx context.Context, list []descriptor, depth int) (found, error) {
	list = slices.DeleteFunc(slices.Clone(list), func(d descriptor) bool {
		return d.Annotations["vnd.docker.reference.type"] != "" || d.Platform != nil && d.Platform.OS == "unknown"
	})
	slices.SortStableFunc(list, func(a, b descriptor) int { return w.rank(a) - w.rank(b) })
	for _, d := range list {
		if w.rank(d) == rankOther {
			w.meet(d.Platform.OS, d.Platform.Architecture, d.Platform.Variant)
			continue
		}
		if err := d.check(); err != nil {
			return found{}, err
		}
		raw, digest, err := w.fetch(ctx, d.Digest, d)
		if err != nil {
			return found{}, err
		}
		f, err := w.follow(ctx, raw, digest, depth+1)
		if !errors.Is(err, errNotHere) {
			return f, err
		}
	}
	return found{}, errNotHere
}

func (w *search) meet(os, arch, variant string) {
	p := strings.Trim(os+"/"+arch+"/"+variant, "/")
	if len(w.has) < maxMet && !slices.Contains(w.has, p) {
		w.has = append(w.has, p)
	}
}

// How well what a list has fits.
const (
	rankExact = iota
	rankFits
	rankUnsaid
	rankOther
)

func (w *search) rank(d descriptor) int {
	p := d.Platform
	switch {
	case p == nil || p.OS == "" && p.Architecture == "":
		return rankUnsaid
	case p.OS != "linux" || p.Architecture != w.platform.Arch:
		return rankOther
	case p.Variant == w.platform.Variant, defaultVariant(p.Architecture, p.Variant) == defaultVariant(p.Architecture, w.platform.Variant):
		return rankExact
	case w.platform.Variant == "":
		return rankFits
	}
	return rankOther
}

// defaultVariant is the variant that is meant where none is said.
func defaultVariant(arch, variant string) string {
	if variant != "" {
		return variant
	}
	return map[string]string{"amd64": "v1", "arm64": "v8", "arm": "v7"}[arch]
}

// checkImage refuses what isn't an image, or can't be read here, before anything of it is fetched.
func checkImage(d *document) error {
	switch {
	case d.Config == nil:
		return fault("the manifest has no configuration")
	case !isConfig(d.Config.MediaType):
		return refusal("", "it is no image, but something of type %.100q", cmp.Or(d.ArtifactType, d.Config.MediaType))
	case len(d.Layers) > maxLayers:
		return api.FieldError(api.CodeTooLarge, field, "", "the image has %d layers, over %d", len(d.Layers), maxLayers)
	case d.Config.Size > maxManifest:
		return api.FieldError(api.CodeTooLarge, field, "", "the image's configuration has more than %d bytes", maxManifest)
	}
	if err := d.Config.check(); err != nil {
		return err
	}
	for _, l := range d.Layers {
		if err := l.check(); err != nil {
			return err
		}
		if strings.Contains(l.MediaType, "encrypted") || l.MediaType != "" && !strings.Contains(l.MediaType, ".tar") && !strings.Contains(l.MediaType, ".diff") {
			return refusal("", "layer %s is of a type that isn't known here: %.100q", short(l.Digest), l.MediaType)
		}
	}
	return nil
}

// isForeign tells whether a layer may be kept out of registries by its owner.
func isForeign(l descriptor) bool {
	return len(l.URLs) > 0 || strings.Contains(l.MediaType, "foreign") || strings.Contains(l.MediaType, "nondistributable")
}

func isConfig(t string) bool {
	return t == "" || t == "application/vnd.oci.image.config.v1+json" || t == "application/vnd.docker.container.image.v1+json"
}

func clip(s string) string {
	if len(s) > 200 {
		return s[:200] + "…"
	}
	return s
}
