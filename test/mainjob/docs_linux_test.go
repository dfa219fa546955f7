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
