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

// ImageEvent is a line of a streamed import: progress, then the image (type "done") or why there is none ("error").
type ImageEvent struct {
	Type  string `json:"type"`
	Phase string `json:"phase,omitempty"` // of progress: "reading", then "building"
	Bytes int64  `json:"bytes,omitempty"` // of progress: what was read of the upload, or written of the image
	Files int    `json:"files,omitempty"` // of progress: in the image so far
	Image *Image `json:"image,omitempty"`
	Error *Error `json:"error,omitempty"`
}

// ImageRemoved is the answer to the removal of images, also by a collection of garbage.
type ImageRemoved struct {
	Removed    []string `json:"removed"`
	FreedBytes int64    `json:"freed_bytes"`
}
