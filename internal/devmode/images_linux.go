package devmode

import (
	"github.com/dsec-io/dsec/internal/image"
	"github.com/dsec-io/dsec/internal/image/importer"
	"github.com/dsec-io/dsec/internal/image/registry"
)

// images are those of the node, and how they come from registries and go there.
type images struct {
	*importer.Importer
	*registry.Remote
}

// openImages opens the node's own images in a folder. forget is told of each name that no longer means what it did.
func (in *instance) openImages(dir string, store *image.Store, forget func(string)) (images, error) {
	im, err := importer.New(importer.Config{Dir: dir, Images: store, Forget: forget})
	if err != nil {
		return images{}, err
	}
	remote, err := registry.New(registry.Config{Importer: im, Allow: in.cfg.Registries})
	return images{im, remote}, err
}
