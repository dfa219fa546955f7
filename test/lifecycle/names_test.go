package lifecycle

import (
	"maps"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// oddNames are the names of case 66.
func oddNames() map[string]string {
	return map[string]string{
		"63": strings.Repeat("a", 63), "64": strings.Repeat("a", 64), "65": strings.Repeat("a", 65), "200": strings.Repeat("a", 200),
		"63-dot": strings.Repeat("a", 62) + ".b", "64-dot": strings.Repeat("a", 32) + "." + strings.Repeat("b", 31), "65-dot": strings.Repeat("a", 32) + "." + strings.Repeat("b", 32),
		"digit": "1st", "digits": "123", "upper": "Upper", "unicode": "ünïcode", "unicode-low-byte": "bšb", "chinese": "项目", "space": "a b", "slash": "a/b", "up": "..", "dot": "a.",
		"hyphen": "-a", "hyphen-end": "a-", "underscore": "a_b", "newline": "a\nb", "nul": "a\x00b", "percent": "%2e", "query": "a?b", "quote": `a"b`,
	}
}

// only is the set of these names of [oddNames].
func only(names ...string) map[string]bool {
	set := map[string]bool{}
	for _, n := range names {
		set[n] = true
	}
	return set
}

// refusedAtOnce demands that something of this name was refused for it, and by whom it was asked for.
func refusedAtOnce(t *testing.T, what, field string, err error) {
	t.Helper()
	if err == nil {
		t.Errorf("%s isn't refused", what)
		return
	}
	if e := api.AsError(err); e.Code != api.CodeInvalid || !strings.HasPrefix(e.Field, field) || e.Hint == "" {
		t.Errorf("%s: %v (field %q, hint %q)", what, err, e.Field, e.Hint)
	}
}

// TestCase66Hostnames: a host name works, for every program that asks for it, or is refused when the sandbox is created.
func TestCase66Hostnames(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	works := only("63", "63-dot", "64-dot", "digit", "digits", "upper")
	for what, name := range oddNames() {
		sb, err := n.Client.Create(t.Context(), api.Spec{Image: "busybox", Hostname: name})
		if !works[what] {
			refusedAtOnce(t, what, "hostname", err)
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if got := testbed.Output(t, sb, "hostname; cat /proc/sys/kernel/hostname /etc/hostname; grep -c ' "+name+"$' /etc/hosts"); got != name+"\n"+name+"\n"+name+"\n1" {
			t.Errorf("%s: inside it is %q", what, got)
		}
		if got := sb.Info().Spec.Hostname; got != name {
			t.Errorf("%s: outside it is %q", what, got)
		}
		if _, err := sb.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestCase66Labels: a label's key and value come back as they were given, find their sandbox, and can be given later, or
// are refused at once.
func TestCase66Labels(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, labelled("case66"))
	refused := only("newline", "nul")
	for what, name := range oddNames() {
		for as, labels := range map[string]map[string]string{"key": {name: "x"}, "value": {"k": name}} {
			made, err := n.Client.Create(t.Context(), api.Spec{Image: "busybox", Labels: labels})
			_, patched := sb.Patch(t.Context(), api.Patch{Labels: &labels})
			if refused[what] || what == "200" && as == "key" {
				refusedAtOnce(t, what+" as "+as, "labels", err)
				refusedAtOnce(t, what+" as "+as+" of a patch", "labels", patched)
				continue
			}
			if err != nil || patched != nil {
				t.Errorf("%s as %s: %v, %v", what, as, err, patched)
				continue
			}
			found := only()
			for s, err := range n.Client.List(t.Context(), libdsec.ListOptions{Labels: labels}) {
				if err != nil {
					t.Fatal(err)
				}
				if !s.Info().State.Ended() {
					found[s.ID()] = true
				}
				if !maps.Equal(s.Info().Spec.Labels, labels) {
					t.Errorf("%s as %s: %q", what, as, s.Info().Spec.Labels)
				}
			}
			if !found[made.ID()] || !found[sb.ID()] || len(found) != 2 {
				t.Errorf("%s as %s: found %v", what, as, found)
			}
			if _, err := made.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestCase66ProjectNames: a project's name works for all that a project is for, or is refused when the project is made.
func TestCase66ProjectNames(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	works := only("63", "hyphen-end")
	for what, name := range oddNames() {
		_, err := n.Client.CreateProject(t.Context(), api.ProjectSpec{Name: name})
		if !works[what] {
			refusedAtOnce(t, what, "name", err)
			_, err := n.Client.Project(t.Context(), name)
			refusedAtOnce(t, what+" asked for", "project", err)
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		inside := n.Client.InProject(name)
		sb, err := inside.Create(t.Context(), labelled("case66-project"))
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if got := testbed.Output(t, sb, "echo works"); got != "works" || sb.Info().Project != name {
			t.Errorf("%s: %q in %q", what, got, sb.Info().Project)
		}
		if p, err := n.Client.Project(t.Context(), name); err != nil || p.Name != name {
			t.Errorf("%s: %+v, %v", what, p, err)
		}
		if _, err := sb.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := n.Client.DeleteProject(t.Context(), name); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestCase106ZeroByPatch: what a sandbox can't be created with it can't be given later.
func TestCase106ZeroByPatch(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, labelled("case106"))
	before := sb.Info().Spec.Resources
	for what, r := range map[string]api.Resources{
		"cpu": {CPU: new(0.0)}, "cpu ": {CPU: new(-1.0)}, "cpu  ": {CPU: new(0.0001)}, "cpu   ": {CPU: new(1e12)},
		"memory_mb": {MemoryMB: new(int64(0))}, "memory_mb ": {MemoryMB: new(int64(-1))}, "memory_mb  ": {MemoryMB: new(int64(1e18))},
		"pids": {PIDs: new(int64(0))}, "pids ": {PIDs: new(int64(-1))}, "pids  ": {PIDs: new(int64(1e12))},
		"disk_mb": {DiskMB: new(int64(0))}, "disk_mb ": {DiskMB: new(int64(-1))},
	} {
		_, err := sb.Patch(t.Context(), api.Patch{Resources: &r})
		refusedAtOnce(t, what, "resources."+strings.TrimSpace(what), err)
	}
	after, err := sb.Refresh(t.Context())
	if err != nil || *after.Spec.Resources.PIDs != *before.PIDs || *after.Spec.Resources.MemoryMB != *before.MemoryMB || *after.Spec.Resources.CPU != *before.CPU {
		t.Errorf("%+v, %v; it was %+v", after.Spec.Resources, err, before)
	}
}
