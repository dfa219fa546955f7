package chronus

import (
	"bytes"
	"strings"
)

// defaultPath is the search path of a command whose environment has none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// lookupEnv returns the value of name in env; of several the last one counts, as it does for a shell.
func lookupEnv(env [][]byte, name string) (string, bool) {
	for i := len(env) - 1; i >= 0; i-- {
		if k, v, ok := bytes.Cut(env[i], []byte{'='}); ok && string(k) == name {
			return string(v), true
		}
	}
	return "", false
}

// completeEnv appends to env what login would set and the caller hasn't.
func completeEnv(env [][]byte, acc *account, tty bool) [][]byte {
	add := func(name, value string) {
		if _, ok := lookupEnv(env, name); !ok && value != "" {
			env = append(env, []byte(name+"="+value))
		}
	}
	add("PATH", defaultPath)
	add("HOME", acc.home)
	add("USER", acc.name)
	add("LOGNAME", acc.name)
	if tty {
		add("TERM", "xterm")
		add("SHELL", acc.shell)
	}
	return env
}

// maxCandidates bounds the execve attempts for one name.
const maxCandidates = 64

// candidates appends the paths that execvp would try for name to paths.
func candidates(paths []string, name, path string) []string {
	if strings.Contains(name, "/") {
		return append(paths, name)
	}
	for dir := range strings.SplitSeq(path, ":") {
		if len(paths) == maxCandidates {
			break
		}
		if dir == "" {
			dir = "."
		}
		paths = append(paths, dir+"/"+name)
	}
	return paths
}

// quote makes v one word for a shell.
func quote(v []byte) []byte {
	q := make([]byte, 0, len(v)+2)
	q = append(q, '\'')
	for _, c := range v {
		if c == '\'' {
			q = append(q, `'\''`...)
			continue
		}
		q = append(q, c)
	}
	return append(q, '\'')
}

// isName tells whether v can be the name of a shell variable.
func isName(v []byte) bool {
	for i, c := range v {
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return len(v) > 0
}
