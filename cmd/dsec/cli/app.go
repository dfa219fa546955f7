// Package cli is what all commands of dsec have in common: their streams and settings, how they take arguments and flags,
// how results, errors and exit codes look, and what shells are offered as completions.
//
// Nothing in it reads the process's arguments or environment, or exits: an [App] says what there is, so that tests run
// whole commands in-process. An App serves one command at a time.
package cli

import (
	"errors"
	"io"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/term"

	"github.com/dsec-io/dsec/libdsec"
)

// App is what a command has to work with.
type App struct {
	Env     []string // KEY=VALUE
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Signals *Signals
	Status  int // what a command that ran to its end exits with

	Endpoint, Token, ContextName, Project string // the flags that every command has
}

// Getenv reads the environment that run was given.
func (a *App) Getenv(name string) string {
	v, _ := a.LookupEnv(name)
	return v
}

// LookupEnv is [App.Getenv] that also tells whether the variable is set.
func (a *App) LookupEnv(name string) (string, bool) {
	for i := len(a.Env) - 1; i >= 0; i-- {
		if k, v, ok := strings.Cut(a.Env[i], "="); ok && k == name {
			return v, true
		}
	}
	return "", false
}

// Settings finds the server: flags first, then what libdsec.Resolve says.
func (a *App) Settings() (libdsec.Settings, error) {
	store := libdsec.UserContexts(a.Getenv)
	flagged := func(name string) string {
		switch {
		case name == libdsec.EnvEndpoint && a.Endpoint != "":
			return a.Endpoint
		case name == libdsec.EnvToken && a.Token != "":
			return a.Token
		case a.ContextName != "" && name != libdsec.EnvToken:
			return "" // a context named by flag beats an endpoint from the environment
		}
		return a.Getenv(name)
	}
	if a.ContextName != "" && a.Endpoint == "" {
		s, err := store.Read(a.ContextName)
		if err == nil && a.Token != "" {
			s.Token = a.Token
		}
		return s, err
	}
	s, err := libdsec.Resolve(flagged, store)
	if err == nil && a.Endpoint != "" {
		s.Source = "--endpoint"
	}
	return s, err
}

func (a *App) client() (*libdsec.Client, error) {
	s, err := a.Settings()
	if err != nil {
		return nil, err
	}
	c, err := libdsec.New(libdsec.WithSettings(s), libdsec.WithUserAgent("dsec/"+Version()))
	if err == nil && a.Project != "" {
		c = c.InProject(a.Project)
	}
	return c, err
}

// WithClient runs fn with a client that is closed afterwards.
func (a *App) WithClient(fn func(*libdsec.Client) error) (err error) {
	c, err := a.client()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	return fn(c)
}

// Terminal gives the descriptor of a stream that is a terminal.
func Terminal(stream any) (fd int, ok bool) {
	f, isFile := stream.(*os.File)
	if !isFile || !term.IsTerminal(int(f.Fd())) {
		return -1, false
	}
	return int(f.Fd()), true
}

// Version is the module's version, as the build recorded it.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
