package api

import (
	"strings"
	"testing"
)

func TestExecRequestValidate(t *testing.T) {
	cmd := []string{"true"}
	for name, tc := range map[string]struct {
		req   ExecRequest
		field string
		code  Code
	}{
		"ok-argv":        {ExecRequest{Argv: cmd}, "", ""},
		"ok-shell":       {ExecRequest{Shell: "true"}, "", ""},
		"long-shell":     {ExecRequest{Shell: strings.Repeat("x", 1<<20)}, "", ""},
		"image-command":  {ExecRequest{}, "", ""},
		"both":           {ExecRequest{Argv: cmd, Shell: "x"}, "argv", CodeInvalid},
		"empty-argv":     {ExecRequest{Argv: []string{}}, "argv", CodeInvalid},
		"nul-argv":       {ExecRequest{Argv: []string{"a", "b\x00"}}, "argv[1]", CodeInvalid},
		"nul-shell":      {ExecRequest{Shell: "a\x00"}, "shell", CodeInvalid},
		"nul-cwd":        {ExecRequest{Argv: cmd, Cwd: "/\x00"}, "cwd", CodeInvalid},
		"longest-argv":   {ExecRequest{Argv: []string{strings.Repeat("x", MaxArgument)}}, "", ""},
		"long-argv":      {ExecRequest{Argv: []string{strings.Repeat("x", MaxArgument+1)}}, "argv[0]", CodeTooLarge},
		"env-equals":     {ExecRequest{Argv: cmd, Env: map[string]string{"A=B": ""}}, "env.A=B", CodeInvalid},
		"env-empty-name": {ExecRequest{Argv: cmd, Env: map[string]string{"": "x"}}, "env.", CodeInvalid},
		"env-nul":        {ExecRequest{Argv: cmd, Env: map[string]string{"A": "\x00"}}, "env.A", CodeInvalid},
		"env-long":       {ExecRequest{Argv: cmd, Env: map[string]string{"A": strings.Repeat("x", MaxArgument)}}, "env.A", CodeTooLarge},
		"two-stdins":     {ExecRequest{Argv: cmd, Stdin: []byte("a"), StdinText: new("b")}, "stdin", CodeInvalid},
		"timeout-zero":   {ExecRequest{Argv: cmd, TimeoutMS: new(int64(0))}, "timeout_ms", CodeInvalid},
		"timeout-huge":   {ExecRequest{Argv: cmd, TimeoutMS: new(int64(1 << 62))}, "timeout_ms", CodeInvalid},
		"output-zero":    {ExecRequest{Argv: cmd, MaxOutputBytes: new(int64(0))}, "max_output_bytes", CodeInvalid},
		"output-huge":    {ExecRequest{Argv: cmd, MaxOutputBytes: new(int64(MaxMaxOutput + 1))}, "max_output_bytes", CodeInvalid},
		"rlimits":        {ExecRequest{Argv: cmd, RLimits: map[string]int64{"nofile": 5}}, "rlimits", CodeUnsupportedConstraint},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, tc.req.Validate(), tc.field, tc.code)
		})
	}
}

func TestStartRequestValidate(t *testing.T) {
	base := ExecRequest{Argv: []string{"true"}}
	for name, tc := range map[string]struct {
		req   StartRequest
		field string
		code  Code
	}{
		"ok":       {StartRequest{ExecRequest: base, TTY: &Size{Rows: 1, Cols: 1}}, "", ""},
		"no-rows":  {StartRequest{ExecRequest: base, TTY: &Size{Cols: 1}}, "tty.rows", CodeInvalid},
		"no-cols":  {StartRequest{ExecRequest: base, TTY: &Size{Rows: 1}}, "tty.cols", CodeInvalid},
		"long-tag": {StartRequest{ExecRequest: base, Tag: strings.Repeat("x", 257)}, "tag", CodeInvalid},
		"command":  {StartRequest{ExecRequest: ExecRequest{Argv: []string{}}}, "argv", CodeInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, tc.req.Validate(), tc.field, tc.code)
		})
	}
}

func check(t *testing.T, err error, field string, code Code) {
	t.Helper()
	if code == "" {
		if err != nil {
			t.Errorf("Validate() = %v, want nil", err)
		}
		return
	}
	e := AsError(err)
	if e == nil || e.Code != code || e.Field != field {
		t.Errorf("Validate() = %+v, want %s at %q", e, code, field)
	}
}
