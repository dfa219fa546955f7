package files

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/test/testbed"
)

// packed is a tar stream of entries; files hold their own names.
func packed(t testing.TB, entries ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		if h.Typeflag == 0 {
			h.Typeflag, h.Size, h.Mode = tar.TypeReg, int64(len(h.Name)), 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.WriteString(w, h.Name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// TestCase32ManyEntries unpacks very many files: constant memory, all of them there, and an error behind them says so.
func TestCase32ManyEntries(t *testing.T) {
	n := testbed.Start(t, testbed.Options{})
	sb := n.Create(t, api.Spec{})
	f := sb.Files()
	files := 30_000
	if os.Getenv("DSEC_LONG") == "1" {
		files = 1_000_000
	}
	stream := func() io.Reader {
		r, w := io.Pipe()
		go func() {
			out := tar.NewWriter(w)
			for i := range files {
				if err := out.WriteHeader(&tar.Header{Name: fmt.Sprintf("%d/%d", i%100, i), Typeflag: tar.TypeReg, Mode: 0o644}); err != nil {
					return // nobody reads any more
				}
			}
			w.CloseWithError(out.WriteHeader(&tar.Header{Name: "../up", Typeflag: tar.TypeReg}))
			_ = w.Close()
		}()
		return r
	}
	_, err := f.Untar(t.Context(), "/warm", packed(t, tar.Header{Name: "f"}))
	mustDo(t, "untar", err)
	pid := shards(t, n)[0]
	before := peak(t, pid)
	_, err = f.Untar(t.Context(), "/many", stream())
	wantCode(t, err, api.CodeInvalid)
	if want := fmt.Sprintf("%d entries before it are in place", files); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want %q", err, want)
	}
	const room = 24 << 20
	if after := peak(t, pid); after > before+room {
		t.Errorf("the shard grew from %d to %d KiB", before>>10, after>>10)
	}
	if got := testbed.Output(t, sb, "find /many -type f | wc -l; ls -d /up 2>/dev/null; find / -xdev -name '.dsec-*'"); got != fmt.Sprint(files) {
		t.Errorf("there are %s", got)
	}
}

// TestCase32BrokenArchives unpacks what isn't an archive in ways that its reader knows: a typed error, and what came
// before is in place.
func TestCase32BrokenArchives(t *testing.T) {
	t.Parallel()
	f := testbed.Shared(t).Create(t, api.Spec{}).Files()
	first := packed(t, tar.Header{Name: "first"}).Bytes()
	first = first[:len(first)-1024] // without the end
	long := strings.Repeat("n", 3<<20)
	header := func(kind byte, size int) []byte {
		b := packed(t, tar.Header{Name: "x", Typeflag: tar.TypeDir}).Bytes()[:512]
		b[156] = kind
		copy(b[124:], fmt.Sprintf("%011o", size))
		copy(b[148:], "        ")
		sum := 0
		for _, c := range b {
			sum += int(c)
		}
		copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
		return b
	}
	for name, rest := range map[string]string{
		"pax-header-too-long": string(header('x', len(long))) + long, "name-too-long": string(header('L', len(long))) + long,
		"pax-header-of-junk": string(header('x', 512)) + long[:512], "negative-size": strings.Replace(string(header('0', 0)), "00000000000", "-0000000001", 1),
		"no-checksum": strings.Repeat("junk", 128), "unknown-kind": string(header('V', 0)), "sparse-map-of-junk": string(header('S', 512)) + long[:1024],
		"cut-header": string(header('0', 0)[:100]), "cut-content": string(header('0', 1<<20)) + "content",
	} {
		n, err := f.Untar(t.Context(), "/"+name, strings.NewReader(string(first)+rest))
		wantNamed(t, name, err, api.CodeInvalid)
		if n != 0 || err == nil || !strings.HasSuffix(api.AsError(err).Detail, "; 1 entries before it are in place") {
			t.Errorf("%s: %d, %v", name, n, err)
		}
		if got := names(t, f, "/"+name); got != "first" {
			t.Errorf("%s: there is %s", name, got)
		}
	}
}

// TestCase32Zeros unpacks files that begin or end in zeros, or are nothing else: every byte is there.
func TestCase32Zeros(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	zeros, data := strings.Repeat("\x00", 200_000), strings.Repeat("x", 70_000)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	want := map[string]string{"end": data + zeros, "begin": zeros + data, "middle": data + zeros + data, "all": zeros, "one": "\x00", "none": ""}
	for name, content := range want {
		err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))})
		if err == nil {
			_, err = io.WriteString(w, content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	mustDo(t, "close", w.Close())
	_, err := sb.Files().Untar(t.Context(), "/in", &b)
	mustDo(t, "untar", err)
	for name, content := range want {
		if got, err := sb.Files().ReadFile(t.Context(), "/in/"+name); err != nil || string(got) != content {
			t.Errorf("%s has %d bytes of %d, or others; %v", name, len(got), len(content), err)
		}
	}
}
