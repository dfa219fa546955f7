package libdsec

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/dsec-io/dsec/api"
)

// The environment variables that [Resolve] reads.
const (
	EnvEndpoint = "DSEC_ENDPOINT" // http://HOST:PORT
	EnvToken    = "DSEC_TOKEN"
	EnvContext  = "DSEC_CONTEXT" // a context file such as DATA/context.json
)

// Settings say where the API is and who is asking.
type Settings struct {
	Endpoint string `json:"endpoint"`
	Token    string `json:"token"`
	Source   string `json:"-"` // where they came from, for people
	File     string `json:"-"` // the context file that they were read from; empty: none
}

// Resolve finds settings in the documented order: DSEC_ENDPOINT and DSEC_TOKEN, then the file that DSEC_CONTEXT names,
// then the user's current context in store. DSEC_ENDPOINT and DSEC_TOKEN each override what a later source says; a
// later source is never asked for when both are there.
//
// A token is never sent to an endpoint it wasn't meant for: when DSEC_ENDPOINT is set and DSEC_TOKEN isn't, the token
// of a context is used only if that context names the same endpoint.
func Resolve(getenv func(string) string, store Contexts) (Settings, error) {
	env := Settings{Endpoint: getenv(EnvEndpoint), Token: getenv(EnvToken), Source: "environment"}
	if env.Endpoint != "" && env.Token != "" {
		return env, nil
	}
	s, err := contextSettings(getenv(EnvContext), store)
	switch {
	case err != nil && env.Endpoint != "":
		return env, nil
	case err != nil:
		return Settings{}, err
	case env.Endpoint == "":
		if env.Token != "" {
			s.Token = env.Token
		}
		return s, nil
	}
	if strings.TrimRight(s.Endpoint, "/") == strings.TrimRight(env.Endpoint, "/") {
		env.Token = s.Token
	}
	return env, nil
}

func contextSettings(file string, store Contexts) (Settings, error) {
	if file != "" {
		s, err := ReadContextFile(file)
		if err != nil {
			err = api.FieldError(api.CodeInvalid, EnvContext, "name the context.json in the data folder of a `dsec dev`, or unset it", "%v", err)
		}
		return s, err
	}
	name, err := store.Current()
	if err != nil {
		return Settings{}, err
	}
	if name == "" {
		return Settings{}, api.FieldError(api.CodeInvalid, "", "start one with `dsec dev`, or set DSEC_ENDPOINT and DSEC_TOKEN",
			"no DSec server is configured")
	}
	return store.Read(name)
}

// ReadContextFile reads a context file: {"endpoint": …, "token": …}.
func ReadContextFile(path string) (Settings, error) {
	var c contextRecord
	if err := readJSON(path, &c); err != nil {
		return Settings{}, fmt.Errorf("read context file: %w", err)
	}
	if c.Endpoint == "" {
		return Settings{}, fmt.Errorf("read context file: %s has no endpoint", path)
	}
	return Settings{Endpoint: c.Endpoint, Token: c.Token, Source: path, File: path}, nil
}

// Contexts is the user's folder of named contexts: a file for each, and the name of the current one. A context either
// holds an endpoint and a token, or names the context file of a server on this machine, so that it stays right when that
// server restarts. The zero value has no folder: it is empty and can't be written.
type Contexts struct {
	Dir string
}

// contextRecord is a stored context. File, when set, is where the rest is.
type contextRecord struct {
	Endpoint string `json:"endpoint,omitempty"`
	Token    string `json:"token,omitempty"`
	File     string `json:"file,omitempty"`
}

// UserContexts is the folder in the user's configuration directory ($XDG_CONFIG_HOME/dsec, else $HOME/.config/dsec). It
// is the zero Contexts when the user has no such directory.
func UserContexts(getenv func(string) string) Contexts {
	if dir := getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return Contexts{Dir: filepath.Join(dir, "dsec")}
	}
	if home := getenv("HOME"); filepath.IsAbs(home) {
		return Contexts{Dir: filepath.Join(home, ".config", "dsec")}
	}
	return Contexts{}
}

// Names lists the contexts, sorted.
func (c Contexts) Names() ([]string, error) {
	if c.Dir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(filepath.Join(c.Dir, "contexts"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list contexts: %w", err)
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".json"); ok && contextName().MatchString(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// Current is the name of the current context; empty when none is.
func (c Contexts) Current() (string, error) {
	if c.Dir == "" {
		return "", nil
	}
	b, err := readSettings(filepath.Join(c.Dir, "current"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the current context: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// Read gives the settings of a context.
func (c Contexts) Read(name string) (Settings, error) {
	path, err := c.path(name)
	if err != nil {
		return Settings{}, err
	}
	var r contextRecord
	if err := readJSON(path, &r); errors.Is(err, fs.ErrNotExist) {
		return Settings{}, api.FieldError(api.CodeNotFound, "context", "`dsec config contexts` lists them", "no context %q", name)
	} else if err != nil {
		return Settings{}, fmt.Errorf("read context %s: %w", name, err)
	}
	if r.File == "" {
		return Settings{Endpoint: r.Endpoint, Token: r.Token, Source: "context " + name}, nil
	}
	s, err := ReadContextFile(r.File)
	if err != nil {
		return Settings{}, fmt.Errorf("context %s: %w", name, err)
	}
	s.Source = "context " + name + " (" + r.File + ")"
	return s, nil
}

// SaveFile stores a context that follows the context file at path.
func (c Contexts) SaveFile(name, path string) error {
	abs, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("save context %s: %w", name, err)
	}
	return c.save(name, contextRecord{File: abs})
}

// Save stores a context with settings of its own.
func (c Contexts) Save(name string, s Settings) error {
	return c.save(name, contextRecord{Endpoint: s.Endpoint, Token: s.Token})
}

func (c Contexts) save(name string, r contextRecord) error {
	path, err := c.path(name)
	if err != nil {
		return err
	}
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("save context %s: %w", name, err)
	}
	return replaceFile(path, b)
}

// Use makes a stored context the current one.
func (c Contexts) Use(name string) error {
	path, err := c.path(name)
	if err != nil {
		return err
	}
	if _, err := os.Stat(path); err != nil {
		return api.FieldError(api.CodeNotFound, "context", "`dsec config contexts` lists them", "no context %q", name)
	}
	return replaceFile(filepath.Join(c.Dir, "current"), []byte(name+"\n"))
}

// Remove forgets a stored context. If it was the current one, none is afterwards.
func (c Contexts) Remove(name string) error {
	path, err := c.path(name)
	if err != nil {
		return err
	}
	current, err := c.Current()
	if err != nil {
		return err
	}
	if err := os.Remove(path); errors.Is(err, fs.ErrNotExist) {
		return api.FieldError(api.CodeNotFound, "context", "`dsec config contexts` lists them", "no context %q", name)
	} else if err != nil {
		return fmt.Errorf("forget context %s: %w", name, err)
	}
	if current != name {
		return nil
	}
	if err := os.Remove(filepath.Join(c.Dir, "current")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget the current context: %w", err)
	}
	return nil
}

func (c Contexts) path(name string) (string, error) {
	if c.Dir == "" {
		return "", api.Errorf(api.CodeInvalid, "no configuration directory: neither XDG_CONFIG_HOME nor HOME is set")
	}
	if !contextName().MatchString(name) {
		return "", api.FieldError(api.CodeInvalid, "context", "use letters, digits, '.', '_' and '-'", "invalid context name %q", name)
	}
	return filepath.Join(c.Dir, "contexts", name+".json"), nil
}

func contextName() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`) }

// maxSettings is the most that is read of a file.
const maxSettings = 1 << 20

// readSettings reads a regular file. What the environment names may be a device without end, or a pipe that nobody
// writes to.
func readSettings(path string) ([]byte, error) {
	if st, err := os.Stat(path); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxSettings+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxSettings {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("larger than %d bytes", maxSettings)}
	}
	return b, nil
}

func readJSON(path string, v any) error {
	b, err := readSettings(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// replaceFile writes through a temporary file: a reader sees the old bytes or the new ones. Contexts hold tokens, so
// nobody else may read them.
func replaceFile(path string, b []byte) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	f, err := os.CreateTemp(dir, ".tmp-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// Prune forgets contexts that follow a context file which is gone.
func (c Contexts) Prune() error {
	names, err := c.Names()
	if err != nil {
		return err
	}
	for _, name := range names {
		path := filepath.Join(c.Dir, "contexts", name+".json")
		var r contextRecord
		if readJSON(path, &r) != nil || r.File == "" {
			continue
		}
		if _, err := os.Stat(r.File); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("forget context %s: %w", name, err)
		}
	}
	return nil
}
