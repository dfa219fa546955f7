package transfer

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestUnpackLocalContains unpacks what a hostile sandbox could send.
func TestUnpackLocalContains(t *testing.T) {
	outside := t.TempDir()
	for name, entries := range map[string][]tar.Header{
		"up":        {{Name: "../x", Typeflag: tar.TypeReg}},
		"absolute":  {{Name: filepath.Join(outside, "x"), Typeflag: tar.TypeReg}},
		"link":      {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: outside}, {Name: "l/x", Typeflag: tar.TypeReg}},
		"link-dir":  {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: outside}, {Name: "l/d/", Typeflag: tar.TypeDir, Mode: 0o755}},
		"link-up":   {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "l/x", Typeflag: tar.TypeReg}},
		"device":    {{Name: "d", Typeflag: tar.TypeChar}},
		"hard-link": {{Name: "h", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range entries {
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		parent := t.TempDir()
		if err := unpackLocal(&b, filepath.Join(parent, "dest")); err == nil {
			t.Errorf("%s is unpacked", name)
		}
		for _, dir := range []string{outside, parent} {
			left, err := os.ReadDir(dir)
			if err != nil || len(left) > 1 || dir == outside && len(left) > 0 {
				t.Errorf("%s: outside there is %v, %v", name, left, err)
			}
		}
	}
}

func TestMeter(t *testing.T) {
	var m Meter
	if _, err := io.Copy(io.Discard, m.reader(strings.NewReader(strings.Repeat("x", 1536)))); err != nil {
		t.Fatal(err)
	}
	if got := m.Line(time.Second); got != "1.5 KiB, 1.5 KiB/s" {
		t.Error(got)
	}
	m.expect(3072)
	if got := m.Line(time.Second); got != "[############            ]  50% 1.5 KiB, 1.5 KiB/s" {
		t.Error(got)
	}
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1 << 20: "1 MiB", 5 << 30: "5.0 GiB"} {
		if got := bytesText(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

func TestParsePlace(t *testing.T) {
	for arg, want := range map[string]Place{
		"sabc:/x":  {"sabc", "/x"},
		"sabc:":    {"sabc", ""},
		"./a:b":    {"", "./a:b"},
		"/a:b":     {"", "/a:b"},
		"x":        {"", "x"},
		"-":        {"", "-"},
		":/x":      {"", ":/x"},
		"sabc:a:b": {"sabc", "a:b"},
	} {
		if got := ParsePlace(arg); got != want {
			t.Errorf("ParsePlace(%q) = %+v, want %+v", arg, got, want)
		}
	}
}

func TestShowRemovesItself(t *testing.T) {
	var m Meter
	r, w := io.Pipe()
	done := m.Show(w, "copy", 0, time.Millisecond)
	seen := make([]byte, 5)
	if _, err := io.ReadFull(r, seen); err != nil || string(seen) != "\rcopy" {
		t.Errorf("%q, %v", seen, err)
	}
	last := make(chan string, 1) // what comes until the end
	go func() {
		rest, _ := io.ReadAll(r)
		last <- string(rest)
	}()
	done()
	_ = w.Close()
	if got := <-last; !strings.HasSuffix(got, "\r\x1b[K") {
		t.Errorf("it ends with %q", got)
	}
}
