package sandboxcmd

import (
	"strings"
	"testing"
)

func TestDetachKeys(t *testing.T) {
	keys, err := parseDetachKeys("ctrl-p,ctrl-q")
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		typed  []string
		pass   string
		detach bool
	}{
		"plain":       {[]string{"abc"}, "abc", false},
		"at-once":     {[]string{"a\x10\x11b"}, "a", true},
		"apart":       {[]string{"a\x10", "\x11"}, "a", true},
		"twice-first": {[]string{"\x10\x10\x11"}, "\x10", true},
		"given-up":    {[]string{"\x10", "x\x11"}, "\x10x\x11", false},
	} {
		t.Run(name, func(t *testing.T) {
			f := detachFilter{keys: keys}
			var pass strings.Builder
			detach := false
			for _, typed := range tc.typed {
				var p []byte
				p, detach = f.feed([]byte(typed))
				pass.Write(p)
			}
			if pass.String() != tc.pass || detach != tc.detach {
				t.Errorf("feed(%q) passed %q, detached %v", tc.typed, pass.String(), detach)
			}
		})
	}
	for _, bad := range []string{"ctrl-", "ctrl-pp", "é", ","} {
		if _, err := parseDetachKeys(bad); err == nil {
			t.Errorf("parseDetachKeys(%q) worked", bad)
		}
	}
}
