package imagecmd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/configfile"
	"github.com/docker/cli/cli/config/types"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image/reference"
)

// credentials are who we are for a registry, as docker's or podman's configuration says, or the credential helper that it
// names; nil for nobody in particular.
func (a app) credentials(ref reference.Reference) (*api.RegistryAuth, error) {
	file, err := a.dockerConfig()
	if file == nil || err != nil {
		return nil, err
	}
	for _, key := range []string{ref.Host + "/" + ref.Repository, ref.Host} {
		if ref.Host == name.DefaultRegistry {
			key = authn.DefaultAuthKey
		}
		c, err := file.GetAuthConfig(key)
		if err != nil {
			return nil, api.FieldError(api.CodeInvalid, "reference", "log in again with `docker login "+ref.Host+"`", "docker's credentials for %s can't be had: %v", ref.Host, err)
		}
		c.ServerAddress = "" // always said
		if c != (types.AuthConfig{}) {
			return &api.RegistryAuth{Username: c.Username, Password: c.Password, IdentityToken: c.IdentityToken, RegistryToken: c.RegistryToken}, nil
		}
	}
	return nil, nil //nolint:nilnil // as documented
}

// dockerConfig reads the first configuration that there is; nil if there's none.
func (a app) dockerConfig() (*configfile.ConfigFile, error) {
	var places []string
	add := func(dir, rest string) {
		if dir != "" {
			places = append(places, filepath.Join(dir, rest))
		}
	}
	home := a.Getenv("HOME")
	add(a.Getenv("DOCKER_CONFIG"), "config.json")
	if a.Getenv("DOCKER_CONFIG") == "" {
		add(home, ".docker/config.json")
	}
	add(a.Getenv("REGISTRY_AUTH_FILE"), "")
	add(a.Getenv("XDG_RUNTIME_DIR"), "containers/auth.json")
	add(a.Getenv("XDG_CONFIG_HOME"), "containers/auth.json")
	add(home, ".config/containers/auth.json")
	for _, path := range places {
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, api.Errorf(api.CodeInvalid, "docker's configuration: %v", err)
		}
		file, err := config.LoadFromReader(f)
		f.Close() // only read from
		if err != nil {
			return nil, api.Errorf(api.CodeInvalid, "docker's configuration %s: %v", path, err)
		}
		return file, nil
	}
	return nil, nil //nolint:nilnil // as documented
}
