package image

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
)

// maxConfig bounds config.json.
const maxConfig = 1 << 20

// Config is an image's config.json: what a command in it gets when the request doesn't say otherwise.
type Config struct {
	Env        []string `json:"env"` // "K=V"
	User       string   `json:"user"`
	WorkDir    string   `json:"workdir"`
	Entrypoint []string `json:"entrypoint"`
	Cmd        []string `json:"cmd"`
	Hostname   string   `json:"hostname"`
	Digest     string   `json:"digest"` // "sha256:" and 64 hex digits: the content of image.erofs

	Source *Source `json:"source,omitempty"` // nil: it wasn't pulled
}

// Source is where an image was pulled from. It says nothing of when: the same image gives the same config.json.
type Source struct {
	Reference string `json:"reference"`         // as it was asked for, with the host
	Digest    string `json:"digest"`            // of what the reference led to: a list of images, or the image
	Manifest  string `json:"manifest"`          // of the image's own manifest
	Platform  string `json:"platform"`          // "linux/amd64"
	Created   string `json:"created,omitempty"` // when the image was made, as it says of itself
}

// ParseConfig reads a config.json. It refuses what it doesn't know, a field that is given twice, and anything behind
// the object: a setting that is misspelt must not be lost in silence.
func ParseConfig(b []byte) (Config, error) {
	var c Config
	fields := map[string]any{
		"env": &c.Env, "user": &c.User, "workdir": &c.WorkDir, "entrypoint": &c.Entrypoint, "cmd": &c.Cmd,
		"hostname": &c.Hostname, "digest": &c.Digest, "source": &c.Source,
	}
	seen := map[string]bool{}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return Config{}, errors.Join(errors.New("not a JSON object"), err)
	}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return Config{}, err
		}
		key := t.(string) // the decoder takes nothing else where a key must be
		if fields[key] == nil {
			return Config{}, fmt.Errorf("unknown field %q", key)
		}
		if seen[key] {
			return Config{}, fmt.Errorf("field %q is given twice", key)
		}
		seen[key] = true
		if err := dec.Decode(fields[key]); err != nil {
			return Config{}, fmt.Errorf("field %q: %w", key, err)
		}
	}
	if _, err := dec.Token(); err != nil {
		return Config{}, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return Config{}, errors.New("something follows the object")
	}
	return c, c.Validate()
}

// Validate tells every fault of c.
func (c Config) Validate() error {
	var errs []error
	for _, kv := range c.Env {
		if k, _, ok := strings.Cut(kv, "="); !ok || k == "" {
			errs = append(errs, fmt.Errorf("env: %q isn't K=V", kv))
		}
	}
	if c.WorkDir != "" && c.WorkDir[0] != '/' {
		errs = append(errs, fmt.Errorf("workdir: %q isn't absolute", c.WorkDir))
	}
	all := append([]string{c.User, c.WorkDir, c.Hostname}, c.Env...)
	all = append(append(all, c.Entrypoint...), c.Cmd...)
	for _, s := range all {
		if strings.ContainsRune(s, 0) {
			errs = append(errs, fmt.Errorf("%q contains a NUL", s))
		}
	}
	if c.Digest != "" && !validDigest(c.Digest) {
		errs = append(errs, fmt.Errorf("digest: %q isn't sha256: and 64 hex digits", c.Digest))
	}
	return errors.Join(append(errs, c.Source.validate())...)
}

func (s *Source) validate() error {
	if s == nil {
		return nil
	}
	for _, d := range []string{s.Digest, s.Manifest} {
		if !validDigest(d) {
			return fmt.Errorf("source: %q isn't sha256: and 64 hex digits", d)
		}
	}
	for _, text := range []string{s.Reference, s.Platform, s.Created} {
		if len(text) > 1024 || strings.ContainsFunc(text, unicode.IsControl) {
			return fmt.Errorf("source: %.100q isn't a line of text", text)
		}
	}
	return nil
}

func validDigest(s string) bool {
	hex, ok := strings.CutPrefix(s, "sha256:")
	return ok && len(hex) == 64 && strings.Trim(hex, "0123456789abcdef") == ""
}
