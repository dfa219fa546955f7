package registry_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image/registry"
)

// TestRefusals is of what can't be pulled. Each says what it is, before any layer is fetched, and leaves nothing.
func TestRefusals(t *testing.T) {
	h, n := newHub(t), newNode(t, registry.Config{})
	tree := pack(t, entry{"a", "1"})
	layer := h.blob(ociLayer, tree)
	conf := h.blob(ociConfig, config(t, arch, tree))
	image := func(layers ...desc) object {
		return object{"schemaVersion": 2, "mediaType": ociManifest, "config": conf, "layers": layers}
	}
	as := func(d desc, media string) desc {
		d.MediaType = media
		return d
	}
	deep := h.manifest("", ociManifest, image(layer))
	for range 5 {
		deep = h.manifest("", ociIndex, object{"schemaVersion": 2, "manifests": []desc{deep}})
	}
	wide := []desc{}
	for i := range 20 {
		wide = append(wide, h.manifest("", ociIndex, object{"schemaVersion": 2, "manifests": []desc{}, "annotations": object{"n": strings.Repeat("i", i)}}))
	}
	wrongArch := object{"schemaVersion": 2, "config": h.blob(ociConfig, config(t, other(), tree)), "layers": []desc{layer}}
	nowhere := "sha256:" + strings.Repeat("ab", 32)
	for name, tc := range map[string]struct {
		manifest any
		code     api.Code
		parts    []string
	}{
		"schema 1":            {object{"schemaVersion": 1, "name": "a", "fsLayers": []object{}}, api.CodeUnsupportedConstraint, []string{"schema 1", "push it again"}},
		"not JSON":            {[]byte("<html>"), api.CodeInvalid, []string{"isn't what it should be"}},
		"nothing":             {object{"schemaVersion": 2}, api.CodeUnsupportedConstraint, []string{"type that isn't known"}},
		"image and list":      {object{"schemaVersion": 2, "config": conf, "layers": []desc{layer}, "manifests": []desc{}}, api.CodeInvalid, []string{"at once"}},
		"list as an image":    {object{"schemaVersion": 2, "mediaType": ociManifest, "manifests": []desc{}}, api.CodeInvalid, []string{"isn't of the type"}},
		"an artifact":         {object{"schemaVersion": 2, "artifactType": "application/vnd.example.chart", "config": as(conf, "application/vnd.oci.empty.v1+json"), "layers": []desc{layer}}, api.CodeUnsupportedConstraint, []string{"no image", "vnd.example.chart"}},
		"encrypted":           {image(as(layer, ociLayer+"+encrypted")), api.CodeUnsupportedConstraint, []string{"+encrypted"}},
		"unknown layer type":  {image(as(layer, "application/vnd.example.wasm")), api.CodeUnsupportedConstraint, []string{"vnd.example.wasm"}},
		"foreign":             {image(desc{MediaType: dockerLayer, Digest: nowhere, Size: 5, URLs: []string{"https://layers.example.com/x"}}), api.CodeUnsupportedConstraint, []string{"isn't in the registry", "nothing is fetched from there"}},
		"a missing layer":     {image(desc{MediaType: ociLayer, Digest: nowhere, Size: 5}), api.CodeNoSuchImage, []string{"blob sha256:abab"}},
		"a bad digest":        {image(desc{MediaType: ociLayer, Digest: "sha256:../../etc/passwd", Size: 5}), api.CodeInvalid, []string{"isn't a SHA-256 digest"}},
		"a size below 0":      {image(desc{MediaType: ociLayer, Digest: layer.Digest, Size: -1}), api.CodeInvalid, []string{"a size"}},
		"a huge layer":        {image(desc{MediaType: ociLayer, Digest: layer.Digest, Size: 1 << 40}), api.CodeTooLarge, []string{"layers have more than"}},
		"huge layers":         {image(desc{MediaType: ociLayer, Digest: layer.Digest, Size: 1 << 37}, desc{MediaType: ociLayer, Digest: nowhere, Size: 1 << 37}), api.CodeTooLarge, []string{"layers have more than"}},
		"a huge config":       {object{"schemaVersion": 2, "config": desc{MediaType: ociConfig, Digest: conf.Digest, Size: 1 << 30}, "layers": []desc{layer}}, api.CodeTooLarge, []string{"configuration"}},
		"a layer of too much": {object{"schemaVersion": 2, "config": conf, "layers": []desc{layer, layer}}, api.CodeInvalid, []string{"2 layers, and 1 in the configuration"}},
		"another layer":       {image(h.blob(ociLayer, pack(t, entry{"b", "2"}))), api.CodeInvalid, []string{"has been changed"}},
		"for another machine": {wrongArch, api.CodeUnsupportedConstraint, []string{"linux/" + other(), "--platform"}},
		"an empty list":       {object{"schemaVersion": 2, "manifests": []desc{}}, api.CodeUnsupportedConstraint, []string{"no image for linux/" + arch}},
		"lists in lists":      {object{"schemaVersion": 2, "manifests": []desc{deep}}, api.CodeInvalid, []string{"without end"}},
		"a list of lists":     {object{"schemaVersion": 2, "manifests": wide}, api.CodeInvalid, []string{"without end"}},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			raw, ok := tc.manifest.([]byte)
			if !ok {
				raw = doc(t, tc.manifest)
			}
			h.misbehave(func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.HasSuffix(r.URL.Path, "/manifests/odd") {
					return false
				}
				_, _ = w.Write(raw)
				return true
			})
			_, _, err := n.pull(order(h, ":odd"))
			wantError(t, err, tc.code, tc.parts...)
			if f := api.AsError(err).Field; f != "reference" && f != "platform" {
				t.Errorf("the field is %q", f)
			}
			if got := n.left(); len(got) > 0 {
				t.Errorf("left in the store: %q", got)
			}
		})
	}
	h.misbehave(nil)
	_, _, err := n.pull(order(h, ":none"))
	wantError(t, err, api.CodeNoSuchImage, "team/app:none")
}

// TestCase95 pulls layers that are packed in every way there is, under whatever type they say, and lists in lists.
func TestCase95(t *testing.T) {
	t.Parallel()
	h, n := newHub(t), newNode(t, registry.Config{})
	tree := pack(t, entry{"a", strings.Repeat("text ", 10_000)})
	// eStargz is gzip in several members, zstd:chunked is zstd with frames to skip.
	members := append(gz(t, tree[:2000]), gz(t, tree[2000:])...)
	chunked := append(append(zst(t, tree[:2000]), zst(t, tree[2000:])...), 0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 'T', 'O', 'C')
	want := ""
	for name, tc := range map[string]struct {
		layer            []byte
		media            string
		manifest, config string
	}{
		"plain":        {tree, ociLayer, ociManifest, ociConfig},
		"gzip":         {gz(t, tree), ociLayer + "+gzip", ociManifest, ociConfig},
		"estargz":      {members, ociLayer + "+gzip", ociManifest, ociConfig},
		"zstd":         {zst(t, tree), ociLayer + "+zstd", ociManifest, ociConfig},
		"zstd-chunked": {chunked, ociLayer + "+zstd", ociManifest, ociConfig},
		"docker":       {gz(t, tree), dockerLayer, dockerSchema, dockerConfig},
		"docker-lies":  {zst(t, tree), dockerLayer, dockerSchema, dockerConfig},
		"foreign-here": {gz(t, tree), "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", dockerSchema, dockerConfig},
		"without-type": {gz(t, tree), "", ociManifest, ""},
	} {
		m := h.manifest("", tc.manifest, object{
			"schemaVersion": 2, "config": h.blob(tc.config, config(t, arch, tree)), "layers": []desc{h.blob(tc.media, tc.layer)},
		})
		list := h.manifest("", dockerList, object{"schemaVersion": 2, "mediaType": dockerList, "manifests": []desc{m}})
		h.manifest(name, ociIndex, object{"schemaVersion": 2, "manifests": []desc{list}})
		ev, _, err := n.pull(withName(order(h, ":"+name), name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if want == "" {
			want = ev.Image.Digest
		}
		if ev.Image.Digest != want {
			t.Errorf("%s: image %s, want %s", name, ev.Image.Digest, want)
		}
	}
}

// TestCase92 pulls layers without entries, with empty files alone, and with nothing but other rights: the image is what an
// import gives.
func TestCase92(t *testing.T) {
	h, n := newHub(t), newNode(t, registry.Config{})
	for tag, layers := range map[string][][]byte{
		"none":  {},
		"empty": {pack(t), pack(t, entry{"empty", ""}), pack(t), pack(t, entry{"dir/", ""})},
		"meta":  {pack(t, entry{"dir/", ""}, entry{"dir/file", "x"}), pack(t, entry{"dir/", ""})},
	} {
		m := h.image(tag, arch, gz, layers...)
		ev, _, err := n.pull(withName(order(h, ":"+tag), tag))
		if err != nil {
			t.Errorf("%s: %v", tag, err)
			continue
		}
		same, err := n.importer.Import(t.Context(), api.ImageImport{Name: tag + "-imported"}, bytes.NewReader(layout(t, h, m)), nil)
		if err != nil || same.Digest != ev.Image.Digest {
			t.Errorf("%s: pulled %s, imported %s, %v", tag, ev.Image.Digest, same.Digest, err)
		}
	}
}

// TestVariants chooses among variants of an architecture.
func TestVariants(t *testing.T) {
	h, n := newHub(t), newNode(t, registry.Config{})
	list := []desc{}
	byVariant := map[string]string{}
	for _, v := range []string{"v6", "v7", "v5"} {
		tree := pack(t, entry{v, v})
		d := h.manifest("", ociManifest, object{"schemaVersion": 2, "config": h.blob(ociConfig, config(t, "arm", tree)), "layers": []desc{h.blob(ociLayer, tree)}})
		d.Platform = &platform{"linux", "arm", v}
		list, byVariant[d.Digest] = append(list, d), v
	}
	h.manifest("arm", ociIndex, object{"schemaVersion": 2, "manifests": list})
	h.manifest("old", ociIndex, object{"schemaVersion": 2, "manifests": []desc{list[0], list[2]}})
	got := map[string]string{}
	for _, ask := range [][2]string{{"arm", "linux/arm"}, {"arm", "linux/arm/v6"}, {"arm", "linux/arm/v5"}, {"old", "linux/arm"}, {"old", "linux/arm/v7"}} {
		o := withName(order(h, ":"+ask[0]), "x"+strings.ReplaceAll(strings.Join(ask[:], "-"), "/", "-"))
		o.Platform = ask[1]
		ev, _, err := n.pull(o)
		got[ask[0]+" "+ask[1]] = "none"
		if err == nil {
			got[ask[0]+" "+ask[1]] = byVariant[ev.Image.Source.Manifest]
		}
	}
	want := map[string]string{"arm linux/arm": "v7", "arm linux/arm/v6": "v6", "arm linux/arm/v5": "v5", "old linux/arm": "v6", "old linux/arm/v7": "none"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("chosen (-want +got):\n%s", diff)
	}
}
