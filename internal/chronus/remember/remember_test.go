package remember

import (
	"bytes"
	"fmt"
	"testing"
)

func saved(cwd string, exports int) []byte {
	return append([]byte(cwd+"\n"+marker+"\n"), bytes.Repeat([]byte{'x'}, exports)...)
}

func TestSessionsShareABudget(t *testing.T) {
	var budget Budget
	sessions := make([]Memory, 20)
	const large = 900 << 10
	for i := range sessions {
		sessions[i] = New(&budget, []byte("/"))
		m := &sessions[i]
		m.Take(saved("/a", 10))
		m.Take(saved(fmt.Sprintf("/b%d", i), large))
		want := large
		if i >= MaxTotal/large {
			want = 10 // what it was before
		}
		if len(m.Exports) != want || string(m.Cwd) != fmt.Sprintf("/b%d", i) {
			t.Errorf("session %d remembers %d bytes in %s, want %d", i, len(m.Exports), m.Cwd, want)
		}
	}
	full := &sessions[len(sessions)-1]
	env := [][]byte{bytes.Repeat([]byte{'y'}, large)}
	if full.Script(198, []byte("true"), env, []byte("/")); full.Given != nil {
		t.Error("an environment beyond the budget is remembered")
	}
	if full.Restore(nil, env) {
		t.Error("restored beyond the budget")
	}
	sessions[0].Forget()
	if full.Take(saved("/c", large)); len(full.Exports) != large {
		t.Errorf("after a session has ended another remembers %d bytes", len(full.Exports))
	}
	for i := range sessions {
		sessions[i].Forget()
	}
	if budget.used != 0 {
		t.Errorf("%d bytes are held by nobody", budget.used)
	}
}

func TestTake(t *testing.T) {
	for name, tc := range map[string]struct {
		saved       []byte
		cwd, export string
	}{
		"nothing":     {nil, "/old", "old"},
		"a script":    {[]byte("PWD=/\n" + marker + "\nx"), "/old", "old"},
		"no marker":   {[]byte("/new\nx"), "/old", "old"},
		"a long path": {saved("/"+string(bytes.Repeat([]byte{'p'}, 4096)), 1), "/old", "old"},
		"a state":     {saved("/new", 3), "/new", "xxx"},
		"no exports":  {saved("/new", 0), "/new", ""},
		"too large":   {saved("/new", MaxState), "/new", "old"},
	} {
		m := New(new(Budget), []byte("/old"))
		m.Restore([]byte("old"), nil)
		if m.Take(tc.saved); string(m.Cwd) != tc.cwd || string(m.Exports) != tc.export || m.Exports == nil {
			t.Errorf("%s: %s, %.20q; want %s, %q", name, m.Cwd, m.Exports, tc.cwd, tc.export)
		}
	}
}
