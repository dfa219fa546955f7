package apiserver

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dsec-io/dsec/api"
)

// DefaultProject is the project of every token until there are others.
const DefaultProject = "default"

const (
	tokenPrefix    = "dsec_" // so that secret scanners find a leaked one
	maxBearer      = 512
	tokensVersion  = 1
	tokensFileMode = 0o600
)

// tokenRecord is a token as the file keeps it: by its hash. A token has 130 random bits, so a plain hash hides it.
type tokenRecord struct {
	ID        string    `json:"id"`
	Project   string    `json:"project"`
	SHA256    string    `json:"sha256"`
	CreatedAt time.Time `json:"created_at"`
	hash      [sha256.Size]byte
}

type tokenFile struct {
	Version int           `json:"version"`
	Tokens  []tokenRecord `json:"tokens"`
}

// Tokens are the tokens of one file. They don't change while a server runs.
type Tokens struct {
	records []tokenRecord
}

// OpenTokens reads a token file.
func OpenTokens(path string) (*Tokens, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read tokens: %w", err)
	}
	var f tokenFile
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("read tokens %s: %w", path, err)
	}
	if f.Version != tokensVersion {
		return nil, fmt.Errorf("read tokens %s: version %d isn't known", path, f.Version)
	}
	for i := range f.Tokens {
		rec := &f.Tokens[i]
		if n, err := hex.Decode(rec.hash[:], []byte(rec.SHA256)); err != nil || n != sha256.Size || len(rec.SHA256) != 2*sha256.Size {
			return nil, fmt.Errorf("read tokens %s: token %s has no valid hash", path, rec.ID)
		}
	}
	return &Tokens{records: f.Tokens}, nil
}

// EnsureToken makes sure that the file at path accepts a token and returns it: the given one if it is accepted already,
// else a new one that replaces all others.
func EnsureToken(path, given string) (string, error) {
	t, err := OpenTokens(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err == nil && given != "" {
		if _, ok := t.lookup(given); ok {
			return given, nil
		}
	}
	token := tokenPrefix + strings.ToLower(rand.Text())
	hash := sha256.Sum256([]byte(token))
	f := tokenFile{Version: tokensVersion, Tokens: []tokenRecord{{
		ID: hex.EncodeToString(hash[:4]), Project: DefaultProject, SHA256: hex.EncodeToString(hash[:]), CreatedAt: time.Now().UTC(),
	}}}
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return "", fmt.Errorf("write tokens: %w", err)
	}
	return token, WriteFile(path, append(data, '\n'), tokensFileMode)
}

// WriteFile replaces a file as a whole: readers see the old or the new one, also after a crash.
func WriteFile(path string, data []byte, mode fs.FileMode) (err error) {
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
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// lookup compares with every token, whichever matches, so that the time tells nothing.
func (t *Tokens) lookup(token string) (Principal, bool) {
	hash := sha256.Sum256([]byte(token))
	found := -1
	for i := range t.records {
		if subtle.ConstantTimeCompare(hash[:], t.records[i].hash[:]) == 1 {
			found = i
		}
	}
	if found < 0 {
		return Principal{}, false
	}
	return Principal{Token: t.records[found].ID, Project: t.records[found].Project}, true
}

// authenticate finds out who sent a request.
func (t *Tokens) authenticate(r *http.Request) (Principal, *api.Error) {
	given := r.Header.Get("Authorization")
	scheme, token, _ := strings.Cut(given, " ")
	token = strings.TrimSpace(token)
	switch {
	case given == "":
		return Principal{}, api.FieldError(api.CodeUnauthenticated, "Authorization", "send Authorization: Bearer TOKEN; the token is in the context file", "there is no token")
	case !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > maxBearer:
		return Principal{}, api.FieldError(api.CodeUnauthenticated, "Authorization", "send Authorization: Bearer TOKEN", "it isn't a bearer token")
	}
	p, ok := t.lookup(token)
	if !ok {
		return Principal{}, api.FieldError(api.CodeUnauthenticated, "Authorization", "is it the token of another instance, or an old one?", "the token isn't valid")
	}
	return p, nil
}
