package api

import "testing"

func TestSignals(t *testing.T) {
	for name, want := range map[string]int{
		"SIGKILL": 9, "KILL": 9, "sigterm": 15, "9": 9, "SIGSYS": 31, "SIG34": 34, "64": 64,
		"": 0, "SIG": 0, "0": 0, "65": 0, "-1": 0, "SIGSIGKILL": 0, "SIGNOPE": 0,
	} {
		if n, ok := SignalNumber(name); ok != (want > 0) || (ok && n != want) {
			t.Errorf("SignalNumber(%q) = %d, %v, want %d", name, n, ok, want)
		}
	}
	for n := 1; n <= lastSignal; n++ {
		if back, ok := SignalNumber(SignalName(n)); !ok || back != n {
			t.Errorf("SignalNumber(SignalName(%d) = %q) = %d, %v", n, SignalName(n), back, ok)
		}
	}
}
