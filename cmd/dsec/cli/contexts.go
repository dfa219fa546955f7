package cli

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/dsec-io/dsec/libdsec"
)

// Adopt adds a context that follows a context file, and makes it current. Contexts of servers whose files are gone are
// forgotten on the way: nothing can come back there.
func Adopt(store libdsec.Contexts, file string) error {
	abs, err := filepath.Abs(file)
	if err != nil {
		return fmt.Errorf("context file: %w", err)
	}
	if err := store.Prune(); err != nil {
		return err
	}
	name := contextNameFor(abs)
	if err := store.SaveFile(name, abs); err != nil {
		return err
	}
	return store.Use(name)
}

// contextNameFor names the context of a data folder after it.
func contextNameFor(file string) string {
	dir := filepath.Dir(file)
	return sanitised(filepath.Base(filepath.Dir(dir))+"-"+filepath.Base(dir)) + "-" + shortHash(dir)
}

// DefaultDataDir is where dsec dev keeps its data unless told: in the user's state folder, or the machine's for a user
// without a home.
func (a *App) DefaultDataDir() string {
	if dir := a.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "dsec", "dev")
	}
	if home := a.Getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", "dsec", "dev")
	}
	return filepath.Join(string(os.PathSeparator), "var", "lib", "dsec", "dev")
}

// sanitised makes a context's name of a folder's.
func sanitised(s string) string {
	s = regexp.MustCompile(`[^A-Za-z0-9._-]+`).ReplaceAllString(s, "-")
	s = strings.TrimLeft(s, ".-_")
	return s[:min(len(s), 40)]
}

func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:3])
}
