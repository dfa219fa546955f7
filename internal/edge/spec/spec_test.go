package spec

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func with(change func(*api.Spec)) api.Spec {
	s := api.Spec{Image: "busybox"}
	change(&s)
	return s
}

func TestEffectiveRefuses(t *testing.T) {
	many := map[string]string{}
	for i := range maxLabels + 1 {
		many[fmt.Sprint(i)] = ""
	}
	for name, tc := range map[string]struct {
		spec  api.Spec
		code  api.Code
		field string
	}{
		"no-image":          {api.Spec{}, api.CodeInvalid, "image"},
		"cpu-zero":          {with(func(s *api.Spec) { s.Resources.CPU = new(0.0) }), api.CodeInvalid, "resources.cpu"},
		"cpu-negative":      {with(func(s *api.Spec) { s.Resources.CPU = new(-1.0) }), api.CodeInvalid, "resources.cpu"},
		"cpu-nan":           {with(func(s *api.Spec) { s.Resources.CPU = new(math.NaN()) }), api.CodeInvalid, "resources.cpu"},
		"cpu-inf":           {with(func(s *api.Spec) { s.Resources.CPU = new(math.Inf(1)) }), api.CodeInvalid, "resources.cpu"},
		"cpu-tiny":          {with(func(s *api.Spec) { s.Resources.CPU = new(1e-9) }), api.CodeInvalid, "resources.cpu"},
		"memory-zero":       {with(func(s *api.Spec) { s.Resources.MemoryMB = new(int64(0)) }), api.CodeInvalid, "resources.memory_mb"},
		"memory-overflow":   {with(func(s *api.Spec) { s.Resources.MemoryMB = new(int64(math.MaxInt64)) }), api.CodeInvalid, "resources.memory_mb"},
		"pids-negative":     {with(func(s *api.Spec) { s.Resources.PIDs = new(int64(-1)) }), api.CodeInvalid, "resources.pids"},
		"pids-two":          {with(func(s *api.Spec) { s.Resources.PIDs = new(int64(2)) }), api.CodeInvalid, "resources.pids"},
		"disk-zero":         {with(func(s *api.Spec) { s.Resources.DiskMB = new(int64(0)) }), api.CodeInvalid, "resources.disk_mb"},
		"disk":              {with(func(s *api.Spec) { s.Resources.DiskMB = new(int64(10)) }), api.CodeUnsupportedConstraint, "resources.disk_mb"},
		"ttl-zero":          {with(func(s *api.Spec) { s.TTL.MaxS = new(int64(0)) }), api.CodeInvalid, "ttl.max_s"},
		"ttl-huge":          {with(func(s *api.Spec) { s.TTL.RunningS = new(int64(math.MaxInt64)) }), api.CodeInvalid, "ttl.running_s"},
		"ttl-paused":        {with(func(s *api.Spec) { s.TTL.PausedS = new(int64(-5)) }), api.CodeInvalid, "ttl.paused_s"},
		"ttl-idle-zero":     {with(func(s *api.Spec) { s.TTL.IdleS = new(int64(0)) }), api.CodeInvalid, "ttl.idle_s"},
		"layers":            {with(func(s *api.Spec) { s.Layers = []string{"x"} }), api.CodeUnsupportedConstraint, "layers"},
		"mounts":            {with(func(s *api.Spec) { s.Mounts = []api.Mount{{Path: "/x"}} }), api.CodeUnsupportedConstraint, "mounts"},
		"network":           {with(func(s *api.Spec) { s.Network = &api.Network{Allow: []string{"*"}} }), api.CodeUnsupportedConstraint, "network.allow"},
		"integrity":         {with(func(s *api.Spec) { s.Integrity = &api.Integrity{Hidden: []string{"/x"}} }), api.CodeUnsupportedConstraint, "integrity"},
		"priority":          {with(func(s *api.Spec) { s.Priority = -1 }), api.CodeUnsupportedConstraint, "priority"},
		"qos":               {with(func(s *api.Spec) { s.QoS = "ls" }), api.CodeUnsupportedConstraint, "qos"},
		"qos-nonsense":      {with(func(s *api.Spec) { s.QoS = "gold" }), api.CodeInvalid, "qos"},
		"runtime":           {with(func(s *api.Spec) { s.Runtime = "gvisor" }), api.CodeUnsupportedConstraint, "runtime"},
		"backend":           {with(func(s *api.Spec) { s.Backend = "microvm" }), api.CodeUnsupportedConstraint, "backend"},
		"backend-nonsense":  {with(func(s *api.Spec) { s.Backend = "Container" }), api.CodeInvalid, "backend"},
		"isolation":         {with(func(s *api.Spec) { s.Isolation = "vm" }), api.CodeUnsupportedConstraint, "isolation"},
		"on-idle":           {with(func(s *api.Spec) { s.OnIdle = "sleep" }), api.CodeInvalid, "on_idle"},
		"on-expire":         {with(func(s *api.Spec) { s.OnExpire = "resume" }), api.CodeInvalid, "on_expire"},
		"burst":             {with(func(s *api.Spec) { s.Burst = true }), api.CodeUnsupportedConstraint, "burst"},
		"secrets":           {with(func(s *api.Spec) { s.Secrets = []api.SecretReference{{Name: "x"}} }), api.CodeUnsupportedConstraint, "secrets"},
		"env-equals":        {with(func(s *api.Spec) { s.Env = map[string]string{"A=B": ""} }), api.CodeInvalid, "env.A=B"},
		"env-nul":           {with(func(s *api.Spec) { s.Env = map[string]string{"A": "\x00"} }), api.CodeInvalid, "env.A"},
		"env-total":         {with(func(s *api.Spec) { s.Env = bigEnv(3) }), api.CodeTooLarge, "env"},
		"command-nul":       {with(func(s *api.Spec) { s.Command = []string{"a", "\x00"} }), api.CodeInvalid, "command[1]"},
		"command-empty":     {with(func(s *api.Spec) { s.Command = []string{""} }), api.CodeInvalid, "command[0]"},
		"labels-many":       {with(func(s *api.Spec) { s.Labels = many }), api.CodeInvalid, "labels"},
		"label-key-empty":   {with(func(s *api.Spec) { s.Labels = map[string]string{"": "x"} }), api.CodeInvalid, "labels"},
		"label-key-long":    {with(func(s *api.Spec) { s.Labels = map[string]string{strings.Repeat("k", 129): "x"} }), api.CodeInvalid, "labels"},
		"label-value-long":  {with(func(s *api.Spec) { s.Labels = map[string]string{"k": strings.Repeat("x", 1025)} }), api.CodeInvalid, "labels.k"},
		"label-control":     {with(func(s *api.Spec) { s.Labels = map[string]string{"k": "a\nb"} }), api.CodeInvalid, "labels.k"},
		"job-long":          {with(func(s *api.Spec) { s.Job = strings.Repeat("j", 129) }), api.CodeInvalid, "job"},
		"workdir-relative":  {with(func(s *api.Spec) { s.Workdir = "work" }), api.CodeInvalid, "workdir"},
		"workdir-nul":       {with(func(s *api.Spec) { s.Workdir = "/w\x00" }), api.CodeInvalid, "workdir"},
		"user-newline":      {with(func(s *api.Spec) { s.User = "a\nroot" }), api.CodeInvalid, "user"},
		"hostname-under":    {with(func(s *api.Spec) { s.Hostname = "a_b" }), api.CodeInvalid, "hostname"},
		"hostname-hyphen":   {with(func(s *api.Spec) { s.Hostname = "-a" }), api.CodeInvalid, "hostname"},
		"hostname-dot":      {with(func(s *api.Spec) { s.Hostname = "a." }), api.CodeInvalid, "hostname"},
		"hostname-unicode":  {with(func(s *api.Spec) { s.Hostname = "bücher" }), api.CodeInvalid, "hostname"},
		"hostname-long":     {with(func(s *api.Spec) { s.Hostname = strings.Repeat("a.", 32) + "a" }), api.CodeInvalid, "hostname"},
		"malformed-is-told": {with(func(s *api.Spec) { s.Priority, s.Hostname = 1, "_" }), api.CodeInvalid, "hostname"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Effective(tc.spec, Image{})
			e := api.AsError(err)
			if e == nil || e.Code != tc.code || e.Field != tc.field || e.Detail == "" {
				t.Fatalf("%+v, want %s at %q", e, tc.code, tc.field)
			}
			if e.Hint == "" && !strings.HasPrefix(e.Field, "env.") && !strings.HasPrefix(e.Field, "command[1]") {
				t.Errorf("no hint: %+v", e)
			}
		})
	}
}

func bigEnv(n int) map[string]string {
	env := map[string]string{}
	for i := range n {
		env[fmt.Sprint("V", i)] = strings.Repeat("x", 100<<10)
	}
	return env
}

func TestEveryFaultIsTold(t *testing.T) {
	_, err := Effective(api.Spec{Hostname: "_", QoS: "ls", Resources: api.Resources{CPU: new(0.0)}}, Image{})
	for _, field := range []string{"image", "hostname", "qos", "resources.cpu"} {
		if e := api.AsError(err); e.Field != field && !strings.Contains(e.Detail, field+": ") {
			t.Errorf("%s isn't told: %v", field, err)
		}
	}
}

func TestEffectiveAccepts(t *testing.T) {
	weakest := api.Spec{
		Image: "busybox", Backend: "container", QoS: "be", OnIdle: "stop", OnExpire: "stop", Runtime: "native", Isolation: "own",
		Network: &api.Network{Deny: []string{"*"}}, Integrity: &api.Integrity{}, Layers: []string{}, Mounts: []api.Mount{},
		Hostname: "a-1." + strings.Repeat("b", 60), Env: bigEnv(2), Labels: map[string]string{"": ""},
		Resources: api.Resources{CPU: new(0.01), MemoryMB: new(int64(1)), PIDs: new(int64(3))},
		TTL:       api.TTL{RunningS: new(int64(1)), MaxS: new(int64(1))},
	}
	delete(weakest.Labels, "")
	got, err := Effective(weakest, Image{User: "img", Workdir: "/img", Hostname: "img"})
	if err != nil {
		t.Fatal(err)
	}
	weakest.User, weakest.Workdir = "img", "/img"
	if diff := cmp.Diff(weakest, got); diff != "" {
		t.Errorf("what was given or comes from the image changed (-want +got):\n%s", diff)
	}
	got, err = Effective(api.Spec{Image: "x"}, Image{Hostname: "not a name"})
	if err != nil || got.User != "root" || got.Workdir != "/" || got.Hostname != "sandbox" || *got.Resources.PIDs != 512 {
		t.Errorf("defaults: %+v, %v", got, err)
	}
	again, err := Effective(got, Image{User: "other"})
	if diff := cmp.Diff(got, again); diff != "" || err != nil {
		t.Errorf("an effective spec isn't its own effective spec: %v\n%s", err, diff)
	}
}

func TestCheckPatch(t *testing.T) {
	for field, p := range map[string]api.Patch{
		"env.=":               {Env: &map[string]string{"=": ""}},
		"labels":              {Labels: &map[string]string{"": ""}},
		"resources.cpu":       {Resources: &api.Resources{CPU: new(0.0)}},
		"resources.memory_mb": {Resources: &api.Resources{MemoryMB: new(int64(-5))}},
	} {
		if e := api.AsError(CheckPatch(p)); e == nil || e.Code != api.CodeInvalid || e.Field != field {
			t.Errorf("%s: %+v", field, e)
		}
	}
	if err := CheckPatch(api.Patch{}); err != nil {
		t.Error(err)
	}
}

func TestCheckExec(t *testing.T) {
	cmd := func(change func(*aether.ExecStart)) aether.ExecStart {
		x := aether.ExecStart{Argv: [][]byte{[]byte("true")}}
		change(&x)
		return x
	}
	for name, tc := range map[string]struct {
		x     aether.ExecStart
		field string
		code  api.Code
	}{
		"ok":           {cmd(func(*aether.ExecStart) {}), "", ""},
		"nothing":      {aether.ExecStart{}, "argv", api.CodeInvalid},
		"both":         {cmd(func(x *aether.ExecStart) { x.Shell = []byte("x") }), "argv", api.CodeInvalid},
		"argv-nul":     {cmd(func(x *aether.ExecStart) { x.Argv = append(x.Argv, []byte{0}) }), "argv[1]", api.CodeInvalid},
		"argv-long":    {cmd(func(x *aether.ExecStart) { x.Argv = append(x.Argv, make128(api.MaxArgument+1)) }), "argv[1]", api.CodeTooLarge},
		"argv-longest": {cmd(func(x *aether.ExecStart) { x.Argv = append(x.Argv, make128(api.MaxArgument)) }), "", ""},
		"env-name":     {cmd(func(x *aether.ExecStart) { x.Env = [][]byte{[]byte("=x")} }), "env", api.CodeInvalid},
		"env-nul":      {cmd(func(x *aether.ExecStart) { x.Env = [][]byte{[]byte("A=\x00")} }), "env[0]", api.CodeInvalid},
		"cwd-nul":      {cmd(func(x *aether.ExecStart) { x.Cwd = []byte{0} }), "cwd", api.CodeInvalid},
		"shell-nul":    {aether.ExecStart{Shell: []byte{'a', 0}}, "shell", api.CodeInvalid},
		"user":         {cmd(func(x *aether.ExecStart) { x.User = "a\x00" }), "user", api.CodeInvalid},
		"timeout":      {cmd(func(x *aether.ExecStart) { x.TimeoutMS = -1 }), "timeout_ms", api.CodeInvalid},
		"output":       {cmd(func(x *aether.ExecStart) { x.MaxOutput = api.MaxMaxOutput + 1 }), "max_output_bytes", api.CodeInvalid},
		"id":           {cmd(func(x *aether.ExecStart) { x.ID = "../x" }), "id", api.CodeInvalid},
		"id-long":      {cmd(func(x *aether.ExecStart) { x.ID = strings.Repeat("x", 64) }), "id", api.CodeInvalid},
		"tag":          {cmd(func(x *aether.ExecStart) { x.Tag = strings.Repeat("x", 257) }), "tag", api.CodeInvalid},
		"tty":          {cmd(func(x *aether.ExecStart) { x.TTY = true }), "tty", api.CodeInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			err := CheckExec(&tc.x)
			if tc.code == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if e := api.AsError(err); e == nil || e.Code != tc.code || e.Field != tc.field {
				t.Errorf("%+v, want %s at %q", e, tc.code, tc.field)
			}
		})
	}
}

func make128(n int) []byte { return []byte(strings.Repeat("x", n)) }

// TestEnvironment compares the merge with a map, for any three layers.
func TestEnvironment(t *testing.T) {
	name := rapid.StringMatching(`[A-C]{1,2}`)
	rapid.Check(t, func(t *rapid.T) {
		image := rapid.SliceOf(rapid.Map(name, func(n string) string { return n + "=image" })).Draw(t, "image")
		spec := rapid.MapOf(name, rapid.Just("spec")).Draw(t, "spec")
		exec := rapid.SliceOf(rapid.Map(name, func(n string) string { return n + "=exec=" })).Draw(t, "exec")
		want := map[string]string{}
		for _, kv := range image {
			k, v, _ := strings.Cut(kv, "=")
			want[k] = v
		}
		maps.Copy(want, spec)
		var more [][]byte
		for _, kv := range exec {
			more = append(more, []byte(kv))
			k, v, _ := strings.Cut(kv, "=")
			want[k] = v
		}
		env := Environment(append(image, "nameless", "=x"), spec)
		before := slices.Clone(env.Strings())
		got := map[string]string{}
		for _, kv := range env.With(more) {
			k, v, _ := strings.Cut(string(kv), "=")
			if _, twice := got[k]; twice {
				t.Fatalf("%s twice", k)
			}
			got[k] = v
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(before, env.Strings()); diff != "" {
			t.Fatalf("a command changed its sandbox's environment:\n%s", diff)
		}
	})
}
