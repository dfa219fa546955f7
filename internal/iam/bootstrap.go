package iam

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dsec-io/dsec/api"
)

const (
	fileVersion = 1
	fileMode    = 0o600
)

// fileRecord is a token as the token file keeps it. Its project is where it acts by itself; it may do everything
// everywhere.
type fileRecord struct {
	ID        string    `json:"id"`
	Project   string    `json:"project"`
	SHA256    string    `json:"sha256"`
	CreatedAt time.Time `json:"created_at"`
}

type tokenFile struct {
	Version int          `json:"version"`
	Tokens  []fileRecord `json:"tokens"`
}

// Bootstrap are the tokens of a server's own file, by which others are made. They are known before the store is, and
// don't change while the server runs.
type Bootstrap struct{ records []record }

// ReadBootstrap reads a token file.
func ReadBootstrap(path string) (Bootstrap, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Bootstrap{}, fmt.Errorf("read tokens: %w", err)
	}
	var f tokenFile
	if err := json.Unmarshal(data, &f); err != nil {
		return Bootstrap{}, fmt.Errorf("read tokens %s: %w", path, err)
	}
	if f.Version != fileVersion {
		return Bootstrap{}, fmt.Errorf("read tokens %s: version %d isn't known", path, f.Version)
	}
	var b Bootstrap
	for _, rec := range f.Tokens {
		r := record{
			Token: api.Token{
				ID: rec.ID, Label: "bootstrap", Project: rec.Project, CreatedAt: rec.CreatedAt, Bootstrap: true,
				Grants: []api.Grant{{Project: api.AnyProject, Role: api.RoleAdmin}},
			},
			SHA256: rec.SHA256,
		}
		if _, err := r.hash(); err != nil {
			return Bootstrap{}, fmt.Errorf("read tokens %s: %w", path, err)
		}
		if err := api.CheckProjectName("project", rec.Project); err != nil {
			return Bootstrap{}, fmt.Errorf("read tokens %s: token %s: %w", path, rec.ID, err)
		}
		b.records = append(b.records, r)
	}
	return b, nil
}

// EnsureToken makes sure that the file at path accepts a token and returns it: the given one if it is accepted already,
// else a new one that replaces all others.
func EnsureToken(path, given string) (string, error) {
	b, err := ReadBootstrap(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	want := hash(given)
	for i := range b.records {
		if have, err := b.records[i].hash(); err == nil && have == want && given != "" {
			return given, nil
		}
	}
	secret := secretPrefix + strings.ToLower(rand.Text())
	h := hash(secret)
	data, err := json.MarshalIndent(tokenFile{Version: fileVersion, Tokens: []fileRecord{{
		ID: hex.EncodeToString(h[:4]), Project: api.DefaultProject, SHA256: hex.EncodeToString(h[:]), CreatedAt: time.Now().UTC(),
	}}}, "", "  ")
	if err != nil {
		return "", fmt.Errorf("write tokens: %w", err)
	}
	return secret, WriteFile(path, append(data, '\n'))
}

// WriteFile replaces a file as a whole, readable for its owner alone: readers see the old or the new one, also after a
// crash.
func WriteFile(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, errors.Join(err, os.Remove(f.Name())))
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(fileMode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
