// Package reference reads the names that images have in registries.
//
// A name says its host: there is no registry that is meant when none is said, so that what a name leads to doesn't depend
// on whose machine reads it.
package reference

import (
	"net/netip"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/dsec-io/dsec/api"
)

const field = "reference"

// Reference names an image in a registry.
type Reference struct {
	Host       string // and its port, where one is said
	Repository string
	Tag        string // empty: a digest alone was said
	Digest     string // empty: whatever the tag leads to
}

// Parse reads HOST/REPOSITORY[:TAG][@DIGEST]. Where neither is said the tag is "latest".
func Parse(s string) (Reference, error) {
	host, rest, cut := strings.Cut(s, "/")
	if !cut || host == "" || !strings.ContainsAny(host, ".:") && host != "localhost" {
		return Reference{}, api.FieldError(api.CodeInvalid, field,
			"put the registry's host before it, such as registry.example.com/"+clip(strings.TrimPrefix(s, "/")), "%.200q doesn't say which registry", s)
	}
	base, digest, pinned := strings.Cut(rest, "@")
	tag, err := name.NewTag(host + "/" + base)
	if err != nil || strings.HasSuffix(host, ":") || !isRepository(tag.RepositoryStr()) {
		return Reference{}, invalid(s)
	}
	repo := tag.Repository
	r := Reference{Host: repo.RegistryStr(), Repository: repo.RepositoryStr(), Tag: tag.TagStr()}
	if pinned {
		if _, err := name.NewDigest(repo.Name() + "@" + digest); err != nil || !strings.HasPrefix(digest, "sha256:") {
			return Reference{}, invalid(s)
		}
		r.Digest = digest
		if !strings.Contains(base, ":") {
			r.Tag = ""
		}
	}
	return r, nil
}

// isRepository refuses parts that would change the path of a request, and that no registry has.
func isRepository(s string) bool {
	for part := range strings.SplitSeq(s, "/") {
		if part == "" || strings.IndexByte("._-", part[0]) >= 0 {
			return false
		}
	}
	return true
}

func invalid(s string) error {
	return api.FieldError(api.CodeInvalid, field, "write HOST/REPOSITORY:TAG or HOST/REPOSITORY@sha256:…, the repository in lower case",
		"%.200q isn't the name of an image in a registry", s)
}

// String writes the reference in full.
func (r Reference) String() string {
	s := r.Host + "/" + r.Repository
	if r.Tag != "" {
		s += ":" + r.Tag
	}
	if r.Digest != "" {
		s += "@" + r.Digest
	}
	return s
}

// ID is what leads to the manifest: the digest where there is one, as a tag beside it may have moved on.
func (r Reference) ID() string {
	if r.Digest != "" {
		return r.Digest
	}
	return r.Tag
}

// Repo is the repository as the registry's client has it.
func (r Reference) Repo(insecure bool) (name.Repository, error) {
	var o []name.Option
	if insecure {
		o = append(o, name.Insecure)
	}
	repo, err := name.NewRepository(r.Host+"/"+r.Repository, o...)
	if err != nil {
		return repo, invalid(r.String())
	}
	return repo, nil
}

// ImageName is what the image is called here when nothing else is said: the last part of the repository, and the tag
// unless that is "latest".
func (r Reference) ImageName() string {
	n := r.Repository[strings.LastIndexByte(r.Repository, '/')+1:]
	if r.Tag != "" && r.Tag != "latest" {
		n += "-" + strings.ToLower(r.Tag)
	}
	return n[:min(len(n), 128)]
}

// Loopback tells whether a host, with or without a port, is said to be this machine.
func Loopback(host string) bool {
	host = withoutPort(host)
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && addr.IsLoopback()
}

func withoutPort(host string) string {
	i := strings.LastIndexByte(host, ':')
	if i < 0 || strings.HasSuffix(host, "]") || strings.Count(host, ":") > 1 && host[0] != '[' {
		return host
	}
	return host[:i]
}

// Platform is what an image is made for.
type Platform struct{ Arch, Variant string }

// ParsePlatform reads linux/ARCH[/VARIANT]; empty is this machine's.
func ParsePlatform(s string) (Platform, error) {
	if s == "" {
		return Platform{Arch: runtime.GOARCH}, nil
	}
	parts := strings.Split(s, "/")
	bad := len(parts) < 2 || len(parts) > 3
	for _, p := range parts {
		bad = bad || p == "" || len(p) > 32 || strings.Trim(p, "abcdefghijklmnopqrstuvwxyz0123456789._-") != ""
	}
	if bad {
		return Platform{}, api.FieldError(api.CodeInvalid, "platform", "write linux/ARCH, such as linux/amd64 or linux/arm64", "%.100q isn't a platform", s)
	}
	if parts[0] != "linux" {
		return Platform{}, api.FieldError(api.CodeUnsupportedConstraint, "platform", "write linux/ARCH", "sandboxes run Linux, not %s", parts[0])
	}
	p := Platform{Arch: parts[1]}
	if len(parts) == 3 {
		p.Variant = parts[2]
	}
	return p, nil
}

// String writes the platform as it is read.
func (p Platform) String() string {
	s := "linux/" + p.Arch
	if p.Variant != "" {
		s += "/" + p.Variant
	}
	return s
}

func clip(s string) string {
	if len(s) > 100 {
		return s[:100] + "…"
	}
	return s
}
