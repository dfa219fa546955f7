package api

import (
	"strconv"
	"strings"
)

// lastSignal is the highest signal number of Linux (SIGRTMAX), firstRealtime the lowest real-time one as the kernel counts.
const (
	lastSignal    = 64
	firstRealtime = 32
)

// signalNames are Linux's signals by number, on amd64 and arm64. They are the sandbox's, whatever system the client runs.
func signalNames() [firstRealtime]string {
	return [...]string{
		"", "SIGHUP", "SIGINT", "SIGQUIT", "SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGKILL", "SIGUSR1", "SIGSEGV",
		"SIGUSR2", "SIGPIPE", "SIGALRM", "SIGTERM", "SIGSTKFLT", "SIGCHLD", "SIGCONT", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU",
		"SIGURG", "SIGXCPU", "SIGXFSZ", "SIGVTALRM", "SIGPROF", "SIGWINCH", "SIGIO", "SIGPWR", "SIGSYS",
	}
}

// SignalName is the name of signal n: "SIGKILL" for 9, "SIG34" for a real-time signal, "" for 0.
func SignalName(n int) string {
	names := signalNames()
	switch {
	case n <= 0:
		return ""
	case n < len(names):
		return names[n]
	}
	return "SIG" + strconv.Itoa(n)
}

// SignalNumber finds a signal by its name, with or without SIG and in any case, or by its number ("9").
func SignalNumber(name string) (int, bool) {
	upper := strings.TrimPrefix(strings.ToUpper(name), "SIG")
	if n, err := strconv.Atoi(upper); err == nil {
		return n, 0 < n && n <= lastSignal
	}
	for n, known := range signalNames() {
		if n > 0 && known == "SIG"+upper {
			return n, true
		}
	}
	return 0, false
}
