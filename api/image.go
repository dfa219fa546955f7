package api

import "time"

// Image is a file system that sandboxes start from, and what a command in them gets when its request doesn't say otherwise.
type Image struct {
	Name       string    `json:"name"`
	Digest     string    `json:"digest"` // "sha256:…" of the file system: the same input gives the same
	SizeBytes  int64     `json:"size_bytes"`
	CreatedAt  time.Time `json:"created_at"`
	Shared     bool      `json:"shared,omitempty"` // of the machine, for every DSec on it: it can't be removed here
	InUse      int       `json:"in_use"`           // sandboxes that live and were made from it
	Broken     string    `json:"broken,omitempty"` // why it can't be used
	Env        []string  `json:"env"`
	User       string    `json:"user"`
	Workdir    string    `json:"workdir"`
	Entrypoint []string  `json:"entrypoint"`
	Cmd        []string  `json:"cmd"`
	Hostname   string    `json:"hostname"`

	Source *ImageSource `json:"source,omitempty"` // where it was pulled from, if it was
}

// ImageSource tells where an image was pulled from.
type ImageSource struct {
	Reference string `json:"reference"`         // as it was asked for, with the host
	Digest    string `json:"digest"`            // "sha256:…" of what the reference led to: a list of images, or the image
	Manifest  string `json:"manifest"`          // "sha256:…" of the image's own manifest
	Platform  string `json:"platform"`          // "linux/amd64"
	Created   string `json:"created,omitempty"` // when the image was made, as it says of itself
}

// ImageList is the answer to a listing of images, by name.
type ImageList struct {
	Items []Image `json:"items"`
}

// ImageImport is how an image is made of what is uploaded.
type ImageImport struct {
	Name string `json:"name"`
	// Format is "rootfs", "oci" (a layout) or "docker" (`docker save`); empty: found out.
	Format string `json:"format,omitempty"`
	// Replace takes the place of an image of that name. Sandboxes that live keep what they started from.
	Replace bool `json:"replace,omitempty"`
	// Squash gives files of ids above 65,535 to nobody (65534) without setuid, setgid and capabilities, instead of
	// refusing the image.
	Squash bool `json:"squash,omitempty"`
}

// ImagePull is how an image is fetched from a registry.
type ImagePull struct {
	// Reference is HOST/REPOSITORY with :TAG, @DIGEST or both; the tag is "latest" where neither is said.
	Reference string `json:"reference"`
	// Name is what the image is called here; empty: the last part of the repository, and the tag unless that is "latest".
	Name string `json:"name,omitempty"`
	// Platform is "linux/ARCH" or "linux/ARCH/VARIANT"; empty: the node's.
	Platform string `json:"platform,omitempty"`
	// Replace takes the place of an image of that name. One that was pulled by the same reference is replaced anyhow.
	Replace bool `json:"replace,omitempty"`
	// Squash is as in an import.
	Squash bool `json:"squash,omitempty"`
	RegistryAccess
}

// ImagePush is how an image is sent to a registry.
type ImagePush struct {
	// Reference is HOST/REPOSITORY[:TAG].
	Reference string `json:"reference"`
	// MountFrom is a REPOSITORY of the same registry that may have the layer already, which then isn't sent.
	MountFrom string `json:"mount_from,omitempty"`
	RegistryAccess
}

// RegistryAccess is how a registry is talked to in one pull or push. Nothing of it is kept or logged.
type RegistryAccess struct {
	Insecure bool          `json:"insecure,omitempty"` // also over plain HTTP, which else only a loopback address may speak
	CA       string        `json:"ca,omitempty"`       // PEM certificates that are trusted beside the system's
	Auth     *RegistryAuth `json:"auth,omitempty"`     // nil: nobody in particular
}

// RegistryAuth is who a registry is told that we are. It prints as nothing, so that no log can have it.
type RegistryAuth struct {
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	IdentityToken string `json:"identity_token,omitempty"` // gets access tokens, in place of a password
	RegistryToken string `json:"registry_token,omitempty"` // is an access token
}

// String keeps credentials out of whatever prints them.
func (RegistryAuth) String() string { return "(credentials)" }

// GoString keeps credentials out of whatever prints them.
func (RegistryAuth) GoString() string { return "(credentials)" }

// ImagePushed is what a push has put into a registry.
type ImagePushed struct {
	Reference string `json:"reference"`
	Digest    string `json:"digest"`     // "sha256:…" of the manifest: the same image gives the same
	SizeBytes int64  `json:"size_bytes"` // of the layer, as it is sent
}

// ImageEvent is a line of a streamed import, pull or push: progress, then what was made (type "done") or why there is
// nothing ("error").
type ImageEvent struct {
	Type     string       `json:"type"`
	Phase    string       `json:"phase,omitempty"`   // of progress: "downloading", "reading", "building"; "packing", "uploading"
	Bytes    int64        `json:"bytes,omitempty"`   // of progress: what came or was read of the upload, or what was written or sent
	Total    int64        `json:"total,omitempty"`   // of progress: what Bytes will be in the end, where that is known
	Files    int          `json:"files,omitempty"`   // of progress: in the image so far
	Warning  string       `json:"warning,omitempty"` // of progress: what went wrong and was mended, such as a blob that came with wrong bytes
	Image    *Image       `json:"image,omitempty"`
	UpToDate bool         `json:"up_to_date,omitempty"` // of a pull that is done: there was nothing to fetch
	Pushed   *ImagePushed `json:"pushed,omitempty"`
	Error    *Error       `json:"error,omitempty"`
}

// ImageRemoved is the answer to the removal of images, also by a collection of garbage.
type ImageRemoved struct {
	Removed    []string `json:"removed"`
	FreedBytes int64    `json:"freed_bytes"`
}
