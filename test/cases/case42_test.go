package cases

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// breaking is an upload that ends in the middle.
type breaking struct{ r io.Reader }

var errBroken = errors.New("the upload breaks here")

func (b *breaking) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if errors.Is(err, io.EOF) {
		err = errBroken
	}
	return n, err
}

func TestCase42ReplaceIsAtomic(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	f := sb.Files()
	a, b := strings.Repeat("A", 100_000), strings.Repeat("B", 70_000)
	put(t, f, "/f", a)
	reader, err := sb.Start(t.Context(), libdsec.Cmd{Shell: `while [ ! -e /stop ]; do
		case $(md5sum < /f) in ` + md5Of(t, sb, a) + `*|` + md5Of(t, sb, b) + `*) n=$((n+1));; *) echo torn; wc -c < /f;; esac; done; echo "read $((n>0))"`}, libdsec.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rounds := 150
	if longRun() {
		rounds = 1000
	}
	for i := range rounds {
		body := a
		if i%2 == 0 {
			body = b
		}
		put(t, f, "/f", body)
		if i%10 == 0 { // an upload that breaks changes nothing
			if _, err := f.Write(t.Context(), "/f", &breaking{strings.NewReader(a[:50_000])}, libdsec.WriteOptions{}); !errors.Is(err, errBroken) {
				t.Fatalf("a broken upload: %v", err)
			}
			wantContent(t, f, "/f", body)
		}
	}
	put(t, f, "/stop", "")
	var out bytes.Buffer
	if _, err := io.Copy(&out, reader.Stdout()); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != "read 1\n" {
		t.Errorf("the reader saw %q", got)
	}
	testbed.Until(t, time.Minute, "temporary files to go", func() bool {
		return testbed.Output(t, sb, "ls -a / | grep dsec- || true") == ""
	})
}

func md5Of(t testing.TB, sb *libdsec.Sandbox, content string) string {
	t.Helper()
	r, err := sb.Exec(t.Context(), libdsec.Cmd{Argv: []string{"md5sum"}, Stdin: strings.NewReader(content)})
	if err != nil {
		t.Fatal(err)
	}
	sum, _, _ := strings.Cut(string(r.Stdout), " ")
	return sum
}
