package importer

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/dsec-io/dsec/internal/image"
)

// Formats of what is imported.
const (
	FormatRootFS = "rootfs"
	FormatOCI    = "oci"
	FormatDocker = "docker"
)

const (
	maxJSON   = 4 << 20
	maxLayers = 1000
	maxNested = 3 // indexes of indexes
)

// blob is a file of an archive of layers, and what it must be.
type blob struct {
	path   string
	digest string // of the file as it is; empty: not told
}

// recipe is what an archive of layers says: the layers from the bottom up, and how to run what is in them.
type recipe struct {
	layers []blob
	config blob
}

// imageConfig is the configuration of an image as OCI and Docker write it.
type imageConfig struct {
	OS     string `json:"os"`
	Config struct {
		User       string   `json:"User"`
		Env        []string `json:"Env"`
		Entrypoint []string `json:"Entrypoint"`
		Cmd        []string `json:"Cmd"`
		WorkingDir string   `json:"WorkingDir"`
	} `json:"config"`
	RootFS struct {
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// descriptor names a blob of an OCI layout.
type descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Platform  *struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
		Variant      string `json:"variant"`
	} `json:"platform"`
	Annotations map[string]string `json:"annotations"`
}

func (d descriptor) blob() (blob, error) {
	hash, ok := strings.CutPrefix(d.Digest, "sha256:")
	if !ok || len(hash) != 64 || strings.Trim(hash, "0123456789abcdef") != "" {
		return blob{}, refusal("", "the archive names a blob by %q, which isn't a SHA-256 digest", clip(d.Digest))
	}
	return blob{path: "blobs/sha256/" + hash, digest: d.Digest}, nil
}

// archive is a tree that was read and may be one of layers instead of one of an image.
type archive struct {
	u    *unpacker
	tree *tree
}

// format finds out what the tree is.
func (a *archive) format() string {
	switch {
	case a.tree.regular("oci-layout") != nil && a.tree.regular("index.json") != nil:
		return FormatOCI
	case a.looksSaved():
		return FormatDocker
	}
	return FormatRootFS
}

// looksSaved tells whether `docker save` has written the tree: its manifest is there, and nothing that a file system has.
func (a *archive) looksSaved() bool {
	var m []savedImage
	b := blob{path: "manifest.json"}
	if a.tree.regular(b.path) == nil || a.json(b, &m) != nil || len(m) == 0 {
		return false
	}
	return m[0].Config != "" && a.tree.regular(m[0].Config) != nil
}

// recipe reads what the archive says of itself.
func (a *archive) recipe(format string) (recipe, error) {
	if format == FormatDocker {
		return a.saved()
	}
	return a.layout(blob{path: "index.json"}, 0)
}

// savedImage is an image in the manifest of `docker save`.
type savedImage struct {
	Config   string   `json:"Config"`
	RepoTags []string `json:"RepoTags"`
	Layers   []string `json:"Layers"`
}

func (a *archive) saved() (recipe, error) {
	var m []savedImage
	if err := a.json(blob{path: "manifest.json"}, &m); err != nil {
		return recipe{}, err
	}
	if len(m) != 1 {
		return recipe{}, refusal("save one image at a time", "the archive has %d images", len(m))
	}
	r := recipe{config: blob{path: m[0].Config}}
	for _, l := range m[0].Layers {
		r.layers = append(r.layers, blob{path: l})
	}
	return r, nil
}

// layout reads an index, or the manifest that it leads to.
func (a *archive) layout(at blob, depth int) (recipe, error) {
	var m struct {
		Manifests []descriptor `json:"manifests"`
		Config    *descriptor  `json:"config"`
		Layers    []descriptor `json:"layers"`
	}
	if err := a.json(at, &m); err != nil {
		return recipe{}, err
	}
	if m.Config == nil {
		next, err := choose(m.Manifests)
		if err != nil {
			return recipe{}, err
		}
		if depth >= maxNested {
			return recipe{}, fault("the archive's indexes lead to further indexes without end")
		}
		return a.layout(next, depth+1)
	}
	config, err := m.Config.blob()
	if err != nil {
		return recipe{}, err
	}
	r := recipe{config: config}
	for _, d := range m.Layers {
		b, err := d.blob()
		if err != nil {
			return recipe{}, err
		}
		r.layers = append(r.layers, b)
	}
	return r, nil
}

// choose picks the image for this machine. What isn't an image, such as an attestation, isn't one for it.
func choose(list []descriptor) (blob, error) {
	list = slices.DeleteFunc(slices.Clone(list), func(d descriptor) bool {
		return d.Annotations["vnd.docker.reference.type"] != "" || d.Platform != nil && d.Platform.OS == "unknown"
	})
	var fits []descriptor
	var has []string
	for _, d := range list {
		if d.Platform == nil || d.Platform.OS == "linux" && d.Platform.Architecture == runtime.GOARCH {
			fits = append(fits, d)
			continue
		}
		has = append(has, d.Platform.OS+"/"+d.Platform.Architecture)
	}
	switch {
	case len(fits) == 1:
		return fits[0].blob()
	case len(fits) > 1:
		return blob{}, refusal("save one image at a time", "the archive has %d images for this machine", len(fits))
	case len(has) > 0:
		return blob{}, refusal("", "the archive has no image for linux/%s, only for %s", runtime.GOARCH, clip(strings.Join(has, ", ")))
	}
	return blob{}, fault("the archive has no image")
}

// json reads a small file of the archive.
func (a *archive) json(b blob, into any) error {
	n := a.tree.regular(b.path)
	if n == nil {
		return fault("the archive has no file %q", clip(b.path))
	}
	if n.Size > maxJSON {
		return tooLarge("%q of the archive is over %d bytes", clip(b.path), maxJSON)
	}
	r, err := a.u.spool.reader(n)
	if err != nil {
		return err
	}
	raw, err := io.ReadAll(r)
	if err != nil {
		return &writeError{Stored("read back", err)}
	}
	if err := matches(b, sha256sum(raw)); err != nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fault("%q of the archive isn't what it should be: %v", clip(b.path), err)
	}
	return nil
}

func sha256sum(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func matches(b blob, digest string) error {
	if b.digest != "" && b.digest != digest {
		return fault("%q has been changed: it is %s", clip(b.path), digest)
	}
	return nil
}

// apply makes the tree that the layers add up to.
func (a *archive) apply(format string) (image.Config, error) {
	r, err := a.recipe(format)
	if err != nil {
		return image.Config{}, err
	}
	var c imageConfig
	if err := a.json(r.config, &c); err != nil {
		return image.Config{}, err
	}
	layers := make([]Layer, 0, len(r.layers))
	for _, b := range r.layers {
		layers = append(layers, Layer{Name: b.path, Digest: b.digest, Open: func() (io.ReadCloser, error) { return a.open(b) }})
	}
	if err := a.u.stack(&c, layers); err != nil {
		return image.Config{}, err
	}
	return c.settings()
}

// open opens a layer in the archive.
func (a *archive) open(b blob) (io.ReadCloser, error) {
	n := a.tree.regular(b.path)
	if n == nil {
		return nil, fault("the archive has no layer %q", clip(b.path))
	}
	r, err := a.u.spool.reader(n)
	return io.NopCloser(r), err
}

// Layer is a tar of an image's stack, plain or compressed with gzip or zstd.
type Layer struct {
	Name   string                        // for messages
	Digest string                        // of the bytes as they come; empty: not known, or checked before
	Open   func() (io.ReadCloser, error) // called once
}

// stack applies the layers, from the bottom up, to an empty tree.
func (u *unpacker) stack(c *imageConfig, layers []Layer) error {
	ids := c.RootFS.DiffIDs
	switch {
	case len(layers) > maxLayers:
		return tooLarge("there are %d layers, over %d", len(layers), maxLayers)
	case c.OS != "" && c.OS != "linux":
		return refusal("", "the image is for %s", clip(c.OS))
	case len(ids) > 0 && len(ids) != len(layers):
		return fault("there are %d layers, and %d in the configuration of the image", len(layers), len(ids))
	}
	u.tree = newTree()
	for i, l := range layers {
		want := ""
		if len(ids) > 0 {
			want = ids[i]
		}
		if err := u.layer(l, want); err != nil {
			return err
		}
	}
	return nil
}

// layer applies one layer; diffID is the digest of what it unpacks to.
func (u *unpacker) layer(l Layer, diffID string) error {
	file, err := l.Open()
	if err != nil {
		return err
	}
	defer file.Close() // only read from
	src := &source{ctx: u.ctx, r: file}
	packed, unpacked := sha256.New(), sha256.New()
	var tee io.Reader = src
	if l.Digest != "" {
		tee = io.TeeReader(src, packed)
	}
	plain, free, err := decompress(tee)
	if err != nil {
		return src.explain("layer "+clip(l.Name), err)
	}
	defer free()
	if err = u.tar(io.TeeReader(budget{plain, &u.left}, unpacked), true); err == nil {
		_, err = io.Copy(io.Discard, tee)
	}
	if err != nil {
		return src.explain("layer "+clip(l.Name), err)
	}
	if err := matches(blob{l.Name, l.Digest}, "sha256:"+hex.EncodeToString(packed.Sum(nil))); err != nil {
		return err
	}
	return matches(blob{l.Name, diffID}, "sha256:"+hex.EncodeToString(unpacked.Sum(nil)))
}

// settings are the image's, as they are kept here.
func (c imageConfig) settings() (image.Config, error) {
	s := image.Config{
		Env: c.Config.Env, User: c.Config.User, WorkDir: c.Config.WorkingDir, Entrypoint: c.Config.Entrypoint, Cmd: c.Config.Cmd,
	}
	if s.WorkDir != "" {
		s.WorkDir = path.Clean("/" + s.WorkDir)
	}
	if err := s.Validate(); err != nil {
		return s, fault("the image's configuration: %v", err)
	}
	return s, nil
}

// isFormat tells whether a client may ask for it.
func isFormat(f string) bool {
	return f == "" || f == FormatRootFS || f == FormatOCI || f == FormatDocker
}
