package mainjob

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/internal/need"
	"github.com/dsec-io/dsec/test/testbed"
)

// root is the repository, from this folder.
const root = "../.."

func document(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// blocks are the code blocks of a language in a document; an empty language is that of what programs print.
func blocks(text, language string) []string {
	var found []string
	for _, m := range regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$").FindAllStringSubmatch(text, -1) {
		if m[1] == language {
			found = append(found, m[2])
		}
	}
	return found
}

// TestCurlPageIsTrue runs the blocks of docs/curl.md as the one script that they say they are.
func TestCurlPageIsTrue(t *testing.T) {
	need.Image(t, "debian")
	need.Command(t, "curl")
	n := testbed.Start(t, testbed.Options{})
	page := document(t, "docs/curl.md")
	printed := blocks(page, "")
	if len(printed) != 1 {
		t.Fatalf("%d blocks of output, want 1", len(printed))
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.Join(blocks(page, "sh"), "\n"))
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "DSEC_CONTEXT="+filepath.Join(n.Dir, "context.json"))
	out, err := cmd.Output()
	if err != nil || string(out) != printed[0] {
		t.Errorf("%v; it printed\n%s\nand the page says\n%s", err, out, printed[0])
	}
	if left := living(t, n); len(left) > 0 {
		t.Errorf("sandboxes left: %q", left)
	}
}

// TestTourIsTrue takes the tour and compares what it shows with what the README promises.
func TestTourIsTrue(t *testing.T) {
	need.Root(t)
	need.Image(t, "debian")
	need.Command(t, "curl")
	_, section, _ := strings.Cut(document(t, "README.md"), "\n## In two minutes\n")
	section, _, _ = strings.Cut(section, "\n## ")
	promised := blocks(section, "")
	if len(promised) != 1 {
		t.Fatalf("%d blocks in the README's tour, want 1", len(promised))
	}
	cmd := exec.CommandContext(t.Context(), "hack/tour")
	cmd.Dir = root
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("hack/tour: %v\n%s", err, said.String())
	}
	if got, want := lasting(string(out)), lasting(promised[0]); got != want {
		t.Errorf("hack/tour shows\n%s\nand the README\n%s", got, want)
	}
}

// lasting is what doesn't change from run to run.
func lasting(shown string) string {
	for _, r := range []struct{ changing, as string }{
		{`\bs[a-z2-7]{21}\b`, "ID"},
		{`kill -9 \d+`, "kill -9 PID"},
		{`"started_at":"[^"]*","duration_ms":[0-9.]+`, `"started_at":…`},
		{`\d+(ms|s)( +)\n`, "AGE\n"},
		{` +\n`, "\n"},
	} {
		shown = regexp.MustCompile(r.changing).ReplaceAllString(shown, r.as)
	}
	return strings.TrimSpace(shown)
}

// TestMainJobLeavesNothing runs what `make run` runs, with few agents.
func TestMainJobLeavesNothing(t *testing.T) {
	need.Root(t)
	need.Image(t, "debian")
	cmd := exec.CommandContext(t.Context(), "hack/mainjob", "-n", "2", "-cheats", "3")
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("hack/mainjob: %v", err)
	}
	for _, want := range []string{"5 attempts, ", ": 2 rewarded, 3 not, 0 masked\n", "sandboxes that still live: 0\n", ": nothing (", "\ntook "} {
		if !strings.Contains(string(out), want) {
			t.Errorf("it doesn't say %q:\n%s", want, out)
		}
	}
}

// TestLinksLeadSomewhere looks for the files that the documents name.
func TestLinksLeadSomewhere(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, filepath.Join(root, "README.md")) {
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\]\(([^)#:\s]+)(#[^)]*)?\)`).FindAllSubmatch(raw, -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), string(m[1]))); err != nil {
				t.Errorf("%s: %v", filepath.Base(page), err)
			}
		}
	}
}
