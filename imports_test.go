package dsec_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/dsec-io/dsec/"

// housePlan lists the rooms from the top of the house to its cellar. A room may import rooms of lower lines, never of
// its own line or of a higher one, unless doors has a door with a reason. "x/..." is x and everything below it.
var housePlan = [][]string{
	{"hack/..."}, // programs for developers: they may use whatever they test
	{"test/cases", "test/chaos", "test/lifecycle", "test/limits/...", "test/contract", "test/files", "test/gates/...", "test/iam", "test/mainjob", "test/ports/...", "test/registry"},
	{"test/testbed"}, // a real node for tests
	{"internal/image/imagetest", "internal/backend/backendtest"}, // what tests of several rooms share
	{"cmd/dsec", "cmd/dsec-aether"},                              // thin mains
	{ // the command line, by groups
		"cmd/dsec/rlcmd", "cmd/dsec/sandboxcmd", "cmd/dsec/imagecmd", "cmd/dsec/configcmd", "cmd/dsec/devcmd", "cmd/dsec/benchcmd",
		"cmd/dsec/doctorcmd", "cmd/dsec/portcmd", "cmd/dsec/iamcmd",
	},
	{"cmd/dsec/cli"},  // what all commands have in common
	{"cmd/dsec/show"}, // what terminals are shown
	{"internal/doctor", "internal/devmode", "internal/bench", "internal/transfer"},
	{"internal/bench/meter", "internal/bench/codec", "internal/bench/content", "internal/bench/flame"},
	{"internal/apiserver"}, // faces
	{"internal/apiserver/ports", "internal/apiserver/imageface"},
	{"internal/apiserver/docs", "internal/apiserver/encode", "internal/apiserver/lifetime", "internal/apiserver/edgelink", "internal/apiserver/refusal", "internal/apiserver/iamface", "internal/apiserver/guard", "internal/apiserver/metrics"},
	{"internal/iam", "internal/iam/audit"},
	{"internal/state"}, // etcd
	// The public RL packages; they reach sandboxes only through libdsec.
	{"rl/train/logs", "rl/train/sweep", "rl/rlbench"},
	{"rl/train"},
	{"rl/optim"},
	{"rl/nn", "rl/buffer", "rl/envs", "rl/sandboxenv", "rl/env/envcheck"},
	{"rl/vec"},
	{"rl/env", "rl/adv", "rl/f32", "rl/render", "rl/safetensors", "rl/train/plot"},
	{"examples/..."}, // what users write, with nothing but the SDK
	{"libdsec"},      // the public SDK
	{"internal/backend/container"},
	{"internal/backend/container/userns"},
	{"internal/backend/container/knobs", "internal/backend/container/record", "internal/backend/container/shortage", "internal/backend/container/trash"},
	{"internal/edge"},
	{"internal/edge/records"},
	{"internal/edge/spec", "internal/edge/images", "internal/edge/idem", "internal/edge/events", "internal/edge/instance", "internal/edge/lifetime", "internal/edge/admission", "internal/edge/pause", "internal/edge/savedlog"},
	{"internal/edge/disk"},
	{"internal/image/registry"},
	{"internal/image/importer"},
	{"internal/image", "internal/idrange", "internal/aetherbin", "internal/image/erofs", "internal/image/treetar", "internal/image/reference"},
	{"internal/chronus"},
	{"internal/chronus/files", "internal/chronus/ports", "internal/chronus/request", "internal/chronus/disturb"},
	{"internal/chronus/launch"},
	{"internal/chronus/account", "internal/chronus/input", "internal/chronus/journal", "internal/chronus/pause", "internal/chronus/orphan", "internal/chronus/record", "internal/chronus/remember"},
	{"internal/keeper"},
	{"internal/aether/tunnel"},
	{"internal/aether/..."},
	{"internal/spawn"},
	{"internal/linux/...", "internal/flock", "internal/budget"},
	{"internal/fault"}, // what tests make go wrong, at named steps of the rooms above
	{"api/openapi/page"},
	{"api/openapi"},
	{"api"},
	{"internal/nearest"},
	// Below everything because any test may use them; nothing but tests and hack may (see onlyFor).
	{"internal/need", "internal/leakcheck"},
}

// doors are the imports that the plan alone would forbid. There is none so far.
var doors []door

// door lets a room import another one, for a reason.
type door struct{ from, to, why string }

// onlyFor lists what only some rooms may import themselves, and why. What a room's dependencies import in their turn is
// their business, but for dsec-aether (see TestAetherDependencies).
var onlyFor = []struct {
	what  []string
	rooms []string
	why   string
}{
	{
		[]string{"os/exec"},
		[]string{"hack/...", "test/...", "internal/image/imagetest", "internal/backend/backendtest", "internal/need", "internal/bench", "internal/doctor", "cmd/dsec"},
		"sandboxes are made and entered by system calls: a program per create or exec is what we replace",
	},
	{
		[]string{"golang.org/x/sys/unix", "syscall"},
		[]string{
			"hack/...", "test/...", "cmd/...", "internal/doctor", "internal/bench", "internal/bench/meter", "internal/backend/container/...", "internal/edge", "internal/edge/instance", "internal/edge/disk", "internal/chronus/...",
			"internal/keeper", "internal/aether/...", "internal/spawn", "internal/linux/...", "internal/flock", "internal/image/...",
			"internal/need", "internal/leakcheck",
		},
		"every other room builds on every system",
	},
	{
		[]string{"unsafe"},
		[]string{"internal/spawn", "internal/linux/...", "internal/keeper", "internal/chronus/...", "internal/backend/container", "internal/aether/unixfd"},
		"memory that the kernel reads belongs to the rooms that call it by hand",
	},
	{
		[]string{"net/http"},
		[]string{"test/ports/server", "internal/apiserver/...", "internal/devmode", "libdsec", "internal/bench", "cmd/dsec", "internal/image/registry"},
		"HTTP is a face: behind it the aether protocol is spoken; registries speak nothing else",
	},
	{
		[]string{"github.com/coder/websocket"},
		[]string{"internal/apiserver", "libdsec"},
		"WebSockets are how a face carries a process's bytes, and no other room knows them",
	},
	{
		[]string{"go.etcd.io/etcd/client/v3", "go.etcd.io/etcd/server/v3/embed", "go.etcd.io/etcd/server/v3/storage/wal", "go.uber.org/zap"},
		[]string{"internal/state"},
		"one room talks to etcd, so that it can be told what is kept there and how",
	},
	{
		[]string{"github.com/spf13/cobra", "github.com/spf13/pflag", "github.com/lmittmann/tint", "golang.org/x/term"},
		[]string{"cmd/dsec/..."},
		"how the command line looks is decided in one place",
	},
	{
		[]string{"github.com/moby/profiles/seccomp", "github.com/opencontainers/runtime-spec/specs-go"},
		[]string{"internal/linux/seccomp/..."},
		"the profile is data for a generator; what it links is too big for dsec-aether",
	},
	{
		[]string{module + "internal/need", "testing"},
		[]string{"hack/...", "test/...", "internal/image/imagetest", "internal/backend/backendtest", "rl/env/envcheck", "internal/need", "internal/leakcheck"},
		"tests only",
	},
	{
		[]string{module + "internal/leakcheck"},
		[]string{"hack/...", "test/...", "internal/bench", "internal/backend/backendtest"},
		"tests and benchmarks only",
	},
	{
		[]string{"github.com/google/go-cmp/cmp", "pgregory.net/rapid", "go.uber.org/goleak"},
		nil,
		"tests only",
	},
}

// matches tells whether a room is the pattern, or below it when the pattern ends in "/...".
func matches(pattern, room string) bool {
	parent, below := strings.CutSuffix(pattern, "/...")
	return room == parent || below && strings.HasPrefix(room, parent+"/")
}

func anyMatches(patterns []string, room string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, room) })
}

// level returns the line of the house plan that a room is on, or -1.
func level(room string) int {
	return slices.IndexFunc(housePlan, func(line []string) bool { return anyMatches(line, room) })
}

// goList returns the imports of the packages that go list names, by import path.
func goList(t *testing.T, args ...string) map[string][]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-f", "{{.ImportPath}} {{join .Imports \" \"}}"}, args...)...)
	// What we run on, whatever the tests run on; cgo would add imports that the static binaries don't have.
	cmd.Env = append(os.Environ(), "GOOS=linux", "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %s: %v", strings.Join(args, " "), err)
	}
	imports := make(map[string][]string)
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		imports[words[0]] = words[1:]
	}
	return imports
}

func TestImports(t *testing.T) {
	opened := make(map[door]bool)
	for path, imports := range goList(t, "./...") {
		room, ours := strings.CutPrefix(path, module)
		if !ours {
			continue // the root, which has only tests
		}
		if level(room) < 0 {
			t.Errorf("%s: not in the house plan: give it a line", room)
			continue
		}
		for _, imported := range imports {
			if to, ours := strings.CutPrefix(imported, module); ours {
				checkEdge(t, room, to, opened)
			}
			for _, rule := range onlyFor {
				if slices.Contains(rule.what, imported) && !anyMatches(rule.rooms, room) {
					t.Errorf("%s imports %s: %s", room, imported, rule.why)
				}
			}
		}
	}
	for _, d := range doors {
		if !opened[d] {
			t.Errorf("door from %s to %s (%s): nobody uses it: close it", d.from, d.to, d.why)
		}
	}
}

// checkEdge reports an import against the direction of the house plan.
func checkEdge(t *testing.T, from, to string, opened map[door]bool) {
	t.Helper()
	if level(from) < level(to) {
		return
	}
	for _, d := range doors {
		if matches(d.from, from) && matches(d.to, to) {
			opened[d] = true
			return
		}
	}
	t.Errorf("%s imports %s, which isn't below it in the house plan", from, to)
}

// TestAetherDependencies keeps dsec-aether what it has to be: small, because its memory is paid per shard, and free of
// anything that would parse what nobody sends it.
func TestAetherDependencies(t *testing.T) {
	forbidden := map[string]string{
		"net/http":                   "the edge speaks HTTP, aether speaks frames",
		"crypto/tls":                 "the socket is a Unix socket in a closed folder",
		"google.golang.org/protobuf": "messages are written by hand: reflection costs megabytes",
		"go/ast":                     "a generator was linked in",
		"os/exec":                    "commands are started by internal/spawn",
		"text/template":              "nothing is rendered in a shard",
		"github.com/moby/profiles":   "the seccomp programs are generated",
		"github.com/prometheus":      "metrics are the edge's",
		"testing":                    "tests only",
	}
	allowed := []string{module, "golang.org/x/sys/"}
	for path := range goList(t, "-deps", "./cmd/dsec-aether") {
		for what, why := range forbidden {
			if matches(what+"/...", path) {
				t.Errorf("dsec-aether links %s: %s", path, why)
			}
		}
		first, _, _ := strings.Cut(path, "/")
		foreign := strings.Contains(first, ".")
		if foreign && !slices.ContainsFunc(allowed, func(p string) bool { return strings.HasPrefix(path, p) }) {
			t.Errorf("dsec-aether links %s: it has the standard library, x/sys and this module", path)
		}
	}
}

// TestSDKDependencies keeps what a user of the SDK has to link small.
func TestSDKDependencies(t *testing.T) {
	allowed := []string{module, "golang.org/x/sys/", "github.com/coder/websocket"}
	for path := range goList(t, "-deps", "./libdsec") {
		first, _, _ := strings.Cut(path, "/")
		foreign := strings.Contains(first, ".")
		if foreign && !slices.ContainsFunc(allowed, func(p string) bool { return strings.HasPrefix(path, p) }) {
			t.Errorf("libdsec links %s", path)
		}
		for _, inner := range []string{"internal/edge", "internal/backend/...", "internal/apiserver", "internal/linux/..."} {
			if room, ours := strings.CutPrefix(path, module); ours && matches(inner, room) {
				t.Errorf("libdsec links %s: a client needs the protocol and nothing of a node", room)
			}
		}
	}
}

// TestHousePlanIsTrue fails for a line about something that doesn't exist.
func TestHousePlanIsTrue(t *testing.T) {
	for _, line := range housePlan {
		for _, room := range line {
			dir := filepath.FromSlash(strings.TrimSuffix(room, "/..."))
			if info, err := os.Stat(dir); err != nil || !info.IsDir() {
				t.Errorf("house plan: %s: no such folder", room)
			}
		}
	}
}
