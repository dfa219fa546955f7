package account

import (
	"bytes"
)

// DefaultPath is the search path of a command whose environment has none.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// LookupEnv returns the value of name in env; of several the last one counts, as it does for a shell.
func LookupEnv(env [][]byte, name string) (string, bool) {
	for i := len(env) - 1; i >= 0; i-- {
		if k, v, ok := bytes.Cut(env[i], []byte{'='}); ok && string(k) == name {
			return string(v), true
		}
	}
	return "", false
}

// CompleteEnv appends to env what login would set and the caller hasn't.
func CompleteEnv(env [][]byte, acc *Account, tty bool) [][]byte {
	add := func(name, value string) {
		if _, ok := LookupEnv(env, name); !ok && value != "" {
			env = append(env, []byte(name+"="+value))
		}
	}
	add("PATH", DefaultPath)
	add("HOME", acc.Home)
	add("USER", acc.Name)
	add("LOGNAME", acc.Name)
	if tty {
		add("TERM", "xterm")
		add("SHELL", acc.Shell)
	}
	return env
}
